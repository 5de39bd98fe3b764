"""A relay on real sockets: its engine in this process or the whole program as a child; a fake transceiver; clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import pytest

from tests.relay_rig import ALIVE, HOP_KEY, HOP_KEYS, key_file, key_text
from usher_core import hop
from usher_core.hop import HopType, Outer, Record
from usher_core.ids import ClientPath, Route
from usher_core.ids import join_host_port as joined
from usher_core.ids import split_host_port as parted
from usher_core.keys import KeyFile
from usher_core.routes import RouteTable, Transceiver
from usher_relay.counters import Drop
from usher_relay.engine.interface import Engine, EngineConfig
from usher_relay.engine.python_engine import PythonEngine
from usher_relay.listeners import parse_listener
from usher_relay.state import Limits

DEADLINE = 5.0
SILENCE = 0.05
"""Loopback delivers within the call that sends, so what has not come by now does not come."""
MakeEngine: TypeAlias = Callable[[EngineConfig, KeyFile], Engine]
START = "from usher_cli.main import main; main()"


def until(condition: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
    """Wait for a condition."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"not within {deadline} s: {what}"
        time.sleep(0.01)


def udp(host: str, port: int = 0) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host, port))
    sock.settimeout(DEADLINE)
    return sock


def make_python(config: EngineConfig, keys: KeyFile) -> Engine:
    return PythonEngine(config, keys)


def make_native(config: EngineConfig, keys: KeyFile) -> Engine:
    from usher_relay.engine.native_engine import NativeEngine

    return NativeEngine(config, keys)


BOTH_ENGINES = [
    pytest.param(make_python, id="python"),
    pytest.param(make_native, id="native", marks=pytest.mark.needs("native engine")),
]
"""Whatever an engine does, the other does too: tests of their behaviour run with both."""


class Client:
    """A client's socket; `relay` is the HOST:PORT it talks to."""

    def __init__(self, relay: str, host: str | None = None) -> None:
        self.relay = parted(relay)
        self.socket = udp(host or ("::1" if ":" in self.relay[0] else "127.0.0.1"))

    @property
    def address(self) -> str:
        return joined(*self.socket.getsockname()[:2])

    def send(self, datagram: bytes) -> None:
        self.socket.sendto(datagram, self.relay)

    def receive(self) -> tuple[bytes, str]:
        """The next datagram, and which HOST:PORT it came from."""
        datagram, source = self.socket.recvfrom(65_535)
        return datagram, joined(*source[:2])

    def hears_nothing(self) -> bool:
        return is_silent(self.socket)


def is_silent(sock: socket.socket) -> bool:
    """Whether nothing arrives for a while."""
    sock.settimeout(SILENCE)
    try:
        sock.recvfrom(65_535)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(DEADLINE)
    return False


@dataclass(frozen=True)
class Arrived:
    """A client datagram at the transceiver, and the relay's address."""

    record: Record
    outer: Outer
    relay: Any


class FakeTransceiver:
    """The hop socket of a pod, driven by the test."""

    def __init__(self, route: Route, host: str = "127.0.0.1") -> None:
        self.route = route
        self.socket = udp(host)

    @property
    def entry(self) -> Transceiver:
        address = joined(*self.socket.getsockname()[:2])
        return Transceiver(cluster=self.route.cluster, pod=self.route.pod, worker=self.route.worker, udp=address)

    def receive_datagram(self) -> tuple[bytes, Any]:
        """The next hop datagram that is no probe, and the relay's address."""
        while True:
            datagram, relay = self.socket.recvfrom(65_535)
            if datagram[1] != HopType.PROBE:
                return datagram, relay

    def receive(self) -> Arrived:
        datagram, relay = self.receive_datagram()
        parsed = hop.parse(datagram)
        assert HOP_KEYS.verify(parsed)
        assert hop.is_timely(parsed.outer.time_ms, int(time.time() * 1000) % (1 << 32))
        (record,) = parsed.records
        return Arrived(record, parsed.outer, relay)

    def hop(
        self, path: ClientPath, payload: bytes, flags: int = ALIVE, *, key: bytes = HOP_KEY, at: float | None = None
    ) -> bytes:
        route = self.route
        sent_ms = int((time.time() if at is None else at) * 1000)
        outer = Outer(HopType.DATA, True, route.cluster, route.pod, route.worker, 3, sent_ms)
        return hop.encode(outer, (Record(path, payload, flags),), key)

    def answer(self, arrived: Arrived, payload: bytes, flags: int = ALIVE) -> None:
        self.socket.sendto(self.hop(arrived.record.path, payload, flags), arrived.relay)

    def hears_nothing(self) -> bool:
        return is_silent(self.socket)


