"""A file that is read again when it changes; what it said last stays in use while it is missing or wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from usher_core.errors import LocalError

T = TypeVar("T")
log = structlog.get_logger()

MAX_BYTES = 64 * 1024 * 1024  # a route file with 100,000 transceivers has some 20 MB


class WatchedFile(Generic[T]):
    """The parsed value of a file.

    Args:
        path: the file.
        parse: makes the value of the text; raises LocalError.
        missing: the value while the file was never there; None makes a missing file an error.

    Raises LocalError when the file can't be read or parsed at the start.
    """

    def __init__(self, path: Path, parse: Callable[[str], T], missing: T | None = None) -> None:
        self._path = path
        self._parse = parse
        self._seen: object = None
        self._fault = ""
        if missing is not None and not path.exists():
            log.warning("file is missing, waiting for it", path=str(path))
            self.value = missing
            return
        self.value = self._read()

    def refresh(self) -> bool:
        """Read the file again if it changed; tell whether there is a new value. Never raises for a bad file."""
        try:
            if self._stamp() == self._seen:
                return False
            self.value = self._read()
        except LocalError as error:
            if str(error) != self._fault:  # once per fault, not once per look
                log.error("file is wrong, its last good content stays in use", path=str(self._path), error=str(error))
            self._fault = str(error)
            return False
        self._fault = ""
        return True

    @property
    def is_wrong(self) -> bool:
        """Whether the file is missing or wrong by now, so that older content is in use."""
        return bool(self._fault)

    def _stamp(self) -> object:
        try:
            status = self._path.stat()
        except OSError as error:
            self._seen = None  # it may come back as it was
            raise LocalError(f"can't read {self._path}: {error.strerror}") from None
        # A Secret or ConfigMap is swapped by a symbolic link: another inode, perhaps of the same age and size.
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> T:
        stamp = self._stamp()
        self._seen = stamp
        try:
            with self._path.open(encoding="utf-8") as file:
                text = file.read(MAX_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise LocalError(f"can't read {self._path}: {reason}") from None
        if len(text) > MAX_BYTES:
            raise LocalError(f"{self._path} is larger than {MAX_BYTES} bytes")
        return self._parse(text)
