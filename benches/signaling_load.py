"""How many calls one replica of signaling sets up, and how long an offer waits while others come in.

Run it:  .venv/bin/python benches/signaling_load.py [--seconds 8] [--rate 50] [--live 8] [--json]

1. *One replica*: `usher signaling` alone, with two pretended transceivers that answer at once, in a process of their
   own. 16 connections place a call and hang up, over and over. What counts is the CPU time of signaling, read from the
   kernel: `calls per CPU second` is what a replica with one core to itself does. A call is two requests.
2. *Offers among calls*: the real programs (`usher up`), with live calls of stock clients. Offers come at a steady rate,
   whether or not the last ones were answered, and each call is hung up once it has its answer. The time runs from when
   an offer was due, so a queue shows. `refused` counts 503: the transceiver did not keep up, on a machine that is too
   small or busy with other work.

What would make the numbers lie: callers, programs and the clients of the live calls share the CPUs, so part 2 on two
CPUs measures the clients as well (compare --live 0); no TLS, which stands in front; loopback has no round trip.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import _machine
import _up

from usher_cli.up.child import usher_command
from usher_core.internal_api import BASE_PATH, Load, SessionCreated, SessionEnded
from usher_core.routes import RouteFile, Transceiver

ROOT = Path(__file__).parents[1]
OFFER = (ROOT / "tests" / "vectors" / "offers" / "chromium.sdp").read_bytes()
KEY = "key-of-the-bench-0123456789"
CONNECTIONS = 16
WARM_UP_S = 1.0


@dataclass(frozen=True)
class Answer:
    """An answer: status, the value of `Location`, and the body."""

    status: int
    location: str
    body: bytes


class Connection:
    """A kept-alive HTTP connection that costs its caller little."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes = b"") -> Answer:
        """Send a POST and read the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._address.hostname, self._address.port)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
        head += f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(lines[0].split()[1]), headers.get("location", ""), body)

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()


async def place_and_hang_up(connection: Connection) -> float | None:
    """Return the seconds from offer to answer, None when nobody had room."""
    begin = time.perf_counter()
    call = await connection.post("/v1/realtime/calls", OFFER)
    took = time.perf_counter() - begin
    if call.status == 503:
        return None
    if call.status != 201:
        raise SystemExit(f"an offer was answered with {call.status}: {call.body.decode()}")
    await connection.post(f"{call.location}/hangup")
    return took


def pretend_transceiver(port: Any) -> None:
    """Serve the part of the internal API that placing and ending calls need, at once and for ever."""
    numbers = itertools.count(1)

    def body(method: str, path: str) -> str:
        load = Load(sessions=0, max_sessions=100_000, draining=False, accepts=True)
        if method == "DELETE":
            return SessionEnded(session_id=path.rpartition("/")[2], reason="hangup").model_dump_json()
        if path != f"{BASE_PATH}/sessions":
            return load.model_dump_json()
        number = next(numbers)
        made = SessionCreated(session_id=f"{number:016x}", answer="v=0\r\n" * 200, ufrag=f"A{number:022d}", load=load)
        return made.model_dump_json()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                method, path = head.split(" ", 2)[:2]
                length = head.partition("content-length: ")[2].partition("\r\n")[0]
                await reader.readexactly(int(length or 0))
                answer = body(method.upper(), path).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@contextlib.contextmanager
def pretended_transceivers(count: int) -> Iterator[list[Transceiver]]:
    """Serve transceivers that only pretend, each in a process of its own."""
    processes, entries = [], []
    try:
        for pod in range(1, count + 1):
            here, there = multiprocessing.Pipe()
            process = multiprocessing.Process(target=pretend_transceiver, args=(there,), daemon=True)
            process.start()
            processes.append(process)
            entries.append(Transceiver(cluster=1, pod=pod, udp="127.0.0.1:9", http=f"http://127.0.0.1:{here.recv()}"))
        yield entries
    finally:
        for process in processes:
            process.terminate()
            process.join()


@contextlib.contextmanager
def signaling(transceivers: list[Transceiver]) -> Iterator[tuple[str, int]]:
    """Run one replica; its URL and process id."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(
            usher_command(["keys", "new", "--cluster=1", f"--out={folder}"]), check=True, capture_output=True
        )
        (folder / "routes.json").write_text(RouteFile(version=1, transceivers=tuple(transceivers)).model_dump_json())
        flags = [f"--keys-file={folder}/signaling.json", f"--token-file={folder}/internal-token"]
        flags += [f"--routes-file={folder}/routes.json", "--advertise=1=127.0.0.1:3478", "--log-level=warning"]
        process = subprocess.Popen(
            usher_command(["signaling", "--http=127.0.0.1:0", *flags]),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "USHER_API_KEY": KEY},
        )
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["http"], process.pid
        finally:
            process.terminate()
            process.wait()


