"""What has been asked before: the memory of STUN transaction ids (docs/wire.md section 5, rule 3).

STUN integrity covers neither the source address nor the time, so a recorded check stays valid for ever. Each id is
therefore remembered together with the path it first came by, as 8-byte keyed hashes: a peer that can't know the key
can't make ids collide.
"""

from __future__ import annotations

import struct
from enum import Enum, auto

from siphashc import siphash

from usher_core.ids import ClientPath

MAX_TRANSACTIONS = 65_536
"""Per generation; 45 hours of checks every 2.5 s."""

_PATH = struct.Struct("!16sHH")


class Seen(Enum):
    """What is known about a transaction id."""

    NEW = auto()
    SAME_PATH = auto()
    OTHER_PATH = auto()
    MEMORY_FULL = auto()


class TransactionMemory:
    """Remembers up to `limit` transaction ids and never forgets one.

    Args:
        key: 16 secret random bytes.
        limit: how many ids are kept; further ones are MEMORY_FULL, known ones are still recognised.
    """

    def __init__(self, key: bytes, limit: int = MAX_TRANSACTIONS) -> None:
        self._key = key
        self._limit = limit
        self._first_path: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._first_path)

    def see(self, transaction_id: bytes, path: ClientPath) -> Seen:
        """Remember the id and tell whether it was known, and from where."""
        digest = siphash(self._key, transaction_id)
        path_digest = siphash(self._key, _PATH.pack(path.address, path.port, path.listener))
        first = self._first_path.get(digest)
        if first is not None:
            return Seen.SAME_PATH if first == path_digest else Seen.OTHER_PATH
        if len(self._first_path) >= self._limit:
            return Seen.MEMORY_FULL
        self._first_path[digest] = path_digest
        return Seen.NEW
