"""What the relay's Python engine costs: CPU microseconds of its whole process per forwarded packet, each way.

Run it:  .venv/bin/python benches/relay_python.py [--seconds 3] [--rates 20000,50000,0] [--json]

A real `usher relay` process on CPU 1, a generator on CPU 0, loopback: client sockets → relay → a transceiver socket,
and back. 160-byte RTP, many flows, one record per hop datagram. The work per packet is all of it: receive, flow look-
up, limit, header, MAC (made on the way up, checked on the way down), send. Rate 0 sends as fast as the generator can.

What would make the numbers lie: the receiving sockets drop every datagram in a filter, so no receiver's time is in
them (the delivery up to the filter is); loopback has neither a driver nor a wire and flatters by about a quarter;
other work on the two CPUs adds cache misses. A relay that waits long between bursts gets small batches: the mean
batch is printed.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import _machine

from usher_core import hop, stun
from usher_core.ids import ClientPath, Route
from usher_core.keys import IceKeyRing, parse_key_file

HOP_KEY = bytes(range(16))
ROUTE = Route(1, 17)
SO_ATTACH_FILTER = 26
BURST = 16
START = (
    "import sys; from usher_relay.main import run; from usher_relay.settings import RelaySettings;"
    "run(RelaySettings.from_command_line(sys.argv[1:]))"
)


def drop_everything(sock: socket.socket) -> None:
    """Let the kernel drop what arrives, by a classic BPF program of one instruction: `ret 0`."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


