"""When children are sent again whatever their revision says: somebody may have changed them by hand."""

from __future__ import annotations

import random
from collections.abc import Callable

RESEND_S = 600.0
"""Seconds for which another hand's change of our fields may stand. A server-side apply that changes nothing costs one
request, and no write."""


class Resends:
    """Remembers when each pool is due; a new leader spreads all of them over the second half of the time.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}

    def is_due(self, uid: str) -> bool:
        """Return whether this look at a pool shall send its children again; the next time is RESEND_S away then."""
        now = self._clock()
        due = self._due.setdefault(uid, now + RESEND_S * random.uniform(0.5, 1))  # noqa: S311  (no secret)
        if now < due:
            return False
        # Pools that nobody looks at any more are gone.
        self._due = {other: at for other, at in self._due.items() if now < at + RESEND_S}
        self._due[uid] = now + RESEND_S
        return True
