"""`usher up` for benches: on free ports, ended with the bench."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from usher_cli.up.child import usher_command

END_WITHIN_S = 10


@dataclass(frozen=True)
class Up:
    """A running fleet. `ready_s`: seconds from its start to `ready`; `state`: its state file."""

    url: str
    ready_s: float
    state: dict[str, Any]


@contextmanager
def running_up(**environment: str) -> Iterator[Up]:
    """Start one relay, one transceiver and signaling; `environment` is added to that of the programs."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state.json"
        log = Path(folder) / "log"
        flags = ["--http=127.0.0.1:0", "--udp=127.0.0.1:0", f"--state-file={state}", "--log-level=warning"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("USHER_")}
        begin = time.monotonic()
        with log.open("w") as errors:
            process = subprocess.Popen(
                usher_command(["up", *flags]),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**inherited, **environment},
            )
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            if len(ready) != 2:
                raise SystemExit(f"usher up did not start:\n{log.read_text()}")
            yield Up(ready[1], time.monotonic() - begin, json.loads(state.read_text()))
        finally:
            process.terminate()
            process.wait(END_WITHIN_S)


def calls(url: str, *flags: str) -> subprocess.Popen[str]:
    """Start `usher call … --json`."""
    return subprocess.Popen(
        usher_command(["call", url, "--json", *flags]),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def result(caller: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of `usher call` and return its JSON object."""
    out, _ = caller.communicate()
    if not out:
        raise SystemExit("usher call made no result")
    found: dict[str, Any] = json.loads(out)
    return found


def metrics(base: str) -> dict[str, float]:
    """Return a program's metrics by name with labels."""
    with urllib.request.urlopen(base + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used, by the scheduler's own count in ns."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9
