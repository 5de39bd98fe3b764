"""Which transceiver takes the next call (design D16). No I/O, no clock: loads and `now` come in, a route comes out.

Rules:
* A transceiver's load is what it reported plus what we have placed there since: a burst must not pile up on the one
  that was empty a second ago.
* Three are drawn at random and the emptiest takes the call. Replicas do not know of each other's calls; who all choose
  "the emptiest" all choose the same one, who draw do not (docs/decisions/0004).
* Never chosen: who is draining, or has not reported for `report_life` seconds.
* Who is full is passed over; when all are, one that said so more than 100 ms ago is tried, since calls end without our
  knowing. Our own count only ranks: a transceiver admits atomically, so its word decides whether there is room.
* Where transceivers come in groups (regions), a later group is asked before a full one of an earlier group is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from random import Random

from usher_core.ids import Route
from usher_core.internal_api import Load

CHOICES = 3
FULL_RETRY_S = 0.1
MAX_REMEMBERED = 10_000
"""Own placements remembered per transceiver since its last report; more than any admits in that time."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a transceiver said of itself, `age` seconds ago; None when it has not answered since."""

    load: Load
    age: float | None


@dataclass(slots=True)
class _Entry:
    """What is known of one transceiver. `as_of` is when it was asked, so older than what it said."""

    load: Load
    as_of: float
    under_way: int = 0
    placed: list[float] = field(default_factory=list)

    def sessions(self) -> int:
        return self.load.sessions + self.under_way + len(self.placed)

    def fullness(self) -> float:
        return self.sessions() / max(1, self.load.max_sessions)


class Placement:
    """Loads of transceivers and the choice among them.

    Args:
        report_life: seconds that a report counts.
        random: the source of the draw.
    """

    def __init__(self, report_life: float, random: Random) -> None:
        self._report_life = report_life
        self._random = random
        self._entries: dict[Route, _Entry] = {}

    def report(self, route: Route, load: Load, as_of: float) -> None:
        """Take in a load that was asked for at `as_of`; an older one than known is dropped."""
        entry = self._entries.setdefault(route, _Entry(load, as_of))
        if as_of < entry.as_of:
            return
        entry.load, entry.as_of = load, as_of
        entry.placed = [time for time in entry.placed if time > as_of]

    def refused(self, route: Route, now: float, *, draining: bool) -> None:
        """Take in that a transceiver did not admit a call, because it is full or draining."""
        if entry := self._entries.get(route):
            entry.load = entry.load.model_copy(update={"accepts": False, "draining": draining})
            entry.as_of = now

    def lost(self, route: Route) -> None:
        """Take in that a transceiver did not answer: it counts as dead until its next report."""
        if entry := self._entries.get(route):
            entry.as_of = -math.inf

    def keep(self, routes: Collection[Route]) -> None:
        """Forget all transceivers but these."""
        for route in self._entries.keys() - set(routes):
            del self._entries[route]

    def begin(self, route: Route) -> None:
        """Count a call that is about to be placed."""
        if entry := self._entries.get(route):
            entry.under_way += 1

    def end(self, route: Route, placed_at: float | None) -> None:
        """Count it as placed at that time, or not at all."""
        if entry := self._entries.get(route):
            entry.under_way = max(0, entry.under_way - 1)
            if placed_at is not None and placed_at > entry.as_of and len(entry.placed) < MAX_REMEMBERED:
                entry.placed.append(placed_at)

    def is_live(self, route: Route, now: float) -> bool:
        """Tell whether a transceiver has reported lately and is not draining. It may be full."""
        entry = self._entries.get(route)
        return entry is not None and self.is_fresh(route, now) and not entry.load.draining

    def is_fresh(self, route: Route, now: float) -> bool:
        """Tell whether a transceiver has reported lately."""
        entry = self._entries.get(route)
        return entry is not None and now - entry.as_of <= self._report_life

    def last_report(self, route: Route, now: float) -> Report | None:
        """Return what is known of a transceiver, None when it has never reported."""
        entry = self._entries.get(route)
        if entry is None:
            return None
        return Report(entry.load, None if math.isinf(entry.as_of) else max(0.0, now - entry.as_of))

    def choose(self, groups: Iterable[Collection[Route]], now: float, tried: Collection[Route] = ()) -> Route | None:
        """Return the transceiver for the next call, None when nobody takes one.

        Args:
            groups: whom to choose among, the preferred ones first.
            now: monotonic seconds.
            tried: who is out of question.
        """
        live = [[route for route in group if route not in tried and self.is_live(route, now)] for group in groups]
        willing: tuple[Callable[[_Entry], bool], ...] = (
            lambda entry: entry.load.accepts,
            lambda entry: now - entry.as_of >= FULL_RETRY_S,
        )
        for takes_calls in willing:
            for group in live:
                candidates = [route for route in group if takes_calls(self._entries[route])]
                if candidates:
                    return self._draw(candidates)
        return None

    def _draw(self, candidates: list[Route]) -> Route:
        # A random sample is in random order, so equally full ones share.
        drawn = self._random.sample(candidates, min(CHOICES, len(candidates)))
        return min(drawn, key=lambda route: self._entries[route].fullness())
