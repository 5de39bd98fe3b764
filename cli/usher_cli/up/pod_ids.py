"""Pod ids that are never used twice (design D13)."""

from __future__ import annotations

EPOCH = 1_735_689_600
"""2025-01-01 00:00 UTC in Unix seconds, from which ids count."""


class PodIds:
    """A counter that follows the clock: an old ufrag reaches its own transceiver or nobody, whatever was restarted."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, now: float) -> int:
        """Return an id larger than all before. `now` is in Unix seconds."""
        self._last = max(self._last + 1, int(now) - EPOCH)
        return self._last
