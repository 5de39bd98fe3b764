"""One clock for the audio of all calls: calls back every 20 ms on an absolute schedule, so it never drifts.

The calls are spread over `PHASES`, one after the other at even distances: the audio of a hundred calls is 10 ms of
work, and nothing else of the loop, a check or a handshake, should wait for all of that. Those of one group, whose
packets go the same way, come at the same time as far as that makes sense: what leaves together costs less.

After a stall of the loop the missed ticks follow at once, so that media time stays right, but at most `MAX_CATCH_UP`
of them: beyond that the past is given up (and counted), because a burst would only move the stall elsewhere.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import structlog

from usher_transceiver.histogram import Histogram
from usher_transceiver.media.frame import FRAME_SECONDS

PHASES: Final = 4
GROUP_SIZE: Final = 9
"""Members of one group that are kept together: as many packets of speech as a bundle to a relay holds."""
MAX_CATCH_UP: Final = 5
LATENESS_S: Final = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.05, 0.1, 0.2)
"""Bounds of what is told apart in `Ticker.lateness`."""

TickCallback = Callable[[float], None]
FailureCallback = Callable[[Exception], None]


class Ticker:
    """Belongs to the running event loop. Callbacks get the time of `clock` and must return at once.

    Args:
        clock: seconds, monotonic, the one that stamps packets too; None: the loop's. That of uvloop stands still during
            a callback, so by it nothing would be late within one turn of the loop.
        batch: entered around the callbacks of a tick: what they send leaves together.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        batch: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.ticks = 0
        """Of each phase that has members, 50 a second."""
        self.late_ticks = 0
        """Came more than half a frame after their time."""
        self.skipped_ticks = 0
        """Given up after a stall."""
        self.worst_late = 0.0
        """Seconds, since the beginning."""
        self.lateness = Histogram(LATENESS_S)
        """How late ticks came: the lag of the loop."""
        self.loop = asyncio.get_running_loop()
        self.clock = clock or self.loop.time
        self.batch = batch
        begin = self.clock()
        self._phases = tuple(_Phase(self, begin + number * FRAME_SECONDS / PHASES) for number in range(PHASES))

    def __len__(self) -> int:
        return sum(map(len, self._phases))

    def add(self, callback: TickCallback, on_failure: FailureCallback, group: Hashable = None) -> Callable[[], None]:
        """Call back at every tick from now on; return a function that ends it, harmless to call twice.

        A callback that raises is removed, so that one broken call cannot fill the log or slow the others;
        `on_failure` gets the exception and should end that call. The phases' sizes differ by GROUP_SIZE at most, as
        long as members do not leave.
        """
        emptiest = min(self._phases, key=len)
        phase = emptiest
        if group is not None:
            begun = [
                phase
                for phase in self._phases
                if 0 < phase.groups[group] < GROUP_SIZE and len(phase) < len(emptiest) + GROUP_SIZE
            ]
            phase = max(begun, key=lambda phase: phase.groups[group], default=emptiest)
        return phase.add(callback, on_failure, group)

    def stop(self) -> None:
        """Call nobody any more."""
        for phase in self._phases:
            phase.stop()

    def count(self, late: float, skipped: int) -> None:
        """Note that a phase came `late` seconds after its time, and gave up some ticks."""
        self.late_ticks += late > FRAME_SECONDS / 2
        self.skipped_ticks += skipped
        self.worst_late = max(self.worst_late, late)
        self.lateness.note(late)


class _Phase:
    """Those that are called at the same time."""

    def __init__(self, ticker: Ticker, begin: float) -> None:
        self._ticker = ticker
        self._begin = begin
        self.groups: Counter[Hashable] = Counter()
        self._members: dict[int, tuple[TickCallback, FailureCallback, Hashable]] = {}
        self._next_key = 0
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._members)

    def add(self, callback: TickCallback, on_failure: FailureCallback, group: Hashable) -> Callable[[], None]:
        key = self._next_key
        self._next_key += 1
        self._members[key] = (callback, on_failure, group)
        self.groups[group] += 1
        if self._handle is None:
            periods = math.floor((self._ticker.clock() - self._begin) / FRAME_SECONDS) + 1
            self._due = self._begin + periods * FRAME_SECONDS
            self._wait()

        return lambda: self._remove(key)

    def _remove(self, key: int) -> None:
        member = self._members.pop(key, None)
        if member is not None:
            _, _, group = member
            self.groups[group] -= 1
            if not self.groups[group]:
                del self.groups[group]

    def stop(self) -> None:
        self._members.clear()
        self.groups.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self) -> None:
        self._handle = self._ticker.loop.call_later(self._due - self._ticker.clock(), self._run)

    def _run(self) -> None:
        if not self._members:
            self._handle = None
            return
        late = max(0.0, self._ticker.clock() - self._due)
        due = int(late / FRAME_SECONDS) + 1
        ticks = min(due, MAX_CATCH_UP)
        self._ticker.count(late, due - ticks)
        self._due += due * FRAME_SECONDS
        # Before the callbacks, so that stop() within one of them is the last word.
        self._wait()
        for _ in range(ticks):
            with self._ticker.batch():
                self._tick(self._ticker.clock())

    def _tick(self, now: float) -> None:
        self._ticker.ticks += 1
        for key, (callback, on_failure, _) in list(self._members.items()):
            if key not in self._members:
                continue  # removed by a callback before it
            try:
                callback(now)
            except Exception as error:  # noqa: BLE001 - one call's fault must not stop the audio of the others
                self._remove(key)
                structlog.get_logger().exception("the audio of a call failed")
                on_failure(error)
