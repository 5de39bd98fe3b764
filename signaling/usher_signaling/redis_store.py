"""What replicas share in Redis: rates, and ephemeral keys that are used up. Redis may be away at any time.

Rules:
* A question takes at most the time-out. Without an answer it is None: the caller goes on by what it knows itself.
* Half of that it may wait for a free connection. One that gets none is not asked, which says nothing of Redis.
* After a failure it is asked seldom, by the rules of `breaker`.
* One log line when Redis goes and one when it is back. They name the kind of failure, never the URL.
* Keys in Redis have names of hashes: tenants may be people.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random, SystemRandom
from typing import Any

import structlog
from redis.exceptions import RedisError

from usher_shell.redis_client import close, redis_client
from usher_signaling.breaker import Breaker
from usher_signaling.metrics import Metrics

log = structlog.get_logger()

MAX_CONNECTIONS = 32
PREFIX = "usher:"
_FAILURES = (RedisError, OSError, TimeoutError, EOFError, ValueError, RuntimeError)
"""The last ones are what the library makes of something that is no Redis, or of connections that end at a bad time."""

_TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local full_at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0'))
if full_at - now > interval * (burst + 1) then full_at = now end
local wait = full_at - now - interval * (burst - 1)
if wait > 0.000001 then return tostring(wait) end
full_at = full_at + interval
redis.call('SET', KEYS[1], string.format('%.6f', full_at), 'PX', math.ceil((full_at - now) * 1000))
return '0'
"""
"""The rule of rates.py, by the clock of Redis, in one step for all replicas."""


class RedisStore:
    """One Redis.

    Args:
        url: where it is, with its password.
        timeout: seconds that a question may take, connecting included.
        metrics: where failures are counted.
        now: monotonic seconds.
        random: spreads the probes of replicas.

    Raises LocalError for a URL that can't be one.
    """

    def __init__(
        self, url: str, timeout: float, metrics: Metrics, now: Callable[[], float], random: Random | None = None
    ) -> None:
        self._timeout = timeout
        self._metrics = metrics
        self._now = now
        self._breaker = Breaker(random or SystemRandom())
        self._redis = redis_client(url, max_connections=MAX_CONNECTIONS, connect_within=timeout, answer_within=timeout)
        # Behind Sentinels the library fails a question for which no connection is free, as if Redis had failed it.
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self._take = self._redis.register_script(_TAKE)

    @property
    def is_away(self) -> bool:
        """Whether the last question had no answer."""
        return self._breaker.is_away

    async def close(self) -> None:
        """Close all connections."""
        await close(self._redis)

    async def take(self, tenant: str, rate: float, burst: int) -> float | None:
        """Take one request out of a tenant's bucket: 0, or the seconds to wait. None when Redis is away."""
        wait: float | None = await self._ask(lambda: self._wait(_name("rate", tenant), 1 / rate, burst))
        return wait

    async def claim(self, what: str, seconds: int) -> bool | None:
        """Claim something for one caller alone, for so long: whether it was free. None when Redis is away."""
        was_free: bool | None = await self._ask(lambda: self._set(_name("used", what), max(1, seconds)))
        return was_free

    async def release(self, what: str) -> None:
        """Give a claim back."""
        await self._ask(lambda: self._redis.delete(_name("used", what)))

    async def _wait(self, name: str, interval: float, burst: int) -> float:
        return float(await self._take(keys=[name], args=[interval, burst]))

    async def _set(self, name: str, seconds: int) -> bool:
        return await self._redis.set(name, 1, nx=True, ex=seconds) is not None

    async def _ask(self, question: Callable[[], Awaitable[Any]]) -> Any:
        """The answer, None when Redis is away."""
        attempt = self._breaker.begin(self._now())
        if attempt is None:
            return None
        well: bool | None = None
        failure: Exception | None = None
        try:
            async with asyncio.timeout(self._timeout), self._connection() as is_free:
                if not is_free:
                    self._metrics.redis_crowded.inc()
                    return None
                answer = await question()
            well = True
            return answer
        except _FAILURES as error:
            self._metrics.redis_failures.inc()
            well, failure = False, error
            return None
        finally:
            if self._breaker.end(attempt, self._now(), well=well):
                self._tell(failure)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[bool]:
        """Hold one of the connections: whether there is one. The question has at least half of the time-out left."""
        try:
            async with asyncio.timeout(self._timeout / 2):
                await self._free.acquire()
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            self._free.release()

    def _tell(self, failure: Exception | None) -> None:
        if failure is None:
            log.info("Redis is back")
        else:
            log.warning("Redis is away; this replica goes on by itself", error=type(failure).__name__)


def _name(kind: str, what: str) -> str:
    return f"{PREFIX}{kind}:{hashlib.sha256(what.encode()).hexdigest()[:32]}"
