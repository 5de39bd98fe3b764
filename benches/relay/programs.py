"""What runs in the relay bench: compiled programs, network namespaces, the relays and the load, each on its CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
TRANSCEIVERS = 4


@dataclass(frozen=True, slots=True)
class Network:
    """Where the relay and the load meet. A prefix is the command that enters the namespace of one of them."""

    name: str
    relay: str
    clients: str
    transceivers: str
    relay_prefix: tuple[str, ...] = ()
    load_prefix: tuple[str, ...] = ()


LOOPBACK = Network("loopback", "127.0.0.1", "127.16.0.0", "127.0.0.1")


@contextmanager
def veth() -> Iterator[Network]:
    """Two namespaces with a pair of veth for the clients' side and one for the hop. Needs root."""
    relay, load = (f"usher-bench-{os.getpid()}-{name}" for name in ("relay", "load"))

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    ip("netns", "add", relay)
    ip("netns", "add", load)
    try:
        for side, net in (("client", "10.9.1"), ("hop", "10.9.2")):
            ip("-n", load, "link", "add", side, "type", "veth", "peer", "name", side, "netns", relay)
            for space, host in ((load, 1), (relay, 2)):
                ip("-n", space, "addr", "add", f"{net}.{host}/24", "dev", side)
                ip("-n", space, "link", "set", side, "up")
        for space in (load, relay):
            ip("-n", space, "link", "set", "lo", "up")
        # Every address of the clients' net is one of this namespace, so that a million can send and receive.
        ip("-n", load, "route", "add", "local", "10.64.0.0/10", "dev", "lo")
        ip("-n", relay, "route", "add", "10.64.0.0/10", "via", "10.9.1.1")
        enter = ("ip", "netns", "exec")
        yield Network("veth", "10.9.1.2", "10.64.0.0", "10.9.2.1", (*enter, relay), (*enter, load))
    finally:
        ip("netns", "del", relay)
        ip("netns", "del", load)


def build(folder: Path) -> None:
    """Compile the loop, the load and the Go reference into `folder`."""
    for name in ("loop", "load"):
        command = [
            "gcc",
            "-O2",
            "-Wall",
            "-Wextra",
            "-o",
            str(folder / name),
            str(HERE / f"{name}.c"),
            "-lcrypto",
            "-lpthread",
        ]
        subprocess.run(command, check=True)
    subprocess.run(["go", "build", "-o", folder / "reference", "reference.go"], cwd=HERE, check=True)


class Program:
    """A child that answers each line of its stdin with one line of JSON, and ends with its stdin."""

    def __init__(self, command: list[str], cpu: int) -> None:
        self._command = ["taskset", "--cpu-list", str(cpu), *command]
        self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._read()

    def ask(self, line: str = "") -> dict[str, Any]:
        """Send a line and return the answer."""
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()
        return self._read()

    def end(self) -> None:
        """Close its stdin and wait for it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(20)

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._command} ended with {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def pid(self) -> int:
        """Its process; `taskset` and `ip netns exec` become it."""
        return self._child.pid


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds that all threads of a process have used: exact in all, by ticks for its two parts."""

    all: float
    user: float
    system: float

    def __sub__(self, other: Cpu) -> Cpu:
        """What was used since `other`."""
        return Cpu(self.all - other.all, self.user - other.user, self.system - other.system)


class Relay(Program):
    """One of the relays that are compared.

    `ingress` sends all to the trunk of `home`; what is measured of `home` enters there, at the port of `ingress`.
    """

    def __init__(self, name: str, folder: Path, load: Load, cpu: int, most_flows: int, trunk: int = 0) -> None:
        self.name = name
        places = [load.network.transceivers, *map(str, load.ready["transceivers"])]
        engine = [sys.executable, str(HERE / "engine.py")]
        commands = {
            "go": [str(folder / "reference")],
            "c": [str(folder / "loop"), str(most_flows)],
            "native": [*engine, "native", "apart", str(most_flows), "alone"],
            "bundled": [*engine, "native", "0", str(most_flows), "alone"],
            "held": [*engine, "native", "0.0003", str(most_flows), "alone"],
            "python": [*engine, "python", "0", str(most_flows), "alone"],
            "home": [*engine, "native", "apart", str(most_flows), "home"],
            "ingress": [*engine, "native", "apart", str(most_flows), f"ingress={trunk}"],
        }
        super().__init__([*load.network.relay_prefix, *commands[name], *places], cpu)
        self.port = int(self.ready["port"])

    def cpu(self) -> Cpu:
        """Return the CPU time used so far."""
        process = Path(f"/proc/{self.pid}")
        threads = (process / "task").iterdir()
        nanoseconds = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
        user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
        return Cpu(nanoseconds / 1e9, int(user) / TICK, int(system) / TICK)

    def resident(self) -> int:
        """Return the bytes that it has in memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE


class Load(Program):
    """All clients and transceivers."""

    def __init__(self, folder: Path, network: Network, cpu: int) -> None:
        self.network = network
        addresses = [network.clients, network.transceivers, str(TRANSCEIVERS)]
        super().__init__([*network.load_prefix, str(folder / "load"), *addresses], cpu)

    def open(self, relay: Relay, flows: int) -> float:
        """Make or refresh flows; return the seconds it took."""
        answer = self.ask(f"open {self.network.relay} {relay.port} {flows}")
        if answer["opened"] != flows:
            raise RuntimeError(f"{relay.name}: {answer['opened']} of {flows} flows opened, it says {relay.ask()}")
        return float(answer["seconds"])

    def send(self, relay: Relay, **plan: object) -> dict[str, Any]:
        """Send as load.c's `read_plan` says."""
        return self.ask(" ".join(["send", f"port={relay.port}", *(f"{key}={value}" for key, value in plan.items())]))
