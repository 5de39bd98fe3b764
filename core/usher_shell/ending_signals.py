"""The last moment of a program: signals that come while its loop is being closed have nothing left to end."""

from __future__ import annotations

import signal
from collections.abc import Iterable


def ignore_signals(numbers: Iterable[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
    """Ignore these from now on; to be called in the main thread when the work of its loop is over.

    Handlers of a loop that is being closed complain, and so does a signal that came before this and finds the
    descriptor closed by which it would wake the loop.
    """
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
