"""The route table from a file (format: `usher_core.routes`), read again when it changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from usher_core.routes import RouteTable, parse_route_file
from usher_relay.source_status import SourceStatus
from usher_relay.watched_file import WatchedFile


class StaticFileRoutes:
    """See `source.RouteSource`."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, parse_route_file, "route file")

    async def run(self, publish: Callable[[RouteTable], None]) -> None:
        """See `source.RouteSource`."""
        await self._file.watch(publish)

    def status(self) -> SourceStatus:
        """See `source.RouteSource`."""
        return self._file.status()
