"""SIGUSR1 to `usher call`: hang up now, and report. Ctrl-C ends it without a report."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator


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
