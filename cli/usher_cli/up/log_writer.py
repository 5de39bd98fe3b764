"""The one log of `usher up`: lines of all programs and its own, written by a thread.

Whoever reads our stderr may stop (Ctrl-S in a terminal, `2>&1 | less`). A write would then block the loop that empties
the children's pipes, they would block in their own logs, and calls with them. So lines wait in a bounded queue, and
are dropped and counted when it is full.
"""

from __future__ import annotations

import contextlib
import io
import queue
import threading
from typing import BinaryIO

MAX_WAITING = 10_000
"""Lines; some MB at most."""
CLOSE_WITHIN_S = 0.3


class LogWriter(io.TextIOBase):
    """Writes lines to a stream without ever waiting for it. As a text stream it takes the lines of `usher up` itself.

    Args:
        stream: where the lines go.
    """

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._dropped = 0
        self._ending = threading.Event()
        # A daemon, because a write that blocks can't be given up.
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def write_line(self, name: str, line: bytes) -> None:
        """Write a line of a program behind its name."""
        self._put(name.encode("utf-8") + b" | " + line.rstrip(b"\r\n") + b"\n")

    def write(self, text: str) -> int:
        """Write text of our own."""
        self._put(text.encode("utf-8"))
        return len(text)

    @property
    def is_writing(self) -> bool:
        """Whether the thread still has, or may get, something to write."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Write what waits, as far as the reader takes it within 0.3 s."""
        if not self.closed:
            self._ending.set()
            with contextlib.suppress(queue.Full):
                self._lines.put_nowait(None)
            self._thread.join(CLOSE_WITHIN_S)
        super().close()

    def _put(self, line: bytes) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _next(self) -> bytes | None:
        """Return the next line; None at the end, also where the queue was too full for its mark."""
        if self._ending.is_set() and self._lines.empty():
            return None
        return self._lines.get()

    def _write_all(self) -> None:
        # A reader that went away (`usher up 2>&1 | head`) must not end the fleet.
        while (line := self._next()) is not None:
            if self._dropped:
                line = b"(%d lines were dropped: nobody read them)\n%s" % (self._dropped, line)
                self._dropped = 0
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(line)
                self._stream.flush()
