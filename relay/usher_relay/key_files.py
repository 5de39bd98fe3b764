"""The key files of a relay: its own and those of its trunks, which are one set of keys.

Rules:
* Each file is parsed by itself, and then all are judged together whenever one of them changes. So what is in use once
  they fit depends on what they hold, and not on which of them changed first.
* While they do not fit, --keys-file counts before those of trunks. Of a trunk's file that contradicts the others its
  last content in use stays as long as it fits; else nothing of it is used. The others are not held up by it.
* A fault of the set is told by the status of the file that waits, and logged once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from usher_core.errors import LocalError
from usher_core.keys import KeyFile, merge_key_files, parse_key_file
from usher_relay.state import RelayKeys
from usher_shell.watched_file import SourceStatus, WatchedFile

log = structlog.get_logger()

LOOK_EVERY_S = 0.1
_NOTHING = KeyFile(version=1)
_OWN = 0
"""Place of --keys-file; those of trunks follow."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Why a file that is good by itself is not used, and since when (of `time.monotonic`)."""

    fault: str
    since: float


class RelayKeyFiles:
    """The key files, and who takes what they say together.

    Raises LocalError when --keys-file can't be used at the start. A file of a trunk that can't, or holds more than keys
    of trunks, adds nothing.
    """

    def __init__(self, own: Path, of_trunks: Sequence[str]) -> None:
        self._takers: Sequence[Callable[[KeyFile], None]] = ()
        self._files = [
            WatchedFile(own, _parse_own, "key file", fix="make one with `usher keys new`"),
            *(WatchedFile(Path(path), _parse_of_trunk, "trunk key file", until_there=_NOTHING) for path in of_trunks),
        ]
        self._used = [self._files[_OWN].value, *(_NOTHING for _ in of_trunks)]
        self._waiting: dict[int, _Waiting] = {}
        self._judge()

    @property
    def value(self) -> KeyFile:
        """All keys in use."""
        return merge_key_files(self._used)

    @property
    def with_trunks(self) -> bool:
        """Whether there are files of trunks."""
        return len(self._files) > 1

    async def follow(self, takers: Sequence[Callable[[KeyFile], None]]) -> None:
        """Give each of `takers` in turn what the files say, until cancelled. One raises LocalError to refuse it."""
        self._takers = takers
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Read the files that changed, and judge all of them again if one did."""
        changed = [file.look() for file in self._files]
        if any(changed):
            self._judge()

    def status(self) -> SourceStatus:
        """Return how --keys-file is."""
        return self._status_of(_OWN)

    def status_of_trunks(self) -> SourceStatus:
        """Return how the key files of trunks are: the first that is wrong, or the last one."""
        found = [self._status_of(place) for place in range(1, len(self._files))]
        return next((each for each in found if each.fault), found[-1])

    def _status_of(self, place: int) -> SourceStatus:
        found = self._files[place].status()
        waiting = self._waiting.get(place)
        if waiting is None or found.fault:
            return found
        return replace(found, fault=waiting.fault, age=time.monotonic() - waiting.since)

    def _judge(self) -> None:
        read = [file.value for file in self._files]
        used, faults = _what_fits(read, self._used)
        refusal = self._give(used)
        if refusal:
            # The fault is of what only the relay's own file can hold; what those of trunks say is not held up by it.
            used, faults = _what_fits([self._used[_OWN], *read[1:]], self._used)
            faults[_OWN] = refusal
            self._give(used)
        self._tell(faults)

    def _give(self, used: list[KeyFile]) -> str:
        """Put a set of files in use, unless who takes it refuses: then return why."""
        keys = merge_key_files(used)
        try:
            for take in self._takers:
                take(keys)
        except LocalError as error:
            return str(error)
        self._used = used
        return ""

    def _tell(self, faults: dict[int, str]) -> None:
        before, now = self._waiting, time.monotonic()
        self._waiting = {}
        for place, fault in faults.items():
            path = self._files[place].status().name
            same = before.get(place)
            self._waiting[place] = _Waiting(f"{path}: {fault}", now if same is None else same.since)
            if same is None or same.fault != self._waiting[place].fault:
                log.error("key file is not used", path=path, error=fault, now="what fitted before stays in use")
        for place in before.keys() - faults.keys():
            log.info("key file is used again", path=self._files[place].status().name)


def _parse_own(text: str) -> KeyFile:
    file = parse_key_file(text)
    RelayKeys.of(file)
    return file


def _parse_of_trunk(text: str) -> KeyFile:
    """Raise LocalError also when a trunk's file holds what would change how the relay speaks with its own cluster."""
    file = parse_key_file(text)
    if file.store or file.seal or any(key.scope == "local" for key in file.hop):
        raise LocalError(
            "the key file of a trunk holds local hop, store or seal keys",
            "leave only `ice` keys and the trunk's `hop` keys in it, and give the others by --keys-file",
        )
    return file


def _what_fits(read: Sequence[KeyFile], used: Sequence[KeyFile]) -> tuple[list[KeyFile], dict[int, str]]:
    """Return what to use of the files that were read, and by place the faults of those that have to wait.

    The first of `read` is of use by itself. `used` is what was in use of each before.
    """
    if not _contradiction(read):
        return list(read), {}
    fitting = [read[_OWN]]
    for file in used[1:]:
        fitting.append(_NOTHING if _contradiction([*fitting, file]) else file)
    left = len(read) + 1
    while len(faults := _take_what_fits(read, fitting)) < left:  # what was taken may have made room for another
        left = len(faults)
    return fitting, faults


def _take_what_fits(read: Sequence[KeyFile], fitting: list[KeyFile]) -> dict[int, str]:
    faults = {}
    for place, file in enumerate(read):
        if file is not fitting[place]:
            fault = _contradiction([*fitting[:place], file, *fitting[place + 1 :]])
            if fault:
                faults[place] = f"it contradicts another key file: {fault}"
            else:
                fitting[place] = file
    return faults


def _contradiction(files: Sequence[KeyFile]) -> str:
    try:
        RelayKeys.of(merge_key_files(files))
    except LocalError as error:
        return error.message
    return ""
