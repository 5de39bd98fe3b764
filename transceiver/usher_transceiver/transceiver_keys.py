"""The keys of this transceiver, read again when their file changes (docs/wire.md section 1)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from usher_core.errors import LocalError
from usher_core.hop import HopDatagram
from usher_core.ids import Route
from usher_core.keys import HeldKey, HopKeyRing, IceKeyRing, held_keys, parse_key_file
from usher_core.ufrag import RANDOM_LENGTH
from usher_shell.watched_file import WatchedFile

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Rings:
    ice: IceKeyRing
    hop: HopKeyRing
    held: tuple[HeldKey, ...]


class TransceiverKeys:
    """Makes ufrags and authenticates hop datagrams. Raises LocalError when the file can't be used at the start.

    Args:
        path: of the key file.
        route: ours.
        wall: Unix seconds.
    """

    def __init__(self, path: Path, route: Route, wall: Callable[[], float]) -> None:
        self._route = route
        self._wall = wall
        self._file = WatchedFile(path, self._parse, "key file", fix="make one with `usher keys new`")
        self._active = self._file.value.hop.active(wall())

    def _parse(self, text: str) -> _Rings:
        parsed = parse_key_file(text)
        rings = _Rings(IceKeyRing(parsed.ice), HopKeyRing(parsed.hop), held_keys(parsed))
        # A file without a key to use now is a broken one: it fails here, and not at the next call.
        rings.hop.active(self._wall())
        rings.ice.make(self._route, secrets.token_bytes(RANDOM_LENGTH), self._wall())
        return rings

    def refresh(self) -> None:
        """Read the file again if it changed, and choose the active key again."""
        self._file.look()
        try:
            self._active = self._file.value.hop.active(self._wall())
        except LocalError as error:
            log.error("no hop key is active any more; the last one stays in use", error=str(error))

    @property
    def is_wrong(self) -> bool:
        """Whether the file is lost or broken, so that older keys are in use."""
        return self._file.is_wrong

    @property
    def held(self) -> tuple[HeldKey, ...]:
        """What to report of the keys in use."""
        return self._file.value.held

    @property
    def active(self) -> tuple[int, bytes]:
        """Id and key that authenticate what we send."""
        return self._active

    def verify(self, datagram: HopDatagram) -> bool:
        """Tell whether one of our hop keys made the MAC."""
        return self._file.value.hop.verify(datagram)

    def make_ufrag(self, is_taken: Callable[[bytes], bool]) -> tuple[str, str]:
        """Return a new (ufrag, password); drawn again while it names a live session. Raises LocalError without a
        key.
        """
        while True:
            ufrag, password = self._file.value.ice.make(self._route, secrets.token_bytes(RANDOM_LENGTH), self._wall())
            if not is_taken(ufrag.encode("ascii")):
                return ufrag, password
