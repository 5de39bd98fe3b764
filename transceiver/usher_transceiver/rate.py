"""A bound on how often something is done, without I/O."""

from __future__ import annotations


class TokenBucket:
    """Lets `rate` things per second pass, and `burst` (else as many) at once after a pause."""

    def __init__(self, rate: float, burst: float | None = None) -> None:
        self._rate = rate
        self._burst = self._tokens = rate if burst is None else burst
        self._at = float("-inf")

    def take(self, now: float, count: float = 1) -> bool:
        """Tell whether `count` more may pass at `now` (seconds, monotonic); they pass together or not at all."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < count:
            return False
        self._tokens -= count
        return True
