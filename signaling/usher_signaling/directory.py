"""The transceivers there are: addresses from the route file, loads asked for in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import structlog

from usher_core.ids import Route
from usher_core.internal_api import Load
from usher_core.routes import RouteTable, Transceiver
from usher_shell.watched_file import WatchedFile
from usher_signaling.placement import Placement, Report
from usher_signaling.regions import Regions, tried_last
from usher_signaling.tenant_calls import TenantCalls
from usher_signaling.transceiver_client import TransceiverError

log = structlog.get_logger()

MAX_QUESTIONS = 64
"""Load questions under way at once."""


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
        table: where the transceivers stand.
        placement: the rules of the choice; it learns the loads.
        tenant_calls: learns from the loads how many calls a tenant has.
        regions: which transceivers come first.
        source: whom to ask.
        timeout: seconds that an answer may take.
        now: monotonic seconds.
    """

    def __init__(
        self,
        table: WatchedFile[RouteTable],
        placement: Placement,
        tenant_calls: TenantCalls,
        regions: Regions,
        source: LoadSource,
        timeout: float,
        now: Callable[[], float],
    ) -> None:
        self._table = table
        self.placement = placement
        self._tenant_calls = tenant_calls
        self._regions = regions
        self._source = source
        self._timeout = timeout
        self._now = now
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)

    @property
    def transceivers(self) -> RouteTable:
        """All transceivers, also those that take no new calls."""
        return self._table.value

    async def find_owner(self, route: Route) -> Transceiver | None:
        """The transceiver of a route, None when it is gone."""
        # Another replica may have read the file since we have, and placed a call at a new transceiver.
        if route not in self._table.value:
            await asyncio.to_thread(self._table.look)
        return self._table.value.get(route)

    def choose(self, region: str, tried: Collection[Route]) -> Transceiver | None:
        """The transceiver for a new call of a region, None when no other takes one."""
        # Another thread reads the file, so the table may be another one by the time the choice is made.
        table = self._table.value
        groups = tried_last(self._in_order(region), tried)
        route = self.placement.choose(groups, self._now(), tried)
        return None if route is None else table.get(route)

    def serves(self, region: str) -> bool:
        """Whether a new call of a region has a transceiver to go to. It may be full."""
        now = self._now()
        return any(self.placement.is_live(route, now) for group in self._in_order(region) for route in group)

    def live_count(self) -> int:
        """How many transceivers new calls could be placed at, full ones included."""
        now = self._now()
        return sum(self.placement.is_live(route, now) for route in self._placeable())

    def statuses(self) -> list[Status]:
        """How every transceiver is, in the order of the route file."""
        now = self._now()
        return [
            Status(entry, self.placement.is_live(route, now), self.placement.last_report(route, now))
            for route, entry in self._table.value.items()
        ]

    async def refresh(self) -> None:
        """One round: the file, then every transceiver's load. Takes at most the time-out of a question or so."""
        await asyncio.to_thread(self._table.look)
        self.placement.keep(self._table.value.keys())
        self._tenant_calls.keep(self._table.value.keys())
        # Also those that take no new calls: they may still have old ones, which count for their tenants.
        await asyncio.gather(*(self.ask(entry) for entry in self._table.value.values() if entry.http))

    def _in_order(self, region: str) -> list[list[Route]]:
        table = self._table.value
        return self._regions.order(region, self._placeable(), lambda route: table[route].region)

    def _placeable(self) -> list[Route]:
        return [route for route, entry in self._table.value.items() if entry.placeable and entry.http]

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
