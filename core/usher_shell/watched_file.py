"""A file that is read again when it changes; its last good content stays in use while it is lost or broken.

Rules:
* Changed means another inode, size or time of change: so a file that was written over, renamed into place, or swapped
  by a symbolic link (as Kubernetes does for ConfigMaps and Secrets) is seen alike.
* Only a regular file, or a symbolic link to one: a pipe has no content to read again, and opening it may wait for ever.
* File systems tell times apart by some milliseconds only, so a file that changed within the last second is read again.
* Every fault names the path.
* One log line per change of state, not per look.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from usher_core.errors import LocalError

log = structlog.get_logger()

ContentT = TypeVar("ContentT")
SETTLED_AFTER_S = 1.0
MAX_BYTES = 64 << 20
"""A route file with 100,000 transceivers has some 20 MB."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source is now.

    `loaded`: it was good at least once. `age`: seconds since it was last known to be good (0 or a little more while it
    is), None before the first time. `fault`: what is wrong now, or "".
    """

    name: str
    loaded: bool
    age: float | None
    fault: str


class WatchedFile(Generic[ContentT]):
    """A file and what its text means, in `value`. Read at once, and again by each `look`.

    Args:
        path: where it is.
        parse: turns its text into content; raises LocalError when it is wrong.
        what: its name in the log, such as "route file".
        fix: what a person can do when it can't be read, for the error.
        until_there: the value until the file can be read for the first time; None makes that an error now.

    Raises LocalError when the file can't be used at the start, unless `until_there` is given.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[str], ContentT],
        what: str,
        fix: str = "",
        until_there: ContentT | None = None,
    ) -> None:
        self._path = path
        self._parse = parse
        self._what = what
        self._fix = fix
        self._seen: tuple[int, int, int] | None = None
        self._text: str | None = None
        self._good_at: float | None = None
        self._fault = ""
        if until_there is not None:
            self.value = until_there
            self.look()
        else:
            self._read()

    def look(self) -> bool:
        """Read the file again if it may have changed; tell whether `value` is new. Raises nothing for a bad file."""
        try:
            return self._read()
        except LocalError as error:
            self._lost(str(error))
            return False

    def status(self) -> SourceStatus:
        """Return how the file was at the last look."""
        age = None if self._good_at is None else max(0.0, time.monotonic() - self._good_at)
        return SourceStatus(str(self._path), self._good_at is not None, age, self._fault)

    @property
    def is_wrong(self) -> bool:
        """Whether the file is lost or broken, so that older content is in use."""
        return bool(self._fault)

    def _read(self) -> bool:
        try:
            found = self._path.stat()
            if not stat.S_ISREG(found.st_mode):
                self._seen = None
                raise LocalError(
                    f"the {self._what} {self._path} is {_kind(found.st_mode)}, and has to be a regular file", self._fix
                )
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if seen == self._seen:
                if not self._fault:
                    self._good_at = time.monotonic()
                return False
            self._seen = seen if time.time() - found.st_mtime > SETTLED_AFTER_S else None
            text = self._read_text(found.st_size)
        except OSError as error:
            self._seen = None
            raise LocalError(f"the {self._what} {self._path} can't be read: {error.strerror}", self._fix) from None
        except UnicodeDecodeError:
            raise LocalError(f"the {self._what} {self._path} is no UTF-8 text") from None
        is_new = text != self._text
        if is_new:
            self.value = self._parse_text(text)
            self._text = text
        if is_new or self._fault:
            log.info("file read", what=self._what, path=str(self._path))
        self._fault = ""
        self._good_at = time.monotonic()
        return is_new

    def _read_text(self, size: int) -> str:
        if size > MAX_BYTES:
            raise LocalError(f"the {self._what} {self._path} has {size} bytes, more than {MAX_BYTES}")
        return self._path.read_text(encoding="utf-8")

    def _parse_text(self, text: str) -> ContentT:
        try:
            return self._parse(text)
        except LocalError as error:
            raise LocalError(f"{self._path}: {error.message}", error.fix) from None

    def _lost(self, fault: str) -> None:
        if fault == self._fault:
            return
        self._fault = fault
        keeps = "the last good one stays in use" if self._good_at is not None else "waiting for it"
        log.error("file lost", what=self._what, error=fault, now=keeps)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket or a device"