class Network:
    """Makes clients and pods whose sockets end with the test."""

    def __init__(self) -> None:
        self._open: list[Client | FakeTransceiver] = []

    def client(self, relay: str, host: str | None = None) -> Client:
        client = Client(relay, host)
        self._open.append(client)
        return client

    def pod(self, route: Route, host: str = "127.0.0.1") -> FakeTransceiver:
        pod = FakeTransceiver(route, host)
        self._open.append(pod)
        return pod

    def close(self) -> None:
        for end in self._open:
            end.socket.close()


class RunningEngine:
    """An engine in this process; the Python one unless `make` says otherwise."""

    def __init__(
        self,
        *listeners: str,
        upstream: str = "127.0.0.1",
        hop_mtu: int = 0,
        limits: Limits | None = None,
        workers: int = 1,
        bundle_hold: float = 0.0,
        make: MakeEngine = PythonEngine,
    ) -> None:
        parsed = tuple(map(parse_listener, listeners))
        config = EngineConfig(
            parsed, upstream, limits or Limits(), hop_mtu, 1 << 20, 1 << 20, workers, bundle_hold=bundle_hold
        )
        self.engine = make(config, key_file())

    def __enter__(self) -> Self:
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()

    def at(self, listener: int) -> str:
        return self.engine.listening[listener]

    def set_routes(self, *transceivers: FakeTransceiver) -> None:
        self.engine.set_routes(RouteTable(tuple(pod.entry for pod in transceivers)))
        self.engine.routes(1)  # answered after the change

    def drops(self) -> dict[Drop, int]:
        return {reason: count for reason, count in self.engine.snapshot().counters.drops.items() if count}

    def wait_for_drops(self, expected: dict[Drop, int]) -> None:
        end = time.monotonic() + DEADLINE
        while self.drops() != expected and time.monotonic() < end:
            time.sleep(0.01)
        assert self.drops() == expected


class RelayProcess:
    """`usher relay` as a child."""

    def __init__(self, folder: Path, *flags: str, listen: str = "1=127.0.0.1:0") -> None:
        self.folder = folder
        self.keys, self.routes = folder / "keys.json", folder / "routes.json"
        if not self.keys.exists():
            self.keys.write_text(key_text())
        given = ["--listen", listen, "--admin", "127.0.0.1:0", "--keys-file", str(self.keys)]
        given += ["--routes-file", str(self.routes), "--log-format", "json", *flags]
        self.log = (folder / f"log.{os.urandom(4).hex()}").open("w+")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("USHER_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "relay", *given],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
        )
        self.facts: dict[str, Any] = {}

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log_text()
        self.facts = json.loads(line)
        assert (self.facts["ready"], self.facts["program"]) == (True, "relay")

    def log_text(self) -> str:
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    @property
    def udp(self) -> str:
        return str(self.facts["listeners"]["1"])

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.facts["admin"] + path, timeout=DEADLINE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        lines = self.get("/metrics")[1].splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, deadline: float = DEADLINE) -> int:
        return self.process.wait(deadline)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


def write_routes(file: Path, *transceivers: FakeTransceiver) -> None:
    """Write a route file in one step, as a supervisor does."""
    entries = [pod.entry.model_dump() for pod in transceivers]
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"version": 1, "transceivers": entries}))
    new.replace(file)


@contextlib.contextmanager
def relay_process(
    folder: Path, *flags: str, ready: bool = True, listen: str = "1=127.0.0.1:0"
) -> Iterator[RelayProcess]:
    process = RelayProcess(folder, *flags, listen=listen)
    try:
        if ready:
            process.wait_until_ready()
        yield process
    finally:
        process.close()
