"""An event loop whose time is a number: it never sleeps, so a minute of timers passes in a moment."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _NoWaiting(selectors.DefaultSelector):
    """Turns waiting into passing time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`stall` makes time pass within a callback, as a slow one would."""

    def __init__(self) -> None:
        self._virtual = _NoWaiting()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def stall(self, seconds: float) -> None:
        self._virtual.now += seconds


def run_virtual(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)
