"""`usher up` for tests: free ports, a state file, and a clean end that is checked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from usher_cli.up.child import usher_command

READY_WITHIN_S = 30.0
ENDED_WITHIN_S = 3.0


def environment() -> dict[str, str]:
    """This environment without settings of usher."""
    return {name: value for name, value in os.environ.items() if not name.startswith("USHER_")}


class Fleet:
    """A running `usher up`. `log` is what it wrote to stderr so far; `settings` are variables of its environment."""

    def __init__(self, directory: Path, *flags: str, settings: Mapping[str, str] | None = None) -> None:
        self.state_file = directory / "state.json"
        self.log: list[str] = []
        self.process = subprocess.Popen(
            # It dies with us: a test run that is killed must not leave a fleet behind.
            usher_command(["up", "--http=127.0.0.1:0", "--udp=127.0.0.1:0", f"--state-file={self.state_file}", *flags]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As from a terminal with a job of its own.
            start_new_session=True,
            env={**environment(), "TMPDIR": str(directory), **(settings or {})},
        )
        self._readers = [threading.Thread(target=self._read_log, daemon=True)]
        self._readers[0].start()
        self.url = ""

    def wait_until_ready(self) -> None:
        """Read the line `ready URL`. Fails with the log when it does not come."""
        assert self.process.stdout is not None
        timer = threading.Timer(READY_WITHIN_S, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        assert line.startswith("ready http://"), f"no ready line but {line!r}:\n{self.log_text}"
        self.url = line.split()[1]

    @property
    def log_text(self) -> str:
        return "".join(self.log)

    def state(self) -> dict[str, Any]:
        """The state file as it is now."""
        found: dict[str, Any] = json.loads(self.state_file.read_text())
        return found

    @property
    def udp(self) -> tuple[str, int]:
        host, _, port = self.state()["udp"].rpartition(":")
        return host, int(port)

    def pids(self) -> list[int]:
        """All child processes."""
        state = self.state()
        kinds = ("relays", "transceivers", "signaling", "wan")
        return [entry["pid"] for kind in kinds for entry in state.get(kind, ())]

    def interrupt(self) -> float:
        """Press Ctrl-C. Return the seconds until everything has ended."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)
        return time.monotonic() - began

    def close(self) -> None:
        """End it, whatever state it is in, and read the rest of its output."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for reader in self._readers:
            reader.join(timeout=5)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)


@contextlib.contextmanager
def running_fleet(directory: Path, *flags: str, settings: Mapping[str, str] | None = None) -> Iterator[Fleet]:
    """Start `usher up` and wait for `ready`; at the end it must leave no process within 3 s."""
    fleet = Fleet(directory, *flags, settings=settings)
    try:
        fleet.wait_until_ready()
        yield fleet
        pids = fleet.pids()
        took = fleet.interrupt()
        assert took < ENDED_WITHIN_S, f"took {took:.1f} s to end:\n{fleet.log_text}"
        assert [pid for pid in pids if is_running(pid)] == []
    finally:
        fleet.close()


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_of(up: int, program: str = "") -> list[int]:
    """The pids of what the `usher up` with this pid has started: of all, or of one program."""
    ask = ["pgrep", "-f", f"leashed {up} {program}"]
    found = subprocess.run(ask, capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def make_up(flags: str) -> list[str]:
    """The command `make up` with these flags.

    It takes this environment as it is: `make test` has made it, and a test must not install anything.
    """
    venv = Path(sys.prefix)
    return ["make", f"VENV={venv}", f"--old-file={venv / '.installed'}", "up", f"ARGS={flags}"]


def make_environment() -> dict[str, str]:
    """This environment without settings of usher, and without what `make test` tells a make within it."""
    return {name: value for name, value in environment().items() if not name.startswith(("MAKE", "MFLAGS"))}


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Look every 20 ms. Fails, naming `what`, when the condition does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class Caller:
    """`usher call URL … --json` in the background."""

    def __init__(self, url: str, *flags: str) -> None:
        self.process = subprocess.Popen(
            usher_command(["call", url, "--json", *flags]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.steps: list[str] = []
        self._reader = threading.Thread(target=self._read_steps, daemon=True)
        self._reader.start()

    def wait_until_connected(self, count: int, seconds: float = 30.0) -> None:
        wait_until(
            lambda: (
                sum(step.endswith(": connected\n") for step in self.steps) >= count or self.process.poll() is not None
            ),
            seconds,
            f"{count} calls connected: {self.steps}",
        )
        assert self.process.poll() is None, "".join(self.steps)

    def result(self, seconds: float = 120.0) -> dict[str, Any]:
        """Wait for the end; return the JSON object, with the exit status as `status`."""
        assert self.process.stdout is not None
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        try:
            out = self.process.stdout.read()
            self.process.wait()
        finally:
            timer.cancel()
        self._reader.join(timeout=5)
        self.process.stdout.close()
        assert out, f"no result: {''.join(self.steps)}"
        found: dict[str, Any] = json.loads(out)
        return {**found, "status": self.process.returncode}

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(timeout=5)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read_steps(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.steps.append(line)


@contextlib.contextmanager
def calling(url: str, *flags: str) -> Iterator[Caller]:
    """Place calls in the background."""
    caller = Caller(url, *flags)
    try:
        yield caller
    finally:
        caller.close()
