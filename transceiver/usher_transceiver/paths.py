"""Where a client may be reached: paths, and how many of them are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from usher_core.ids import ClientPath

ALIVE_S = 5.0
"""Seconds for which a path's relay is told that the client is there (docs/wire.md section 3, *alive*)."""
QUIET_S = 7.0
"""Seconds after which a path without a sign of life is quiet; its address may then move to another session."""
MAX_PATHS = 16
"""Per session: Chromium uses 2 or 3 sockets, a roaming phone some more."""
AMPLIFICATION = 3
"""Bytes sent per byte received, towards an address that no check has confirmed (as RFC 9000 section 8.1)."""

SocketAddress = tuple[Any, ...]
"""An address as a socket gives it: (host, port) of IPv4, four fields of IPv6."""

NEVER = float("-inf")


class Via(NamedTuple):
    """The way back to a client: the relay's address and the return slot it asked to have echoed."""

    relay: SocketAddress
    return_slot: int = 0


@dataclass(slots=True)
class Path:
    """One way to the client. Times are seconds, monotonic.

    `checked`: an unseen valid check came from here. `received` and `sent` count UDP payload bytes; `sent_data` is the
    part of `sent` that was DTLS.
    """

    address: ClientPath
    via: Via
    checked: bool = False
    last_check: float = NEVER
    last_authenticated: float = NEVER
    received: int = 0
    sent: int = 0
    sent_data: int = 0

    @property
    def last_seen(self) -> float:
        """When the client last proved to be here."""
        return max(self.last_check, self.last_authenticated)

    def is_alive(self, now: float) -> bool:
        """Whether the relay may be told that the client is here."""
        return now - self.last_seen <= ALIVE_S

    def is_quiet(self, now: float) -> bool:
        """Whether the client has been silent here for so long that something else may take over."""
        return now - self.last_seen >= QUIET_S

    def spend(self, size: int, *, is_data: bool) -> bool:
        """Tell whether `size` bytes may be sent here, and count them if so.

        Audio goes before SCTP: of the 3 bytes that an unconfirmed address may get per byte, data gets one at most.
        """
        if not self.checked:
            if self.sent + size > AMPLIFICATION * self.received:
                return False
            if is_data and self.sent_data + size > self.received:
                return False
        self.sent += size
        if is_data:
            self.sent_data += size
        return True


class PathTable:
    """The paths of one session, at most `limit`; the longest silent one that is not in use makes room.

    Args:
        on_evict: told each path that had to go.
    """

    def __init__(self, on_evict: Callable[[Path], None], limit: int = MAX_PATHS) -> None:
        self._paths: dict[ClientPath, Path] = {}
        self._on_evict = on_evict
        self._limit = limit

    def __iter__(self) -> Iterator[Path]:
        return iter(self._paths.values())

    def __len__(self) -> int:
        return len(self._paths)

    def get(self, address: ClientPath) -> Path | None:
        """Return the path of that address, or None."""
        return self._paths.get(address)

    def remove(self, address: ClientPath) -> Path | None:
        """Forget that address; return its path, if there was one."""
        return self._paths.pop(address, None)

    def add(self, address: ClientPath, via: Via, keep: tuple[Path | None, ...]) -> Path:
        """Return the path of that address, a new one if there is none. Paths in `keep` are never evicted."""
        path = self._paths.get(address)
        if path is None:
            if len(self._paths) >= self._limit:
                victim = min((path for path in self if path not in keep), key=lambda path: path.last_seen)
                del self._paths[victim.address]
                self._on_evict(victim)
            path = self._paths[address] = Path(address, via)
        return path
