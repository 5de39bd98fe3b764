"""How evenly calls spread, and how many tries find no room: our placement against three others, simulated.

Run it:  .venv/bin/python benches/placement.py [--seeds 10] [--json]

20 transceivers report once a second, each at its own moment. Who places calls (one replica of signaling, or four that
do not know of each other) sees the reports only, and what itself has placed where the rule says so:

* random: any that does not say that it is full.
* least loaded: the emptiest by the last report.
* power of two: the emptier of two drawn, by the last report.
* power of two, own: the same, where calls placed since the last report count as well.
* ours: `usher_signaling.placement`, as it runs.

Three loads:

* burst: 500 calls within a second at 20 equally empty ones, none ends. Even is 25 each; we promise 20 to 30 with one
  replica, which is 0.80 to 1.20.
* newcomer: 19 transceivers with 25 calls each and an empty one; 50 calls within a second. What counts is how many of
  them the newcomer gets: the max column is the calls placed at it over 50 / 20.
* full: 20 × 50 places, calls of 60 s mean length (exponential), 17 a second, for 120 s: 2 % more than there is room
  for. Some 4 % are lost whatever the rule; what differs is how many tries it takes.

Columns, each the mean and, after the slash, the worst of all seeds: `max/mean` and `min/mean` of calls placed per
transceiver; `refused`: tries at a transceiver that was full, per 1,000 calls; `lost`: calls per 1,000 that found no
room in five tries, as a request makes them.

What would make the numbers lie: answers take no time here, so no replica decides while another call is under way;
transceivers never fail; calls come evenly in time. There are no clocks in it: the same seeds give the same table.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Protocol

import _machine

from usher_core.ids import Route
from usher_core.internal_api import Load
from usher_signaling.placement import Placement

COUNT = 20
TRIES = 5
REPORT_EVERY_S = 1.0
ROUTES = [Route(1, pod) for pod in range(COUNT)]


class Rule(Protocol):
    """One replica's way to choose."""

    def report(self, route: Route, load: Load, now: float) -> None: ...
    def choose(self, now: float, tried: Collection[Route]) -> Route | None: ...
    def placed(self, route: Route, now: float) -> None: ...
    def refused(self, route: Route, now: float) -> None: ...


class Drawn:
    """The emptiest of some drawn at random. `choices` None is all; `own` counts what was placed since the report."""

    def __init__(self, random: Random, choices: int | None, *, own: bool = False) -> None:
        self._random, self._choices, self._own = random, choices, own
        self._loads: dict[Route, Load] = {}
        self._since: dict[Route, int] = {}

    def report(self, route: Route, load: Load, now: float) -> None:
        self._loads[route], self._since[route] = load, 0

    def choose(self, now: float, tried: Collection[Route]) -> Route | None:
        open_ = [route for route, load in self._loads.items() if route not in tried and load.accepts]
        open_ = open_ or [route for route in self._loads if route not in tried]
        drawn = self._random.sample(open_, min(self._choices or len(open_), len(open_)))
        return min(drawn, key=lambda route: self._loads[route].sessions + self._since[route], default=None)

    def placed(self, route: Route, now: float) -> None:
        self._since[route] += self._own

    def refused(self, route: Route, now: float) -> None:
        self._loads[route] = self._loads[route].model_copy(update={"accepts": False})


class Ours:
    """The rule that runs."""

    def __init__(self, random: Random) -> None:
        self._placement = Placement(5.0, random)

    def report(self, route: Route, load: Load, now: float) -> None:
        self._placement.report(route, load, now)

    def choose(self, now: float, tried: Collection[Route]) -> Route | None:
        return self._placement.choose([ROUTES], now, tried)

    def placed(self, route: Route, now: float) -> None:
        self._placement.begin(route)
        self._placement.end(route, now)

    def refused(self, route: Route, now: float) -> None:
        self._placement.refused(route, now, draining=False)


RULES: dict[str, Callable[[Random], Rule]] = {
    "random": lambda random: Drawn(random, 1),
    "least loaded": lambda random: Drawn(random, None),
    "power of two": lambda random: Drawn(random, 2),
    "power of two, own": lambda random: Drawn(random, 2, own=True),
    "ours": Ours,
}


@dataclass(frozen=True)
class Case:
    """A load. `length_s` is the mean length of a call, 0 for calls that do not end."""

    calls: int
    seconds: float
    places: int = 1000
    length_s: float = 0.0
    held: Callable[[int], int] = lambda _pod: 0


