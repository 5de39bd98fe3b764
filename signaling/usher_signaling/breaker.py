"""Whether something that may be away is asked: Redis, or another region. No I/O, no clock: `now` is monotonic seconds.

Rules:
* After a failure nobody asks for a pause, 0.5 s at first and up to 30 s, jittered so that replicas do not come at once.
* Then one question is the probe; the others go on without until it has its answer. So what hangs costs a few callers a
  time-out and not all of them, and what comes back meets no crowd.
* Several that were under way when it went are one failure.
* Where nobody asks, nobody learns whether it is back: a failure that is old says nothing of now.
"""

from __future__ import annotations

from enum import Enum
from random import Random

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LATELY_S = 2 * LONGEST_PAUSE_S


class Attempt(Enum):
    """One question that was let through."""

    PLAIN = "plain"
    PROBE = "probe"


class Breaker:
    """The state of one thing that is asked. It begins as well."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._pause = 0.0
        self._ask_at = 0.0
        self._failed_at = 0.0
        self._probing = False

    @property
    def is_away(self) -> bool:
        """Whether the last question had no answer."""
        return self._pause > 0

    def failed_lately(self, now: float) -> bool:
        """Whether it is away, and somebody saw so within the last minute."""
        return self.is_away and now - self._failed_at < LATELY_S

    def begin(self, now: float) -> Attempt | None:
        """Return leave to ask, None when the caller is to go on without. `end` has to follow."""
        if not self.is_away:
            return Attempt.PLAIN
        if self._probing or now < self._ask_at:
            return None
        self._probing = True
        return Attempt.PROBE

    def end(self, attempt: Attempt, now: float, *, well: bool | None) -> bool:
        """Take in how a question ended; None is unknown, as after a cancellation. Return whether the state changed."""
        was_away = self.is_away
        if attempt is Attempt.PROBE:
            self._probing = False
        elif was_away:
            return False
        if well:
            self._pause = 0.0
        elif well is False:
            self._pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause))
            self._failed_at = now
            self._ask_at = now + self._pause * self._random.uniform(0.5, 1.0)
        return self.is_away is not was_away
