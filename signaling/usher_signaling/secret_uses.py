"""Ephemeral keys that may place one call only (`--secrets-once`), and have.

Rules:
* The first to claim a key may use it. One that could not place its call gives it back.
* With Redis all replicas have one memory. While Redis is away, and without it, each replica has its own: then a key
  works once per replica.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

from usher_signaling.auth import EphemeralKey
from usher_signaling.redis_store import RedisStore

MAX_USED = 100_000
"""Used keys remembered here. Beyond it the oldest may work again, until it expires."""
FORGET_AT_ONCE = 4


class SecretUses:
    """Used ephemeral keys. `clock` gives Unix seconds."""

    def __init__(self, redis: RedisStore | None, clock: Callable[[], float], max_used: int = MAX_USED) -> None:
        self._redis = redis
        self._clock = clock
        self._max_used = max_used
        self._used: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        """Return how many used keys are remembered here."""
        return len(self._used)

    async def claim(self, key: EphemeralKey) -> bool:
        """Tell whether the key may be used now; from now on it may not."""
        self._forget()
        name = _name(key)
        if name in self._used:
            return False
        self._used[name] = key.expires_at
        left = key.expires_at - int(self._clock()) + 1
        # Only a clear no counts: Redis may be away (None).
        return self._redis is None or await self._redis.claim(name, left) is not False

    async def release(self, key: EphemeralKey) -> None:
        """Let a key be used after all."""
        name = _name(key)
        self._used.pop(name, None)
        if self._redis is not None:
            await self._redis.release(name)

    def _forget(self) -> None:
        for _ in range(FORGET_AT_ONCE):
            oldest = next(iter(self._used), None)
            if oldest is None or (self._used[oldest] > self._clock() and len(self._used) < self._max_used):
                return
            del self._used[oldest]


def _name(key: EphemeralKey) -> str:
    return hashlib.sha256(key.text.encode()).hexdigest()