CASES = {
    "burst": Case(500, 1.0),
    "newcomer": Case(50, 1.0, held=lambda pod: 25 if pod else 0),
    "full": Case(2040, 120.0, places=50, length_s=60.0),
}


@dataclass
class Outcome:
    """What became of one run."""

    placed: dict[Route, int] = field(default_factory=lambda: dict.fromkeys(ROUTES, 0))
    refused: int = 0
    lost: int = 0


def simulate(case: Case, make: Callable[[Random], Rule], replicas: int, seed: int) -> Outcome:
    random = Random(seed)
    rules = [make(Random(seed * 100 + number)) for number in range(replicas)]
    sessions = {route: case.held(route.pod) for route in ROUTES}
    if case.length_s:  # begin where it will stay
        even = round(case.calls / case.seconds * case.length_s / COUNT)
        sessions = dict.fromkeys(ROUTES, min(even, case.places))
    ends = (
        [(random.expovariate(1 / case.length_s), route.pod) for route in ROUTES for _ in range(sessions[route])]
        if (case.length_s)
        else []
    )
    heapq.heapify(ends)
    outcome = Outcome()

    def report(route: Route, now: float) -> None:
        load = Load(sessions=sessions[route], max_sessions=case.places, accepts=sessions[route] < case.places)
        for rule in rules:
            rule.report(route, load, now)

    for route in ROUTES:
        report(route, 0.0)
    reports = [(random.uniform(0, REPORT_EVERY_S), route.pod) for route in ROUTES]
    heapq.heapify(reports)
    for number in range(case.calls):
        now = number * case.seconds / case.calls
        while ends and ends[0][0] <= now:
            sessions[ROUTES[heapq.heappop(ends)[1]]] -= 1
        # In a burst nobody reports: that is the promise, and the hardest case.
        while case.length_s and reports[0][0] <= now:
            at, pod = reports[0]
            report(ROUTES[pod], at)
            heapq.heapreplace(reports, (at + REPORT_EVERY_S, pod))
        place(rules[number % replicas], case, sessions, outcome, now, ends, random)
    return outcome


def place(
    rule: Rule,
    case: Case,
    sessions: dict[Route, int],
    outcome: Outcome,
    now: float,
    ends: list[tuple[float, int]],
    random: Random,
) -> None:
    tried: set[Route] = set()
    while len(tried) < TRIES and (route := rule.choose(now, tried)) is not None:
        tried.add(route)
        if sessions[route] < case.places:
            sessions[route] += 1
            outcome.placed[route] += 1
            rule.placed(route, now)
            if case.length_s:
                heapq.heappush(ends, (now + random.expovariate(1 / case.length_s), route.pod))
            return
        outcome.refused += 1
        rule.refused(route, now)
    outcome.lost += 1


def row(case: Case, outcomes: list[Outcome]) -> dict[str, tuple[float, float]]:
    """Return each column as mean and worst."""
    spreads = [list(outcome.placed.values()) for outcome in outcomes]
    highest = [max(spread) / fmean(spread) for spread in spreads]
    lowest = [min(spread) / fmean(spread) for spread in spreads]
    found = {"max/mean": (fmean(highest), max(highest)), "min/mean": (fmean(lowest), min(lowest))}
    for column in ("refused", "lost"):
        values = [getattr(outcome, column) * 1000 / case.calls for outcome in outcomes]
        found[column] = (fmean(values), max(values))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="How evenly calls spread: our placement and three others, simulated.")
    parser.add_argument("--seeds", type=int, default=10, help="runs per line")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    if not options.json:
        print(_machine.line())
        print(f"{COUNT} transceivers, {options.seeds} seeds; each column mean / worst\n")
    for case_name, case in CASES.items():
        for replicas in (1, 4):
            for rule_name, make in RULES.items():
                outcomes = [simulate(case, make, replicas, seed) for seed in range(options.seeds)]
                columns = row(case, outcomes)
                if options.json:
                    print(json.dumps({"load": case_name, "replicas": replicas, "rule": rule_name, **columns}))
                    continue
                if rule_name == "random":
                    heads = "".join(f"{name:>20}" for name in columns)
                    print(f"{case_name}, {replicas} replica{'s' * (replicas > 1)}".ljust(24) + heads)
                print(
                    f"  {rule_name:22}"
                    + "".join(f"{f'{mean:.2f} / {worst:.2f}':>20}" for mean, worst in columns.values())
                )
            if not options.json:
                print()


if __name__ == "__main__":
    main()
