"""A map whose entries go after a fixed time, and the oldest when it is full; without I/O."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ExpiringMap(Generic[K, V]):
    """Entries live `life` seconds from when they were put; at most `limit` of them."""

    def __init__(self, life: float, limit: int) -> None:
        self._life = life
        self._limit = limit
        self._entries: dict[K, tuple[float, V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, now: float, key: K) -> V | None:
        """Return the value, or None when there is none or it has expired."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and entry[0] > now else None

    def put(self, now: float, key: K, value: V) -> None:
        """Set a value; its life begins now."""
        self._entries.pop(key, None)
        # All live equally long, so the oldest come first.
        while self._entries:
            oldest = next(iter(self._entries))
            if self._entries[oldest][0] > now and len(self._entries) < self._limit:
                break
            del self._entries[oldest]
        self._entries[key] = (now + self._life, value)