@dataclass
class Rig:
    """A relay process, a transceiver socket and client sockets."""

    process: subprocess.Popen[str]
    admin: str
    relay: tuple[str, int]
    transceiver: socket.socket
    clients: list[socket.socket]
    upstream: tuple[str, int]
    paths: list[ClientPath]

    def counts(self) -> dict[str, float]:
        """Return the relay's metrics by name with labels."""
        with urllib.request.urlopen(self.admin + "/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def cpu(self) -> float:
        """Return the CPU seconds that all threads of the relay have used."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def start(folder: Path, flows: int, host: str) -> Rig:
    ice = {"letter": "b", "clusters": [1], "ufrag_key": text(bytes(16)), "password_key": text(bytes(32))}
    keys = json.dumps({"version": 1, "ice": [ice], "hop": [{"id": 1, "key": text(HOP_KEY)}]})
    (folder / "keys.json").write_text(keys)
    transceiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    transceiver.bind(("127.0.0.1", 0))
    transceiver.settimeout(5)
    udp = f"127.0.0.1:{transceiver.getsockname()[1]}"
    routes = {"version": 1, "transceivers": [{"cluster": 1, "pod": 17, "udp": udp}]}
    (folder / "routes.json").write_text(json.dumps(routes))
    flags = ["--listen", f"1={host}:0", "--admin", "127.0.0.1:0", "--log-level", "warning"]
    flags += ["--keys-file", str(folder / "keys.json"), "--routes-file", str(folder / "routes.json")]
    flags += ["--packets-per-client", "1000000", "--packets-per-address", "10000000"]
    process = subprocess.Popen([sys.executable, "-c", START, *flags], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    relay = ("127.0.0.1", int(ready["listeners"]["1"].rpartition(":")[2]))
    rig = Rig(process, ready["admin"], relay, transceiver, [], ("", 0), [])
    ring = IceKeyRing(parse_key_file(keys).ice)
    for _ in range(flows):
        connect_client(rig, ring)
    for sock in (*rig.clients, transceiver):
        drop_everything(sock)
    return rig


def connect_client(rig: Rig, ring: IceKeyRing) -> None:
    """Make one confirmed flow: a check, and an alive answer."""
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect(rig.relay)
    client.settimeout(5)
    ufrag, password = ring.make(ROUTE, os.urandom(5), time.time())
    username = (stun.Attribute.USERNAME, f"{ufrag}:peer".encode())
    client.send(stun.build(stun.StunClass.REQUEST, os.urandom(12), [username], password.encode()))
    datagram, rig.upstream = rig.transceiver.recvfrom(2_000)
    path = hop.parse(datagram).records[0].path
    rig.transceiver.sendto(hop_datagram(path, b"answer"), rig.upstream)
    assert client.recv(100) == b"answer"
    rig.clients.append(client)
    rig.paths.append(path)


def hop_datagram(path: ClientPath, payload: bytes) -> bytes:
    outer = hop.Outer(hop.HopType.DATA, True, ROUTE.cluster, ROUTE.pod, ROUTE.worker, 1, int(time.time() * 1000))
    return hop.encode(outer, (hop.Record(path, payload, hop.RecordFlag.ALIVE),), HOP_KEY)


def rtp(flow: int) -> bytes:
    return b"\x80\x6f" + bytes(6) + flow.to_bytes(4) + os.urandom(148)


def pace(sends: list[tuple[socket.socket, bytes, tuple[str, int]]], rate: int, seconds: float) -> int:
    """Send round robin in bursts; return how many were sent."""
    begin = time.perf_counter()
    sent = 0
    while (passed := time.perf_counter() - begin) < seconds:
        if rate and sent > passed * rate:
            time.sleep(BURST / rate / 4)
            continue
        for _ in range(BURST):
            sock, datagram, address = sends[sent % len(sends)]
            sock.sendto(datagram, address)
            sent += 1
    return sent


def measure(rig: Rig, direction: str, rate: int, seconds: float) -> dict[str, float]:
    if direction == "uplink":
        sends = [(client, rtp(flow), rig.relay) for flow, client in enumerate(rig.clients)]
    else:
        sends = [(rig.transceiver, hop_datagram(path, rtp(0)), rig.upstream) for path in rig.paths]
    pace(sends, rate or 20_000, 0.3)
    time.sleep(0.1)
    before, cpu_before = rig.counts(), rig.cpu()
    begin = time.perf_counter()
    sent = pace(sends, rate, seconds)
    took = time.perf_counter() - begin
    time.sleep(0.1)
    cpu, after = rig.cpu() - cpu_before, rig.counts()

    def grown(name: str) -> float:
        key = f'usher_relay_{name}_total{{direction="{direction}"}}'
        return after[key] - before[key]

    forwarded = grown("packets")
    return {
        "cpu_us": cpu / forwarded * 1e6,
        "forwarded_per_second": forwarded / took,
        "lost_percent": 100 * (1 - forwarded / sent),
        "mean_batch": grown("received") / max(1, grown("batches")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3, help="per line")
    parser.add_argument("--rates", default="20000,50000,0", help="packets per second, 0 = saturation")
    parser.add_argument("--flows", type=int, default=200)
    parser.add_argument(
        "--host", default="127.0.0.1", help="of the listener; 0.0.0.0 adds the local address per packet"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    print(json.dumps(_machine.describe()) if options.json else _machine.line())
    with tempfile.TemporaryDirectory() as folder:
        rig = start(Path(folder), options.flows, options.host)
        try:
            cpus = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cpus[0]})
            for task in Path(f"/proc/{rig.process.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {cpus[-1]})
            for rate in map(int, options.rates.split(",")):
                for direction in ("uplink", "downlink"):
                    result = measure(rig, direction, rate, options.seconds)
                    report(direction, rate, result, as_json=options.json)
        finally:
            rig.process.terminate()
            rig.process.wait(10)


def report(direction: str, rate: int, result: dict[str, float], *, as_json: bool) -> None:
    name = f"{direction} at {rate or 'saturation'}"
    if as_json:
        print(json.dumps({"name": name, **result}))
    else:
        print(
            f"{name:>22}  {result['cpu_us']:6.2f} us/packet  {result['forwarded_per_second']:8.0f} packets/s"
            f"  {result['lost_percent']:5.1f} % lost  batch {result['mean_batch']:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
