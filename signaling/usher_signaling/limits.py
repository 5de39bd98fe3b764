"""What a tenant may: so many requests a second, so many calls at once; and an ephemeral key, by setting, one call.

Rules:
* Limits are those that stand beside the tenant's keys, else those of the settings. Without either nothing is limited.
* The rate is kept here first and then, if there is a Redis, for all replicas. While Redis is away each replica keeps it
  by itself: a failing Redis fails no request.
* Calls are counted by what transceivers report (see tenant_calls).
* What ends or repairs a call is never limited, so that nobody is kept from hanging up.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from time import monotonic

from usher_core.ids import Route
from usher_signaling.api_keys import ApiKeys, TenantLimits
from usher_signaling.auth import Caller, secret_used
from usher_signaling.errors import ApiError
from usher_signaling.metrics import Metrics
from usher_signaling.rates import Rates
from usher_signaling.redis_store import RedisStore
from usher_signaling.secret_uses import SecretUses
from usher_signaling.settings import SignalingSettings
from usher_signaling.tenant_calls import TenantCalls


@dataclass(slots=True)
class CallSlot:
    """Room for one call; `placed` is where it went and the number of its session there."""

    placed: tuple[Route, int] | None = None


class Limits:
    """Limits of all tenants.

    Args:
        settings: the default limits.
        keys: the API keys now, with limits of their own; None where there are none.
        calls: what transceivers report.
        redis: what replicas share, None without.
        metrics: where refusals are counted.
        clock: Unix seconds.
        now: monotonic seconds.
    """

    def __init__(
        self,
        settings: SignalingSettings,
        keys: Callable[[], ApiKeys] | None,
        calls: TenantCalls,
        redis: RedisStore | None,
        metrics: Metrics,
        clock: Callable[[], float],
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._default = TenantLimits(settings.rate_limit, settings.call_limit)
        self._burst = settings.rate_burst
        self._once = settings.secrets_once
        self._call_retry_s = settings.load_interval
        self._keys = keys
        self._calls = calls
        self._redis = redis
        self._metrics = metrics
        self._now = now
        self._rates = Rates()
        self._uses = SecretUses(redis, clock)
        metrics.watch("rate_tenants", "Tenants whose rate of requests is remembered", lambda: len(self._rates))
        metrics.watch("used_secrets", "Ephemeral keys that are remembered as used up", lambda: len(self._uses))

    def of(self, tenant: str) -> TenantLimits:
        """The limits of a tenant."""
        return self._default if self._keys is None else self._keys().limits(tenant, self._default)

    async def request(self, caller: Caller) -> None:
        """Count a request. Raises ApiError 429 when it is one too many."""
        rate = self.of(caller.tenant).rate
        if rate is None:
            return
        wait = self._rates.take(caller.tenant, rate, self._burst, self._now())
        if wait == 0 and self._redis is not None:
            wait = await self._redis.take(caller.tenant, rate, self._burst) or 0.0
        if wait > 0:
            self._metrics.limited.labels("rate").inc()
            message = f"{caller.tenant!r} may send {rate:g} requests a second, and has sent more."
            raise _too_many("rate_limit_exceeded", message, wait)

    @contextlib.asynccontextmanager
    async def call(self, caller: Caller) -> AsyncIterator[CallSlot]:
        """Hold room for a call while it is being placed; the holder writes into the slot where it went.

        Raises ApiError 429 when the tenant has as many calls as it may, 401 when the ephemeral key is used up.
        """
        limit = self.of(caller.tenant).calls
        if limit is not None and self._calls.count(caller.tenant, self._now()) >= limit:
            self._metrics.limited.labels("calls").inc()
            message = f"{caller.tenant!r} has all the calls that it may have at once ({limit})."
            raise _too_many("call_limit_exceeded", message, self._call_retry_s)
        slot = CallSlot()
        self._calls.begin(caller.tenant)
        try:
            async with self._one_use(caller):
                yield slot
        finally:
            self._calls.end(caller.tenant, slot.placed, self._now())

    @contextlib.asynccontextmanager
    async def _one_use(self, caller: Caller) -> AsyncIterator[None]:
        """Use up an ephemeral key, unless the call can't be placed."""
        if caller.secret is None or not self._once:
            yield
            return
        if not await self._uses.claim(caller.secret):
            error = secret_used()
            self._metrics.auth_failures.labels(error.code).inc()
            raise error
        try:
            yield
        except ApiError:
            await self._uses.release(caller.secret)
            raise


def _too_many(code: str, message: str, wait: float) -> ApiError:
    seconds = max(1, math.ceil(wait))
    return ApiError(429, code, f"{message} Try again in {seconds} s.", headers={"Retry-After": str(seconds)})
