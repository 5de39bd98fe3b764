"""Where signaling learns of the transceivers: from a route file, or from a watch of pods."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from usher_core.ids import Route
from usher_core.routes import RouteTable, Transceiver, parse_route_file
from usher_shell.watched_file import SourceStatus, WatchedFile

if TYPE_CHECKING:
    # Imported by who makes one: it costs 18 MB, which signaling with a route file need not pay.
    from usher_shell.pod_watch import PodWatch

FIND_S = 0.3
"""Seconds that a request about a call waits for its unknown transceiver: a watch takes less to tell of a new pod."""


class TransceiverSource(Protocol):
    """A source of the transceivers there are. When it is lost, the last good table stays in use."""

    advice: str
    """What whoever runs this server can do where no transceiver takes a call."""

    @property
    def table(self) -> RouteTable:
        """All transceivers, also those that take no new calls."""
        ...

    @property
    def is_settling(self) -> bool:
        """Whether those that could take calls are all held back, since they have just become known."""
        ...

    def status(self) -> SourceStatus:
        """Return how the source is now."""
        ...

    async def look(self) -> None:
        """Bring the table up to date, where that takes asking."""
        ...

    async def find(self, route: Route) -> Transceiver | None:
        """Return the transceiver of a route. An unknown one may be one that another replica knows already."""
        ...

    async def run(self) -> None:
        """Keep the table up to date, until cancelled, where it comes by itself."""
        ...


class RouteFile:
    """See TransceiverSource. The file may come later: the transceivers may still be starting."""

    advice = "the log of `usher up`, or the transceivers of the route file"

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, parse_route_file, "route file", until_there=RouteTable())

    @property
    def table(self) -> RouteTable:
        """See TransceiverSource."""
        return self._file.value

    @property
    def is_settling(self) -> bool:
        """See TransceiverSource. A file is taken at its word."""
        return False

    def status(self) -> SourceStatus:
        """See TransceiverSource."""
        return self._file.status()

    async def look(self) -> None:
        """See TransceiverSource."""
        await asyncio.to_thread(self._file.look)

    async def find(self, route: Route) -> Transceiver | None:
        """See TransceiverSource."""
        if route not in self.table:
            await self.look()
        return self.table.get(route)

    async def run(self) -> None:
        """See TransceiverSource. Whoever looks reads the file."""
        await asyncio.Event().wait()


class WatchedPods:
    """See TransceiverSource."""

    advice = "`kubectl get tpool,pods`"

    def __init__(self, watch: PodWatch) -> None:
        self._watch = watch

    @property
    def table(self) -> RouteTable:
        """See TransceiverSource."""
        return self._watch.table

    @property
    def is_settling(self) -> bool:
        """See TransceiverSource."""
        takers = [route for route, pod in self._watch.pods.items() if pod.takes_calls]
        return bool(takers) and not any(self.table[route].placeable for route in takers)

    def status(self) -> SourceStatus:
        """See TransceiverSource."""
        return self._watch.status()

    async def look(self) -> None:
        """See TransceiverSource. The watch tells."""

    async def find(self, route: Route) -> Transceiver | None:
        """See TransceiverSource."""
        return await self._watch.find(route, FIND_S)

    async def run(self) -> None:
        """See TransceiverSource."""
        await self._watch.run(lambda _table: None)
