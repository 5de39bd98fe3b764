"""Runs the loop of a command that Ctrl-C or SIGTERM ends in order."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

_ENDING = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. SIGINT or SIGTERM cancels it; a second one ends the process at once.

    Raises SystemExit with 130 or 143, as shells count a process that a signal ended, once cancelled work has ended.
    """
    received: list[signal.Signals] = []

    async def watched() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)

        def on_signal(number: signal.Signals) -> None:
            received.append(number)
            task.cancel()
            _let_signals_end_the_process()

        for number in _ENDING:
            loop.add_signal_handler(number, on_signal, number)
        try:
            return await task
        finally:
            # The handlers of a loop that is being closed complain.
            _let_signals_end_the_process()

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        sys.exit(128 + received[0])


def _let_signals_end_the_process() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