async def set_up_rate(url: str, pid: int, seconds: float) -> dict[str, float]:
    """Place and end calls on many connections; return rates and times of the offers."""
    times: list[float] = []
    connections = [Connection(url) for _ in range(CONNECTIONS)]

    async def caller(connection: Connection, until: float) -> None:
        while time.monotonic() < until:
            took = await place_and_hang_up(connection)
            assert took is not None, "pretended transceivers always have room"
            times.append(took)

    async def run(length: float) -> None:
        until = time.monotonic() + length
        await asyncio.gather(*(caller(connection, until) for connection in connections))

    await run(WARM_UP_S)
    times.clear()
    cpu, begin = _up.cpu_seconds(pid), time.monotonic()
    await run(seconds)
    cpu, took = _up.cpu_seconds(pid) - cpu, time.monotonic() - begin
    for connection in connections:
        connection.close()
    return {
        "calls_per_second": len(times) / took,
        "calls_per_cpu_second": len(times) / cpu,
        "cpu_ms_per_call": 1000 * cpu / len(times),
        **milliseconds(times),
    }


async def offers_at(url: str, rate: float, seconds: float) -> dict[str, float]:
    """Send offers at a steady rate, from when each was due; return their times."""
    free: list[Connection] = []
    times: list[float] = []
    refused = 0

    async def one(due: float) -> None:
        nonlocal refused
        connection = free.pop() if free else Connection(url)
        waited = time.perf_counter() - due
        took = await place_and_hang_up(connection)
        if took is None:
            refused += 1
        else:
            times.append(waited + took)
        free.append(connection)

    begin = time.perf_counter()
    tasks = []
    for number in range(int(rate * seconds)):
        due = begin + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    took = time.perf_counter() - begin
    for connection in free:
        connection.close()
    return {"answered_per_second": len(times) / took, "refused": refused, **milliseconds(times)}


def milliseconds(times: list[float]) -> dict[str, float]:
    """Return p50, p99 and the worst, in ms."""
    ordered = sorted(times)
    return {
        "p50_ms": 1000 * ordered[len(ordered) // 2],
        "p99_ms": 1000 * ordered[-(-len(ordered) * 99 // 100) - 1],
        "worst_ms": 1000 * ordered[-1],
    }


def offers_among_calls(rate: float, live: int, seconds: float) -> dict[str, float]:
    """Send offers to `usher up` while `live` calls go on; return their times and how many calls were right."""
    with _up.running_up(USHER_API_KEY=KEY) as up:
        callers = None
        if live:
            # Long enough for set-up and warm-up; the calls still go on when the last offer comes.
            length = seconds + WARM_UP_S + 4
            os.environ["USHER_API_KEY"] = KEY
            callers = _up.calls(up.url, f"--count={live}", f"--seconds={length}")
            time.sleep(3)
        asyncio.run(offers_at(up.url, rate, WARM_UP_S))
        found = asyncio.run(offers_at(up.url, rate, seconds))
        right = sum(not call["wrong"] for call in _up.result(callers)["calls"]) if callers else 0
    return {**found, "live_calls": live, "live_calls_right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each part")
    parser.add_argument("--rate", type=float, default=50.0, help="offers per second of the second part")
    parser.add_argument("--live", type=int, default=8, help="live calls in the second part")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()

    with pretended_transceivers(2) as transceivers, signaling(transceivers) as (url, pid):
        alone = asyncio.run(set_up_rate(url, pid, options.seconds))
    among = offers_among_calls(options.rate, options.live, options.seconds)
    results = {"one replica, pretended transceivers": alone, "offers among calls, usher up": among}
    if options.json:
        print(json.dumps({"machine": _machine.describe()}))
        for name, values in results.items():
            print(json.dumps({"bench": name, **values}))
        return
    print(_machine.line())
    for name, values in results.items():
        for value_name, value in values.items():
            print(f"{name}: {value_name} {value:.1f}")


if __name__ == "__main__":
    main()
