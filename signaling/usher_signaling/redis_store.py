"""What replicas share in Redis: rates, and ephemeral keys that are used up. Redis may be away at any time.

Rules:
* A question takes at most the time-out. Without an answer it is None: the caller goes on by what it knows itself.
* After a failure nobody asks for a while, 0.5 s at first and up to 30 s. Then one question is the probe; the others go
  on without Redis until it has its answer. So a Redis that hangs costs a few requests a time-out, not all of them, and
  one that comes back meets no crowd.
* One log line when Redis goes and one when it is back. They name the kind of failure, never the URL.
* Keys in Redis have names of hashes: tenants may be people.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from random import Random, SystemRandom
from typing import Any

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from usher_core.errors import LocalError
from usher_signaling.metrics import Metrics

log = structlog.get_logger()

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
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
        self._random = random or SystemRandom()
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=MAX_CONNECTIONS,
                timeout=timeout,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),  # the rules above are ours; the library would try three times
            )
        except (ValueError, TypeError):
            raise LocalError("the URL of Redis can't be read", "one is redis://:PASSWORD@HOST:6379/0") from None
        self._redis = Redis.from_pool(pool)
        self._take = self._redis.register_script(_TAKE)
        self._pause = 0.0
        self._ask_at = 0.0
        self._probing = False

    @property
    def is_away(self) -> bool:
        """Whether the last question had no answer."""
        return self._pause > 0

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

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
        probe = self.is_away
        if probe:
            if self._probing or self._now() < self._ask_at:
                return None
            self._probing = True
        try:
            async with asyncio.timeout(self._timeout):
                answer = await question()
        except _FAILURES as error:
            self._failed(error, probe)
            return None
        finally:
            if probe:
                self._probing = False
        if probe:
            self._pause = 0.0
            log.info("Redis is back")
        return answer

    def _failed(self, error: Exception, probe: bool) -> None:
        self._metrics.redis_failures.inc()
        if self.is_away and not probe:
            return  # one of several that were under way when it went
        if not self.is_away:
            log.warning("Redis is away; this replica goes on by itself", error=type(error).__name__)
        self._pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause))
        self._ask_at = self._now() + self._pause * self._random.uniform(0.5, 1.0)


def _name(kind: str, what: str) -> str:
    return f"{PREFIX}{kind}:{hashlib.sha256(what.encode()).hexdigest()[:32]}"
