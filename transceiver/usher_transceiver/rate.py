"""A bound on how often something is done, without I/O."""

from __future__ import annotations


class TokenBucket:
    """Lets `rate` things per second pass, and as many at once after a pause."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._at = float("-inf")

    def take(self, now: float) -> bool:
        """Tell whether one more may pass at `now` (seconds, monotonic)."""
        self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
