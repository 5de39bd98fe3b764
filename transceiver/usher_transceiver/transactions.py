"""What has been asked before: the memory of STUN transaction ids (docs/wire.md section 5, rule 3).

STUN integrity covers neither the source address nor the time, so a recorded check stays valid for ever. Each id is
therefore remembered together with the path it first came by, as keyed hashes (8 bytes of the id, 4 of the path): a
peer that can't know the key can't make ids collide.
"""

from __future__ import annotations

import struct
from array import array
from enum import Enum, auto

from siphashc import siphash

from usher_core.ids import ClientPath

MAX_TRANSACTIONS = 65_536
"""Per session; 45 hours of checks every 2.5 s."""
_FIRST_PLACES = 64

_PATH = struct.Struct("!16sHH")


class Seen(Enum):
    """What is known about a transaction id."""

    NEW = auto()
    SAME_PATH = auto()
    OTHER_PATH = auto()
    MEMORY_FULL = auto()


class TransactionMemory:
    """Remembers up to `limit` transaction ids and never forgets one.

    A table with open addressing in plain arrays: 12 bytes a place, at most 3 of 4 places taken, so a full one has
    1.5 MB; a dict would have 7.

    Args:
        key: 16 secret random bytes.
        limit: how many ids are kept; further ones are MEMORY_FULL, known ones are still recognised.
    """

    def __init__(self, key: bytes, limit: int = MAX_TRANSACTIONS) -> None:
        self._key = key
        self._limit = limit
        self._count = 0
        self._make_table(_FIRST_PLACES)

    def __len__(self) -> int:
        return self._count

    def see(self, transaction_id: bytes, path: ClientPath) -> Seen:
        """Remember the id and tell whether it was known, and from where."""
        digest = siphash(self._key, transaction_id) or 1
        path_digest = siphash(self._key, _PATH.pack(path.address, path.port, path.listener)) & 0xFFFF_FFFF
        place = self._place(digest)
        if self._ids[place]:
            return Seen.SAME_PATH if self._paths[place] == path_digest else Seen.OTHER_PATH
        if self._count >= self._limit:
            return Seen.MEMORY_FULL
        self._ids[place], self._paths[place] = digest, path_digest
        self._count += 1
        if self._count * 4 > len(self._ids) * 3:
            self._grow()
        return Seen.NEW

    def _place(self, digest: int) -> int:
        """Where the id is, or would be."""
        ids, mask = self._ids, len(self._ids) - 1
        place = digest & mask
        while (there := ids[place]) and there != digest:
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        old = zip(self._ids, self._paths, strict=True)
        self._make_table(2 * len(self._ids))
        for digest, path_digest in old:
            if digest:
                place = self._place(digest)
                self._ids[place], self._paths[place] = digest, path_digest

    def _make_table(self, places: int) -> None:
        self._ids = array("Q", bytes(8 * places))
        self._paths = array("I", bytes(4 * places))
