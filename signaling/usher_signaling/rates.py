"""How often a tenant may ask, in this process. No I/O, no clock: `now` comes in.

The rule is GCRA (ITU-T I.371, virtual scheduling): a tenant has one number, the time at which its bucket is full again.
It is a token bucket of `burst` requests that fills at `rate` a second, without anything to fill.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_TENANTS = 100_000
"""Tenants remembered. A JWT issuer may name more: then the one that asked longest ago is forgotten."""
FORGET_AT_ONCE = 4
"""Idle tenants forgotten per request, so that the table shrinks to those who ask."""


class Rates:
    """The buckets of all tenants. `max_tenants` bounds them."""

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._max_tenants = max_tenants
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Return how many tenants are remembered."""
        return len(self._full_at)

    def take(self, tenant: str, rate: float, burst: int, now: float) -> float:
        """Take one request out of a bucket. Return 0, or the seconds to wait, and then nothing is taken."""
        self._forget(now)
        full_at = max(now, self._full_at.get(tenant, now))
        if full_at - now > (burst + 1) / rate:
            full_at = now  # emptier than empty: another limit counted until now, so the bucket begins anew
        wait = full_at - now - (burst - 1) / rate
        if wait > 1e-9:  # sums of fractions; a rate of 1 means 1
            return wait
        self._full_at[tenant] = full_at + 1 / rate
        self._full_at.move_to_end(tenant)
        return 0.0

    def _forget(self, now: float) -> None:
        for _ in range(FORGET_AT_ONCE):
            oldest = next(iter(self._full_at), None)
            if oldest is None or (self._full_at[oldest] > now and len(self._full_at) < self._max_tenants):
                return
            del self._full_at[oldest]
