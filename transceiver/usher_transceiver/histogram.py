"""Values counted by upper bounds, as Prometheus shows them; noting one is cheap, and nothing is kept but numbers."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class Histogram:
    """Seconds, counted by `bounds`, which ascend."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        """By upper bound, and those above the last."""
        self.sum = 0.0
        self._bounds = bounds

    def note(self, seconds: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds, the last one without end, and how many values were no larger."""
        return list(zip((*map(str, self._bounds), "+Inf"), accumulate(self.counts), strict=True))
