"""SIGUSR1 to `usher call`: hang up now, and report. Ctrl-C ends it without a report."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from usher_cli.call.api import CallError

T = TypeVar("T")

TOO_EARLY = "we were told to hang up before it was connected"


@contextlib.contextmanager
def hang_up_signal() -> Iterator[asyncio.Event]:
    """Yield the event that SIGUSR1 sets. To be entered within the loop of the calls."""
    loop = asyncio.get_running_loop()
    hang_up = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, hang_up.set)
    try:
        yield hang_up
    finally:
        # A late one must not end the process, which has a report to print.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


async def first_of(*events: asyncio.Event, timeout: float) -> None:  # noqa: ASYNC109  (not an error here)
    """Wait until one of the events is set, or for `timeout` seconds."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def unless_told(hang_up: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, a part of the set-up of a call. Raises CallError when `hang_up` is set before."""
    working = asyncio.ensure_future(work)
    told = asyncio.create_task(hang_up.wait())
    try:
        await asyncio.wait((working, told), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise CallError(TOO_EARLY)
    finally:
        told.cancel()
        working.cancel()
        # It may have a call to hang up.
        await asyncio.gather(working, return_exceptions=True)
