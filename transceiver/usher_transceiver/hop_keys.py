"""The keys of this transceiver, read again when their file changes (docs/wire.md section 1)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import structlog

from usher_core.errors import LocalError
from usher_core.hop import HopDatagram
from usher_core.ids import Route
from usher_core.keys import HopKeyRing, IceKeyRing, parse_key_file
from usher_core.ufrag import RANDOM_LENGTH

log = structlog.get_logger()


class TransceiverKeys:
    """Makes ufrags and authenticates hop datagrams. Raises LocalError when the file can't be used at the start.

    Args:
        path: of the key file.
        route: ours.
        wall: Unix seconds.
    """

    def __init__(self, path: Path, route: Route, wall: Callable[[], float]) -> None:
        self._path = path
        self._route = route
        self._wall = wall
        self._stamp: tuple[int, int] = (0, 0)
        self.failures = 0
        self._load()
        self.make_ufrag(lambda _: False)  # Fails now rather than at the first call.

    def _load(self) -> None:
        try:
            stat = self._path.stat()
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise LocalError(f"the key file {self._path} can't be read: {error.strerror}", "see --keys-file") from None
        parsed = parse_key_file(text)
        ice, hop = IceKeyRing(parsed.ice), HopKeyRing(parsed.hop)
        active = hop.active(self._wall())
        self._ice, self._hop, self._active = ice, hop, active
        self._stamp = (stat.st_mtime_ns, stat.st_size)

    def refresh(self) -> None:
        """Read the file again if it changed, and choose the active key again. A broken file leaves the last good
        keys.
        """
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._stamp:
                self._load()
                log.info("keys read again", file=str(self._path))
            else:
                self._active = self._hop.active(self._wall())
        except (LocalError, OSError) as error:
            self.failures += 1
            log.warning("the key file is unusable; the last good keys stay in use", problem=str(error))

    @property
    def active(self) -> tuple[int, bytes]:
        """Id and key that authenticate what we send."""
        return self._active

    def verify(self, datagram: HopDatagram) -> bool:
        """Tell whether one of our hop keys made the MAC."""
        return self._hop.verify(datagram)

    def make_ufrag(self, is_taken: Callable[[bytes], bool]) -> tuple[str, str]:
        """Return a new (ufrag, password); drawn again while it names a live session. Raises LocalError without a
        key.
        """
        while True:
            ufrag, password = self._ice.make(self._route, secrets.token_bytes(RANDOM_LENGTH), self._wall())
            if not is_taken(ufrag.encode("ascii")):
                return ufrag, password
