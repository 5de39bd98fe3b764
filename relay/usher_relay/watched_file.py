"""A file that is read again when it changes; its last good content stays when it is lost or broken.

Rules:
* Changed means another inode, size or time of change: so a file that was written over, renamed into place, or swapped
  by a symbolic link (as Kubernetes does for ConfigMaps and Secrets) is seen alike.
* File systems tell times apart by some milliseconds only, so a file that changed within the last second is read again.
* One log line per change of state, not per look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from usher_core.errors import LocalError
from usher_relay.source_status import SourceStatus

log = structlog.get_logger()

ContentT = TypeVar("ContentT")
LOOK_EVERY = 0.1
SETTLED_AFTER = 1.0
MAX_SIZE = 64 << 20


class WatchedFile(Generic[ContentT]):
    """A file and what its text means.

    Args:
        path: where it is.
        parse: turns its text into content; raises LocalError when it is wrong.
        what: its name in the log, such as "route file".
    """

    def __init__(self, path: Path, parse: Callable[[str], ContentT], what: str) -> None:
        self._path = path
        self._parse = parse
        self._what = what
        self._seen: tuple[int, int, int] | None = None
        self._text: str | None = None
        self._good_at: float | None = None
        self._fault = ""

    def status(self) -> SourceStatus:
        """Return how the file is."""
        age = None if self._good_at is None else max(0.0, time.monotonic() - self._good_at)
        return SourceStatus(str(self._path), self._good_at is not None, age, self._fault)

    async def watch(self, accept: Callable[[ContentT], None]) -> None:
        """Look every 0.1 s and give new content to `accept`, until cancelled.

        `accept` may raise LocalError when the content is of no use.
        """
        while True:
            self.look(accept)
            await asyncio.sleep(LOOK_EVERY)

    def look(self, accept: Callable[[ContentT], None]) -> None:
        """Read the file if it may have changed."""
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if seen != self._seen:
                self._seen = seen if time.time() - stat.st_mtime > SETTLED_AFTER else None
                self._read(stat.st_size, accept)
        except OSError as error:
            self._seen = None
            self._lost(f"cannot read {self._path}: {error.strerror}")
        except UnicodeDecodeError:
            self._lost(f"{self._path} is no UTF-8 text")
        except LocalError as error:
            self._lost(str(error))
        if not self._fault:
            self._good_at = time.monotonic()

    def _read(self, size: int, accept: Callable[[ContentT], None]) -> None:
        if size > MAX_SIZE:
            raise LocalError(f"{self._path} has {size} bytes, more than {MAX_SIZE}")
        text = self._path.read_text(encoding="utf-8")
        if text != self._text or self._fault:
            accept(self._parse(text))
            log.info("file read", what=self._what, path=str(self._path))
        self._text = text
        self._fault = ""

    def _lost(self, fault: str) -> None:
        if fault == self._fault:
            return
        self._fault = fault
        keeps = "the last good one stays in use" if self._good_at is not None else "waiting for it"
        log.error("file lost", what=self._what, error=fault, now=keeps)
