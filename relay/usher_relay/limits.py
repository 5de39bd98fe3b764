"""Rate limits with bounded memory (docs/wire.md section 4).

Rules:
* A limit is a token bucket: `rate` per second, and `burst` at once. It is kept as one number, the time at which the
  bucket would be full again (GCRA, the virtual scheduling form of ITU-T I.371), so a flow can carry its own.
* Buckets of unknown senders live in a table with a bound. When it is full the older half goes: whoever is forgotten
  starts with a full bucket, so an attacker gains at most another burst and a person loses nothing.
* (address, port) is limited first. A whole address may be one NAT or one node in front of hundreds of calls, so it
  is limited only above 50,000 datagrams a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate per second and how much may come at once. `interval` and `tolerance` are in seconds."""

    per_second: float
    burst: float
    interval: float = field(init=False)
    tolerance: float = field(init=False)

    def __post_init__(self) -> None:
        """Derive what the hot path needs."""
        object.__setattr__(self, "interval", 1.0 / self.per_second)
        # Half a token more than exact, because sums of intervals are rounded.
        object.__setattr__(self, "tolerance", (self.burst - 0.5) / self.per_second)

    @classmethod
    def once_in(cls, seconds: float) -> Rate:
        """Return the rate of one in so many seconds, with nothing sooner: no time is short enough to be rounded."""
        return cls(1.0 / seconds, 0.5)


class Buckets:
    """Token buckets by key, at most `capacity` of them."""

    def __init__(self, rate: Rate, capacity: int) -> None:
        self._rate = rate
        self._capacity = capacity
        self._full_at: dict[bytes, float] = {}

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._full_at)

    def allow(self, key: bytes, now: float) -> bool:
        """Take one token of `key` and return True, or return False when there is none."""
        full_at = max(self._full_at.get(key, now), now)
        if full_at - now > self._rate.tolerance:
            return False
        if key not in self._full_at and len(self._full_at) >= self._capacity:
            for oldest in list(islice(self._full_at, (self._capacity + 1) // 2)):
                del self._full_at[oldest]
        self._full_at[key] = full_at + self._rate.interval
        return True


class AddressLimit:
    """Limits a whole address, and costs nothing while the relay as a whole is below that limit.

    An address cannot exceed the limit in a second in which all addresses together do not. So addresses are told
    apart only after `per_second` datagrams came within the running second.
    """

    def __init__(self, per_second: int, capacity: int) -> None:
        self._per_second = per_second
        self._capacity = capacity
        self._second = -1
        self._total = 0
        self._by_address: dict[bytes, int] = {}

    def begin(self, now: float, count: int) -> bool:
        """Note a batch of `count` datagrams; return whether addresses have to be told apart for it."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._total = 0
            self._by_address.clear()
        self._total += count
        return self._total > self._per_second

    def allow(self, address: bytes) -> bool:
        """Count one datagram of `address` in the running second; return False above the limit."""
        count = self._by_address.get(address, 0)
        if count >= self._per_second:
            return False
        if count or len(self._by_address) < self._capacity:
            self._by_address[address] = count + 1
        return True
