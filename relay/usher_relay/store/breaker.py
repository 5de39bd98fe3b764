"""Whether Redis is asked. No I/O, no clock: `now` is monotonic seconds.

Rules:
* After a failure nobody asks for a pause, 0.25 s at first and up to 5 s, jittered: then one probe. So a Redis that is
  gone, or comes back, meets one connection of each relay every few seconds, and no look-up waits in vain. The pauses
  begin anew only after 5 s without failure: one that comes and goes is away most of the time, and its log is short.
* A look-up that is late costs a connection, but is no outage yet: one pause of either process is none. Three of them
  are, and each one in time makes up for a quarter of one: a Redis that is late more often than that is away.
* It begins as away, so that a probe has opened connections before the first look-up needs them.
"""

from __future__ import annotations

from random import Random

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 5.0
MOST_LATE = 3
MADE_UP_FOR = 0.25


class Breaker:
    """The state of one Redis. `succeeded`, `failed` and `late` return whether the state has changed by that."""

    def __init__(self, random: Random) -> None:
        self.is_up = False
        self._known = False
        self._random = random
        self._pause = 0.0
        self._probe_at = float("-inf")
        self._late = 0.0

    def may_probe(self, now: float) -> bool:
        """Tell whether it is time to try a Redis that is away."""
        return not self.is_up and now >= self._probe_at

    def succeeded(self) -> bool:
        """Take note of a probe that was answered in time, or of a look-up."""
        self._late = max(0.0, self._late - MADE_UP_FOR)
        return self._turn(is_up=True)

    def late(self, now: float) -> bool:
        """Take note of a look-up without an answer in time."""
        self._late += 1
        return self._late >= MOST_LATE and self.failed(now)

    def failed(self, now: float) -> bool:
        """Take note of an error, or of a probe that was not answered in time."""
        self._late = 0.0
        # Several operations fail at the moment in which it goes; that is one failure.
        if self.is_up or now >= self._probe_at:
            was_well = self.is_up and now >= self._probe_at + LONGEST_PAUSE
            self._pause = FIRST_PAUSE if was_well else min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self._pause))
            self._probe_at = now + self._pause * self._random.uniform(0.5, 1.0)
        return self._turn(is_up=False)

    def _turn(self, *, is_up: bool) -> bool:
        changed = not self._known or self.is_up is not is_up
        self._known, self.is_up = True, is_up
        return changed
