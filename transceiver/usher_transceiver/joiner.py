"""Joins datagrams that a relay had to cut in two (docs/wire.md section 3, *split*), without I/O.

Firefox's ClientHello has 1408 bytes and does not fit a hop of MTU 1400. The halves may come in either order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from usher_core.hop import Record, RecordFlag

WAIT_S = 0.2
"""Seconds a half waits; a hop inside a cluster takes far less than a millisecond."""
MAX_WAITING = 256
"""Halves at a time: as many clients in their handshake at once, and 180 kB at most."""


@dataclass(frozen=True, slots=True)
class _Half:
    payload: bytes
    is_last: bool
    expires: float


class Joiner:
    """Holds first or second halves until the other one comes."""

    def __init__(self) -> None:
        self.joined = 0
        self.expired = 0
        self.overflowed = 0
        self._halves: dict[tuple[Any, ...], _Half] = {}

    def __len__(self) -> int:
        return len(self._halves)

    def join(self, now: float, relay: tuple[Any, ...], record: Record) -> bytes | None:
        """Take one half; return the whole datagram once both are there.

        Args:
            now: seconds, monotonic.
            relay: where it came from; split ids are unique per relay only.
            record: with the flag SPLIT.
        """
        self._expire(now)
        key = (relay, record.path, record.split_id)
        is_last = bool(record.flags & RecordFlag.LAST_PART)
        other = self._halves.pop(key, None)
        if other is not None and other.is_last != is_last:
            self.joined += 1
            return other.payload + record.payload if is_last else record.payload + other.payload
        if len(self._halves) >= MAX_WAITING:
            self._halves.pop(next(iter(self._halves)))
            self.overflowed += 1
        self._halves[key] = _Half(record.payload, is_last, now + WAIT_S)
        return None

    def _expire(self, now: float) -> None:
        # All wait equally long, so the oldest come first.
        while self._halves:
            key, half = next(iter(self._halves.items()))
            if half.expires > now:
                return
            del self._halves[key]
            self.expired += 1
