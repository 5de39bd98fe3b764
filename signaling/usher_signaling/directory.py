"""The transceivers there are: addresses from the route file, loads asked for in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

import structlog

from usher_core.ids import Route
from usher_core.internal_api import Load
from usher_core.routes import RouteTable, Transceiver
from usher_shell.watched_file import WatchedFile
from usher_signaling.placement import Placement
from usher_signaling.transceiver_client import TransceiverError

log = structlog.get_logger()

MAX_QUESTIONS = 64
"""Load questions under way at once."""


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
        source: whom to ask.
        timeout: seconds that an answer may take.
        now: monotonic seconds.
    """

    def __init__(
        self,
        table: WatchedFile[RouteTable],
        placement: Placement,
        source: LoadSource,
        timeout: float,
        now: Callable[[], float],
    ) -> None:
        self._table = table
        self.placement = placement
        self._source = source
        self._timeout = timeout
        self._now = now
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)

    @property
    def transceivers(self) -> RouteTable:
        """All transceivers, also those that take no new calls."""
        return self._table.value

    def owner(self, route: Route) -> Transceiver | None:
        """The transceiver of a route, None when it is gone."""
        return self._table.value.get(route)

    def choose(self, tried: Collection[Route]) -> Transceiver | None:
        """The transceiver for a new call, None when no other takes one."""
        route = self.placement.choose(self._placeable(), self._now(), tried)
        return None if route is None else self._table.value[route]

    def live_count(self) -> int:
        """How many transceivers new calls could be placed at, full ones included."""
        now = self._now()
        return sum(self.placement.is_live(route, now) for route in self._placeable())

    async def refresh(self) -> None:
        """One round: the file, then every transceiver's load. Takes at most the time-out of a question or so."""
        await asyncio.to_thread(self._table.look)
        self.placement.keep(self._table.value.keys())
        entries = [self._table.value[route] for route in self._placeable()]
        await asyncio.gather(*(self._ask(entry) for entry in entries))

    def _placeable(self) -> list[Route]:
        return [route for route, entry in self._table.value.items() if entry.placeable and entry.http]

    async def _ask(self, entry: Transceiver) -> None:
        async with self._questions:
            asked_at = self._now()
            try:
                load = await self._source.load(entry.http, self._timeout)
            except TransceiverError as error:
                if self.placement.is_live(entry.route, asked_at):
                    log.warning("a transceiver does not tell its load", route=str(entry.route), error=str(error))
                return
        self.placement.report(entry.route, load, asked_at)
