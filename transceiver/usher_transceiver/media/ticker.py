"""One clock for the audio of all calls: calls back every 20 ms on an absolute schedule, so it never drifts.

After a stall of the loop the missed ticks follow at once, so that media time stays right, but at most `MAX_CATCH_UP`
of them: beyond that the past is given up (and counted), because a burst would only move the stall elsewhere.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import structlog

from usher_transceiver.media.frame import FRAME_SECONDS

MAX_CATCH_UP: Final = 5

TickCallback = Callable[[float], None]
FailureCallback = Callable[[Exception], None]


class Ticker:
    """Belongs to the running event loop. Callbacks get the time of `clock` and must return at once.

    Args:
        clock: seconds, monotonic, the one that stamps packets too; None: the loop's.
        batch: entered around the callbacks of a tick: what they send leaves together.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        batch: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.ticks = 0
        self.late_ticks = 0
        """Came more than half a frame after their time."""
        self.skipped_ticks = 0
        """Given up after a stall."""
        self.worst_late = 0.0
        """Seconds, since the beginning."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._batch = batch
        self._members: dict[int, tuple[TickCallback, FailureCallback]] = {}
        self._next_key = 0
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def add(self, callback: TickCallback, on_failure: FailureCallback) -> Callable[[], None]:
        """Call back at every tick from now on; return a function that ends it, harmless to call twice.

        A callback that raises is removed, so that one broken call cannot fill the log or slow the others;
        `on_failure` gets the exception and should end that call.
        """
        key = self._next_key
        self._next_key += 1
        self._members[key] = (callback, on_failure)
        if self._handle is None:
            self._due = self._loop.time() + FRAME_SECONDS
            self._handle = self._loop.call_at(self._due, self._run)

        def remove() -> None:
            self._members.pop(key, None)

        return remove

    def stop(self) -> None:
        """Call nobody any more."""
        self._members.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        now = self._loop.time()
        late = now - self._due
        due = int(late / FRAME_SECONDS) + 1 if late > 0 else 1
        self.late_ticks += late > FRAME_SECONDS / 2
        self.worst_late = max(self.worst_late, late)
        ticks = min(due, MAX_CATCH_UP)
        self.skipped_ticks += due - ticks
        self._due += due * FRAME_SECONDS
        # Before the callbacks, so that stop() within one of them is the last word.
        self._handle = self._loop.call_at(self._due, self._run) if self._members else None
        for _ in range(ticks):
            with self._batch():
                self._tick(self._clock())

    def _tick(self, now: float) -> None:
        self.ticks += 1
        for key, (callback, on_failure) in list(self._members.items()):
            if key not in self._members:
                continue  # removed by a callback before it
            try:
                callback(now)
            except Exception as error:  # noqa: BLE001 - one call's fault must not stop the audio of the others
                self._members.pop(key, None)
                structlog.get_logger().exception("the audio of a call failed")
                on_failure(error)
