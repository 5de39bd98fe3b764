"""The servers of the bench, each on a CPU of its own: usher with a backend, and stock aiortc.

The server behind the bridge of `bridged` is none of them: it runs where the load runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benches import _up
from benches.transceiver import bots

MAX_SESSIONS = 2_000
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """A look at a server: CPU so far in s, memory in bytes, connected calls, ticks by lateness (cumulative), ticks
    given up, and packets and datagrams sent (0 where it does not tell).
    """

    cpu_s: float
    memory: int
    connected: int
    lateness: tuple[int, ...]
    skipped: int = 0
    sent_packets: int = 0
    sent_datagrams: int = 0


class Server(Protocol):
    """Something that `usher call` can call."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    def sample(self) -> Sample:
        """Look at it."""


@dataclass(frozen=True, slots=True)
class Usher:
    """A transceiver; its relay and signaling run where the load runs."""

    name: str
    url: str
    pid: int
    admin: str

    def sample(self) -> Sample:
        found = _up.metrics(self.admin)
        prefix = "usher_transceiver_"
        buckets = [int(value) for name, value in found.items() if name.startswith(f"{prefix}tick_lateness_seconds_b")]
        return Sample(
            _up.cpu_seconds(self.pid),
            memory_of(self.pid),
            int(found[prefix + 'sessions{state="connected"}']),
            tuple(buckets),
            int(found[prefix + "skipped_ticks_total"]),
            int(found[prefix + "hop_sent_records_total"]),
            int(found[prefix + "hop_sent_total"]),
        )


@dataclass(frozen=True, slots=True)
class Stock:
    """The reference of stock.py."""

    name: str
    url: str
    pid: int

    def sample(self) -> Sample:
        with urllib.request.urlopen(self.url + "/stats") as answer:
            found: dict[str, Any] = json.load(answer)
        return Sample(_up.cpu_seconds(self.pid), memory_of(self.pid), found["connected"], tuple(found["lateness"]))


@contextmanager
def usher(name: str, backend: str, server_cpu: int, load_cpu: int, **settings: str) -> Iterator[Server]:
    """Start a fleet with one transceiver."""
    settings |= {"USHER_BACKEND": backend, "USHER_MAX_SESSIONS": str(MAX_SESSIONS)}
    with bots.installed() as path, _up.running_up(**settings, PYTHONPATH=path) as up:
        (transceiver,) = up.state["transceivers"]
        for program in (*up.state["relays"], *up.state["signaling"]):
            pin(program["pid"], load_cpu)
        pin(transceiver["pid"], server_cpu)
        yield Usher(name, up.url, transceiver["pid"], transceiver["admin"])


@contextmanager
def bridged(name: str, server_cpu: int, load_cpu: int) -> Iterator[Server]:
    """Start a fleet whose calls are bridged to the Realtime server of model.py."""
    with (
        _program("benches.transceiver.model", load_cpu) as (url, _),
        usher(name, "realtime", server_cpu, load_cpu, USHER_REALTIME_URL=url) as server,
    ):
        yield server


@contextmanager
def stock(name: str, server_cpu: int) -> Iterator[Server]:
    """Start the reference."""
    with _program("benches.transceiver.stock", server_cpu) as (url, pid):
        yield Stock(name, url, pid)


@contextmanager
def _program(module: str, cpu: int) -> Iterator[tuple[str, int]]:
    """Start a program of the bench that prints its address; yield that and its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pin(process.pid, cpu)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"], process.pid
    finally:
        process.terminate()
        process.wait()


def pin(pid: int, cpu: int) -> None:
    """Let a process, with the threads that it has, run on one CPU."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cpu})


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
