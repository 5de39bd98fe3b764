"""How late packets come, and how long playout should therefore wait.

A packet's *transit* is its arrival time less its media time: it means nothing by itself, but the smallest transit of
the last seconds is the network at its best, and what a packet has above it is its *lateness*.
The *target* follows the lateness that all but one packet in `_RATIO` + 1 stay below: up by a step for each packet
above it, down by a small step for each below. Two clocks that drift apart move the smallest transit with them.
"""

from typing import Final

_MAX_TARGET: Final = 0.120
"""Seconds. More jitter than this is concealed rather than waited for: a conversation suffers more from delay."""
_FIRST_TARGET: Final = 0.020
_STEP_UP: Final = 0.002
_RATIO: Final = 32  # so 97 of 100 packets come in time
_STEP_DOWN: Final = _STEP_UP / _RATIO
_REPAIR_STEP_UP: Final = 3 * _STEP_UP
"""A repair in time makes a loss unheard, which is worth 20 ms sooner than a late packet is: from about 1 % loss on."""
_REPAIR_MARGIN: Final = 0.010  # by how much a lag may stay below the target (reorder rule 5)
_WINDOW: Final = 3.0


class DelayEstimator:
    """Sans-IO; all times in seconds. Before the first packet, `base` is 0 and means nothing."""

    __slots__ = ("_now_best", "_previous_best", "_window_end", "base", "target")

    def __init__(self) -> None:
        self.target = _FIRST_TARGET
        self.base = 0.0
        self._now_best: float | None = None
        self._previous_best: float | None = None
        self._window_end = 0.0

    def restart(self) -> None:
        """Forget the network's best: the media clock has jumped. The target stays."""
        self._now_best = self._previous_best = None

    def observe(self, now: float, media_time: float) -> float:
        """Take the arrival of a packet and return its lateness."""
        transit = now - media_time
        if self._now_best is None:
            self._now_best = self._previous_best = self.base = transit
            self._window_end = now + _WINDOW
        elif now >= self._window_end:
            self._window_end = now + _WINDOW
            self._previous_best, self._now_best = self._now_best, transit
            self._move_base()
        elif transit < self._now_best:
            self._now_best = transit
            self._move_base()
        lateness = transit - self.base
        step = _STEP_UP if lateness > self.target else -_STEP_DOWN
        self.target = min(max(self.target + step, 0.0), _MAX_TARGET)
        return lateness

    def observe_repair(self, now: float, media_time: float) -> None:
        """Take the arrival of what can replace a packet that has not come: too late, it counts as several late ones.

        In time it counts as nothing, for the packet itself may still come.
        """
        lateness = now - media_time - self.base
        if lateness > self.target:
            self.target = min(self.target + _REPAIR_STEP_UP, lateness + _REPAIR_MARGIN, _MAX_TARGET)

    def _move_base(self) -> None:
        assert self._now_best is not None
        assert self._previous_best is not None
        best = min(self._now_best, self._previous_best)
        if best > self.base:
            # The network as a whole has become slower: what was lateness so far is now the rule.
            self.target = max(0.0, self.target - (best - self.base))
        self.base = best
