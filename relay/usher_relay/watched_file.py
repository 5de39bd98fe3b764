"""A file that is read again when it changes; its last good content stays when it is lost or broken.

Rules:
* Changed means another inode, size or time of change: so a file that was written over, renamed into place, or swapped
  by a symbolic link (as Kubernetes does for ConfigMaps and Secrets) is seen alike.
* A half-written file is broken for a moment; it is read again at the next look, because its time then changes.
* One log line per change of state, not per look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from usher_core.errors import LocalError

log = structlog.get_logger()

ContentT = TypeVar("ContentT")
LOOK_EVERY = 0.1
MAX_SIZE = 64 << 20


class WatchedFile(Generic[ContentT]):
    """A file and what its text means.

    Args:
        path: where it is.
        parse: turns its text into content; raises LocalError when it is wrong.
        what: its name in the log, such as "route file".
        accept: takes new content; may raise LocalError when it is of no use.
    """

    def __init__(
        self, path: Path, parse: Callable[[str], ContentT], what: str, accept: Callable[[ContentT], None]
    ) -> None:
        self._path = path
        self._parse = parse
        self._what = what
        self._accept = accept
        self._seen: tuple[int, int, int] | None = None
        self._good_at: float | None = None
        self.fault = ""

    @property
    def loaded(self) -> bool:
        """Whether it was good at least once."""
        return self._good_at is not None

    def age(self, now: float) -> float | None:
        """Return the seconds since it was last good, None when it never was. `now` is monotonic."""
        return None if self._good_at is None else max(0.0, now - self._good_at)

    def look(self, now: float) -> None:
        """Read the file if it changed."""
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if seen != self._seen:
                self._read(stat.st_size)
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            self._seen = None
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            self._report(f"cannot read {self._path}: {reason}")
        except LocalError as error:
            self._seen = seen
            self._report(str(error))
        else:
            if not self.fault:
                self._good_at = now

    async def watch(self, clock: Callable[[], float]) -> None:
        """Look every 0.1 s, until cancelled."""
        while True:
            self.look(clock())
            await asyncio.sleep(LOOK_EVERY)

    def _read(self, size: int) -> None:
        if size > MAX_SIZE:
            raise LocalError(f"{self._path} has {size} bytes, more than {MAX_SIZE}")
        self._accept(self._parse(self._path.read_text(encoding="utf-8")))
        log.info("file read", what=self._what, path=str(self._path))
        self.fault = ""

    def _report(self, fault: str) -> None:
        if fault == self.fault:
            return
        self.fault = fault
        keeps = "the last good one stays in use" if self.loaded else "waiting for it"
        log.error("file lost", what=self._what, error=fault, now=keeps)
