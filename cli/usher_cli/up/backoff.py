"""How long to wait before a program that died is started again."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 10.0
STEADY_AFTER_S = 10.0
"""A program that ran this long was well; its next death counts as the first."""


@dataclass(slots=True)
class Backoff:
    """The first restart is at once, then 0.5 s, twice as long each time, at most 10 s. `deaths`: the streak so far."""

    deaths: int = 0

    def next_delay(self, lived_s: float) -> float:
        """Return the seconds to wait after a program that lived `lived_s` seconds."""
        if lived_s >= STEADY_AFTER_S:
            self.deaths = 0
        self.deaths += 1
        if self.deaths == 1:
            return 0.0
        # The exponent is bounded too: a program may die for days.
        return min(FIRST_DELAY_S * 2.0 ** min(self.deaths - 2, 10), MAX_DELAY_S)
