"""The transceivers there are and which of them take a call; loads are asked for in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from usher_core.ids import Route
from usher_core.internal_api import Load
from usher_core.routes import RouteTable, Transceiver
from usher_signaling.addresses import AddressBook
from usher_signaling.placement import Placement, Report
from usher_signaling.regions import RegionalAddress, Regions, tried_last
from usher_signaling.tenant_calls import TenantCalls
from usher_signaling.transceiver_client import TransceiverError
from usher_signaling.transceivers import TransceiverSource

log = structlog.get_logger()

MAX_QUESTIONS = 64
"""Load questions under way at once."""
MAX_CLOSINGS = 16
"""The same of offers being closed, which must not hold up the loads."""
SILENT = "does not answer"


@dataclass(frozen=True, slots=True)
class Status:
    """A transceiver, whether new calls may go there, and what it said last; `report` None when it never did."""

    entry: Transceiver
    live: bool
    report: Report | None


class LoadSource(Protocol):
    """Whom to ask for a load; the client of the internal API."""

    async def load(self, base: str, within: float) -> Load:
        """Return the load of the transceiver at that HTTP address. Raises TransceiverError."""
        ...


class Directory:
    """Looks up owners, chooses for new calls, and keeps the loads fresh.

    Args:
        transceivers: where they are known from.
        addresses: relay addresses; a transceiver that no relay serves gets no calls.
        placement: the rules of the choice; it learns the loads.
        tenant_calls: learns from the loads how many calls a tenant has.
        regions: which transceivers come first.
        source: whom to ask.
        timeout: seconds that an answer may take.
        now: monotonic seconds.
    """

    def __init__(
        self,
        transceivers: TransceiverSource,
        addresses: AddressBook,
        placement: Placement,
        tenant_calls: TenantCalls,
        regions: Regions,
        source: LoadSource,
        timeout: float,
        now: Callable[[], float],
    ) -> None:
        self.source = transceivers
        self._addresses = addresses
        self.placement = placement
        self._tenant_calls = tenant_calls
        self._regions = regions
        self._source = source
        self._timeout = timeout
        self._now = now
        self.has_asked = False
        """Whether all transceivers of a good list were asked for their load once."""
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)
        self._closings = asyncio.Semaphore(MAX_CLOSINGS)

    @property
    def transceivers(self) -> RouteTable:
        """All transceivers, also those that take no new calls."""
        return self.source.table

    @property
    def advertised(self) -> tuple[RegionalAddress, ...]:
        """All relay addresses that are known."""
        return self._addresses.all()

    async def find_owner(self, route: Route) -> Transceiver | None:
        """The transceiver of a route, None when it is gone."""
        return await self.source.find(route)

    def choose(self, region: str, tried: Collection[Route]) -> Transceiver | None:
        """The transceiver for a new call of a region, None when no other takes one."""
        # Another thread may read the table anew, so it may be another one by the time the choice is made.
        table = self.source.table
        groups = tried_last(self._in_order(region), tried)
        route = self.placement.choose(groups, self._now(), tried)
        return None if route is None else table.get(route)

    def serves(self, region: str) -> bool:
        """Whether a new call of a region has a transceiver to go to. It may be full."""
        now = self._now()
        return any(self.placement.is_live(route, now) for group in self._in_order(region) for route in group)

    def why_nobody(self, region: str) -> str:
        """Why no transceiver takes a new call of a region: what is known of them, in words for a caller."""
        table, now = self.source.table, self._now()
        in_region = {route for group in self._in_order(region) for route in group}
        kinds = {self._why_not(route, entry, in_region, now) for route, entry in table.items()}
        if not kinds:
            return "No transceiver is known here. Try again soon."
        if kinds == {SILENT}:
            return "No transceiver here answers. Try again soon."
        in_order = sorted(kinds, key=lambda kind: (kind == SILENT, kind))
        return f"Every transceiver here {_any_of(in_order)}. Try again soon."

    def _why_not(self, route: Route, entry: Transceiver, in_region: Collection[Route], now: float) -> str:
        report = self.placement.last_report(route, now) if self.placement.is_fresh(route, now) else None
        if report is not None and report.load.draining:
            return "drains"
        if not entry.placeable or not entry.http:
            return "starts or ends"
        if route not in in_region:
            return "is of a region or of relays that are not for this call"
        if report is None:
            return SILENT
        return "did not take it in time" if report.load.accepts else "is full"

    def why_no_address(self) -> str:
        """What to do where no relay has an address for a call."""
        return self._addresses.advice

    def addresses(self, region: str) -> tuple[RegionalAddress, ...]:
        """What a client of a region would be told if its call were placed now; empty when no relay has an address."""
        table = self.source.table
        if not any(_placeable(table)):
            return self._regions.addresses(region, self._addresses.all())
        served = next(self._served(table, region), None)
        return () if served is None else self.addresses_of(served, region)

    def addresses_of(self, route: Route, region: str) -> tuple[RegionalAddress, ...]:
        """What to advertise to a client of a region whose call is at that transceiver, the best first."""
        return self._regions.addresses(region, self._addresses.of(route))

    def live_count(self) -> int:
        """How many transceivers new calls could be placed at, full ones included."""
        now = self._now()
        return sum(self.placement.is_live(route, now) for route in _placeable(self.source.table))

    def statuses(self) -> list[Status]:
        """How every transceiver is, in the order of their source."""
        now = self._now()
        return [
            Status(entry, self.placement.is_live(route, now), self.placement.last_report(route, now))
            for route, entry in self.source.table.items()
        ]

    async def refresh(self) -> None:
        """One round: the table, then every transceiver's load. Takes at most the time-out of a question or so."""
        await self.source.look()
        is_listed = self.source.status().loaded
        table = self.source.table
        self.placement.keep(table.keys())
        self._tenant_calls.keep(table.keys())
        # Also those that take no new calls: they may still have old ones, which count for their tenants.
        await asyncio.gather(*(self.ask(entry) for entry in table.values() if entry.http))
        self.has_asked = self.has_asked or is_listed

    async def close_everywhere(self, close: Callable[[Transceiver], Awaitable[None]]) -> None:
        """Close something at all transceivers, also those that take no new calls: as much work as a round of loads."""

        async def one(entry: Transceiver) -> None:
            async with self._closings:
                await close(entry)

        await asyncio.gather(*(one(entry) for entry in self.source.table.values() if entry.http))

    def _in_order(self, region: str) -> list[list[Route]]:
        table = self.source.table
        return self._regions.order(region, self._served(table, region), lambda route: table[route].region)

    def _served(self, table: RouteTable, region: str) -> Iterator[Route]:
        """Yield the transceivers that new calls may go to and whose relays have an address for the region."""
        # Most transceivers have the same addresses, as one object, which is looked at once and kept so that its id is.
        looked_at: dict[int, tuple[Sequence[RegionalAddress], bool]] = {}
        for route in _placeable(table):
            known = self._addresses.of(route)
            key = id(known)
            if key not in looked_at:
                looked_at[key] = known, bool(self._regions.addresses(region, known))
            if looked_at[key][1]:
                yield route

    async def ask(self, entry: Transceiver) -> None:
        """Ask one transceiver for its load. Raises nothing when it does not answer."""
        async with self._questions:
            asked_at = self._now()
            try:
                load = await self._source.load(entry.http, self._timeout)
            except TransceiverError as error:
                if self.placement.is_live(entry.route, asked_at):
                    log.warning("a transceiver does not tell its load", route=str(entry.route), error=str(error))
                return
        self.placement.report(entry.route, load, asked_at)
        self._tenant_calls.report(entry.route, load, asked_at)


def _placeable(table: RouteTable) -> Iterator[Route]:
    return (route for route, entry in table.items() if entry.placeable and entry.http)


def _any_of(words: Sequence[str]) -> str:
    return " or ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]
