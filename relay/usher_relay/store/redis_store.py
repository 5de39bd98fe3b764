"""Redis as the relay uses it: names and values are bytes whose meaning is in `mapping`. It may be away at any time.

Rules:
* A look-up takes at most the time-out; writing and scanning may take longer, since nobody waits for them.
* When Redis is asked at all is the breaker's to say. `keep` probes: it opens the connections that look-ups need, and
  then wants an answer as quick as a look-up's. So a Redis that is too slow to be of use counts as away.
* One log line when Redis goes, one when it is back, and one each when it begins and ceases to refuse writes. They name
  the kind of failure, never the URL.
* A Redis that refuses writes (no memory, read only) is still read. It is tried again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random, SystemRandom
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError, RedisError

from usher_relay.store.breaker import Breaker
from usher_relay.store.counters import StoreCounters
from usher_shell.redis_client import close

log = structlog.get_logger()

MAX_CONNECTIONS = 8
CONNECT_WITHIN = 2.0
ANSWER_WITHIN = 1.0
LOOKUPS_AT_ONCE = 4
LOOK_EVERY = 0.1
WRITE_AGAIN_AFTER = 5.0
SCAN_STEP = 1_000
FAILURES = (RedisError, OSError, TimeoutError, EOFError, ValueError, RuntimeError, LookupError, TypeError)
"""The last ones are what the library makes of something that is no Redis, or of connections that end at a bad time."""


class RedisStore:
    """One Redis.

    Args:
        redis: the client.
        timeout: seconds that a look-up may take.
        counters: where failures are counted.
        now: monotonic seconds.
        random: spreads the probes of relays.
    """

    def __init__(
        self,
        redis: Redis,
        timeout: float,
        counters: StoreCounters,
        now: Callable[[], float],
        random: Random | None = None,
    ) -> None:
        self._redis = redis
        self._timeout = timeout
        self._counters = counters
        self._now = now
        self._breaker = Breaker(random or SystemRandom())
        self._write_at = float("-inf")
        self.refuses_writes = False
        self._up = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether Redis answers in time, as far as is known."""
        return self._breaker.is_up

    @property
    def takes_writes(self) -> bool:
        """Whether to write now."""
        return self.is_up and self._now() >= self._write_at

    async def until_up(self) -> None:
        """Wait until Redis answers."""
        await self._up.wait()

    async def keep(self) -> None:
        """Find out whether Redis is there, whenever it is not known to be; until cancelled."""
        try:
            while True:
                if self._breaker.may_probe(self._now()):
                    await self._probe()
                await asyncio.sleep(LOOK_EVERY)
        finally:
            await close(self._redis)

    async def look_up(self, names: Sequence[bytes]) -> list[bytes | None] | None:
        """Return what Redis holds under each name; None when it failed or was late."""
        try:
            async with asyncio.timeout(self._timeout):
                values = _values(await self._redis.mget(names), len(names))
        except TimeoutError as error:
            self._counters.failures += 1
            self._log_away(error, changed=self._breaker.late(self._now()))
            return None
        except FAILURES as error:
            self._failed(error)
            return None
        # One that was under way when Redis went says nothing of now; the probe does.
        if self.is_up:
            self._breaker.succeeded()
        return values

    async def write(self, entries: Sequence[tuple[bytes, bytes]], life: int) -> int | None:
        """Write names and values for `life` seconds; return how many were taken, None when Redis failed."""
        pipeline: Any = self._redis.pipeline(transaction=False)
        for name, value in entries:
            pipeline.set(name, value, ex=life)
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                results = await pipeline.execute(raise_on_error=False)
        except FAILURES as error:
            self._failed(error)
            return None
        refused = [result for result in results if isinstance(result, Exception)]
        await self._note_refusal(refused[0] if refused else None)
        return len(entries) - len(refused)

    async def scan(self, pattern: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        """Yield what Redis holds under names of a pattern, in pieces. Raises one of FAILURES."""
        cursor: int = 0
        while True:
            async with asyncio.timeout(ANSWER_WITHIN):
                answer: Any = await self._redis.scan(cursor, match=pattern, count=SCAN_STEP)
            cursor, names = answer
            if names:
                async with asyncio.timeout(ANSWER_WITHIN):
                    values = _values(await self._redis.mget(names), len(names))
                yield [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
            if not cursor:
                return

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                await self._redis.ping()
                await asyncio.gather(*(self._redis.ping() for _ in range(LOOKUPS_AT_ONCE)))
            async with asyncio.timeout(self._timeout):
                await self._redis.ping()
        except FAILURES as error:
            self._failed(error)
        else:
            self._up.set()
            if self._breaker.succeeded():
                log.info("Redis answers: it is asked for unknown clients")

    def _failed(self, error: Exception) -> None:
        self._counters.failures += 1
        self._log_away(error, changed=self._breaker.failed(self._now()))

    def _log_away(self, error: Exception, *, changed: bool) -> None:
        if changed:
            self._up.clear()
            log.warning("Redis is away; the relay goes on without it", error=type(error).__name__)

    async def _note_refusal(self, refusal: Exception | None) -> None:
        if refusal is not None:
            self._write_at = self._now() + WRITE_AGAIN_AFTER
            if isinstance(refusal, ReadOnlyError):
                # What was the master before a failover: the next connection may find the one of now.
                await self._redis.connection_pool.disconnect(inuse_connections=False)
        if self.refuses_writes is not (refusal is not None):
            self.refuses_writes = refusal is not None
            if refusal is None:
                log.info("Redis takes writes again")
            else:
                log.warning("Redis refuses writes; what it holds is still read", error=type(refusal).__name__)


def _values(answer: object, count: int) -> list[bytes | None]:
    """Return an answer to MGET. Raises ValueError for what is none."""
    if not isinstance(answer, list) or len(answer) != count:
        raise ValueError("Redis answered something else than was asked")
    if not all(value is None or isinstance(value, bytes) for value in answer):
        raise ValueError("Redis answered with other types than it holds")
    return answer
