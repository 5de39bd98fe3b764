"""How many calls a tenant has. No I/O, no clock: what transceivers report and `now` come in.

Rules:
* Transceivers know which calls live: each tells its calls by tenant with its load, and that is the truth. Sessions end
  without signaling, so nothing here counts down.
* A call placed here counts from when it is about to be placed until a report has it. A transceiver numbers its
  sessions, and tells with its load how many it has made: so a report is known to have a call, or not to have it.
* So one replica never goes beyond a limit, and a call that has ended counts until the next report. Calls that other
  replicas placed are seen with the next report.
* Who has not reported for `report_life` seconds is dead, and its calls count no more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from usher_core.ids import Route
from usher_core.internal_api import Load

MAX_REMEMBERED = 10_000
"""Own calls remembered per transceiver since its last report, as in Placement."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A call placed here. `number` is how many sessions its transceiver had made with it."""

    tenant: str
    number: int
    at: float


@dataclass(slots=True)
class _Report:
    """What is known of one transceiver. `as_of` is when it was asked."""

    tenants: Mapping[str, int] = field(default_factory=dict)
    as_of: float = -math.inf
    placed: list[_Placed] = field(default_factory=list)


class TenantCalls:
    """Calls by tenant. `report_life`: seconds that a report counts."""

    def __init__(self, report_life: float) -> None:
        self._report_life = report_life
        self._reports: dict[Route, _Report] = {}
        self._under_way: Counter[str] = Counter()

    def report(self, route: Route, load: Load, as_of: float) -> None:
        """Take in what a transceiver told when it was asked at `as_of`; an older report than known is dropped."""
        known = self._reports.setdefault(route, _Report())
        if as_of < known.as_of:
            return
        known.tenants, known.as_of = load.tenants, as_of
        # One that was started anew under its old route counts from 0 again, hence the age.
        known.placed = [
            call for call in known.placed if call.number > load.created and as_of - call.at <= self._report_life
        ]

    def keep(self, routes: Collection[Route]) -> None:
        """Forget all transceivers but these."""
        for route in self._reports.keys() - set(routes):
            del self._reports[route]

    def count(self, tenant: str, now: float) -> int:
        """Return how many calls a tenant has, those about to be placed included."""
        calls = self._under_way[tenant]  # a Counter makes no entry of a question
        for report in self._reports.values():
            if now - report.as_of <= self._report_life:
                calls += report.tenants.get(tenant, 0)
            # Own calls of a transceiver that died before its report count no longer than that either.
            calls += sum(call.tenant == tenant and now - call.at <= self._report_life for call in report.placed)
        return calls

    def begin(self, tenant: str) -> None:
        """Count a call that is about to be placed."""
        self._under_way[tenant] += 1

    def end(self, tenant: str, placed: tuple[Route, int] | None, now: float) -> None:
        """Count it as placed (the transceiver, the number of its session), or not at all."""
        self._under_way[tenant] -= 1
        if self._under_way[tenant] <= 0:
            del self._under_way[tenant]
        if placed is not None:
            route, number = placed
            known = self._reports.setdefault(route, _Report())
            if len(known.placed) < MAX_REMEMBERED:
                known.placed.append(_Placed(tenant, number, now))
