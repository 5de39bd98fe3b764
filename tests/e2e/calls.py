"""Real calls from this machine, which is outside the cluster: `usher call` as a child process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Json = dict[str, Any]

SET_UP_LIMIT_S = 60.0
END_LIMIT_S = 60.0
PACKETS_PER_S = 50
HEARD_S = 5.0
"""Twice the time between checks: a call that lost its path is without sound for as long, or has it back."""
LONGEST_S = 600.0
"""Of calls that are hung up in the end; longer than any test."""
MAX_STUMBLE_MS = 2_400
"""Audio stumbles where pods start beside calls on few cores. Without a working path it waits for a check, 2.5 s."""
MIN_RETURNED_SHARE = 0.95
BUSY_STUMBLE_MS = 5_000
BUSY_RETURNED_SHARE = 0.8
"""On a machine that other work keeps busy, where `usher call` itself says that its numbers speak of the machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `usher call` reported.

    `calls`: full calls, whose sound was judged; `load`: of the light ones; `lost`: calls that did not come about, or
    ended before we hung up. A gap in the sound is no lost call.
    """

    calls: list[Json]
    summary: Json
    load: Json | None
    lost: int

    @property
    def count(self) -> int:
        return len(self.calls) + (self.load["light_calls"] if self.load else 0)

    @property
    def wrong(self) -> dict[str, int]:
        return {**self.summary["wrong"], **(self.load["wrong"] if self.load else {})}

    @property
    def longest_gap_ms(self) -> float:
        """The longest time without audio of any call."""
        gaps = [self.summary["longest_gap_ms"] or 0.0]
        if self.load and self.load["longest_gap_ms"]:
            gaps.append(self.load["longest_gap_ms"]["max"])
        return max(gaps)

    @property
    def returned_share(self) -> float:
        """The least of the shares of packets that came back; a call that fell silent for good shows here."""
        shares = [call["received"] / (call["seconds"] * PACKETS_PER_S) for call in self.calls if call["seconds"]]
        if self.load and self.load["sent"]:
            shares.append(self.load["received"] / self.load["sent"])
        return min(shares, default=0.0)

    @property
    def is_unbroken(self) -> bool:
        """Whether no call was lost, and none was without a path at any time."""
        is_busy = self.load is not None and not self.load["client_has_head_room"]
        longest = BUSY_STUMBLE_MS if is_busy else MAX_STUMBLE_MS
        least = BUSY_RETURNED_SHARE if is_busy else MIN_RETURNED_SHARE
        return not self.lost and self.longest_gap_ms < longest and self.returned_share > least

    @property
    def transceivers(self) -> set[str]:
        return set(self.summary["transceivers"])

    def __str__(self) -> str:
        answer = (self.summary["offer_answer_ms"] or {}).get("max")
        return (
            f"{self.count} calls, {self.lost} lost, longest gap {self.longest_gap_ms:.0f} ms, "
            f"{100 * self.returned_share:.1f} % of packets back, slowest answer {answer} ms"
            + (", on a busy machine" if self.load and not self.load["client_has_head_room"] else "")
            + (f", wrong: {self.wrong}" if self.wrong else "")
        )


class LiveCalls:
    """Calls that go on while something happens: `with LiveCalls(…) as calls: …; outcome = calls.end()`.

    Args:
        url: of signaling.
        key: API key.
        count: calls at a time.
        seconds: length of each, once all are up, for those that have to end by themselves.
        light: most of them are light clients, which count packets; every fifth is a full one.
    """

    def __init__(self, url: str, key: str, count: int, seconds: float = LONGEST_S, *, light: bool = False) -> None:
        self._command = [
            sys.executable, "-m", "usher_cli", "call", url, "--json",
            f"--count={count}", f"--concurrency={count}", f"--seconds={seconds}",
        ]  # fmt: skip
        if light:
            self._command += ["--load", "--full-every=5"]
        self._environment = {**os.environ, "USHER_API_KEY": key}
        self._count = count
        self._full = -(-count // 5) if light else count
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="usher-calls-")
        self._said = Path(self._folder.name) / "stderr"
        self._printed = Path(self._folder.name) / "stdout"

    def __enter__(self) -> Self:
        with self._said.open("w") as said, self._printed.open("w") as printed:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=printed, stderr=said, text=True
            )
        return self

    def until_up(self) -> Self:
        """Wait until all calls have audio."""
        deadline = time.monotonic() + SET_UP_LIMIT_S
        while (up := self._said.read_text().count(": connected")) < self._full:
            assert self._process is not None
            assert self._process.poll() is None, f"the calls ended early:\n{self._report()}"
            assert time.monotonic() < deadline, f"{up} of {self._full} calls are up:\n{self._report()}"
            time.sleep(0.1)
        return self

    @property
    def are_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self, heard_s: float = HEARD_S) -> Outcome:
        """Hang up when what happened to the calls has been heard, so many seconds from now."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(heard_s)
            raise AssertionError(f"the calls ended before all had happened:\n{self._report()}")
        self._process.send_signal(signal.SIGUSR1)
        return self._outcome(END_LIMIT_S)

    def until_ended(self) -> Outcome:
        """Wait until the calls have ended by themselves."""
        return self._outcome(self._seconds + SET_UP_LIMIT_S + END_LIMIT_S)

    def _outcome(self, limit_s: float) -> Outcome:
        assert self._process is not None
        self._process.wait(limit_s)
        printed = self._printed.read_text()
        assert printed, f"usher call said nothing:\n{self._report()}"
        found = json.loads(printed)
        load = found.get("load")
        said = self._said.read_text()
        lost = len(re.findall(r": (?:broke|failed)\b", said)) + (sum(load["wrong"].values()) if load else 0)
        return Outcome(found["calls"], found["summary"], load, lost)

    def _report(self) -> str:
        return self._said.read_text()[-4000:]

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()
