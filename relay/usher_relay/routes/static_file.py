"""The route table from a file (format: `usher_core.routes`), read again when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client.registry import Collector

from usher_core.errors import LocalError
from usher_core.routes import RouteTable, parse_route_file
from usher_shell.watched_file import SourceStatus, WatchedFile

LOOK_EVERY_S = 0.1
"""A new transceiver is to be routable within 0.3 s."""


class StaticFileRoutes:
    """See `source.RouteSource`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: WatchedFile[RouteTable] | None = None

    async def run(self, publish: Callable[[RouteTable], None]) -> None:
        """See `source.RouteSource`."""

        def take(text: str) -> RouteTable:
            table = parse_route_file(text)
            try:
                publish(table)
            except (OSError, ValueError) as error:
                # Routes that the engine can't use are a broken file: the last good ones stay in use.
                raise LocalError(f"the route file can't be used: {error}", "see docs/wire.md, route file") from None
            return table

        # Read here and not before, so that nobody takes the source for loaded whose table was not published.
        self._file = WatchedFile(self._path, take, "route file", until_there=RouteTable())
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._file.look()

    def status(self) -> SourceStatus:
        """See `source.RouteSource`."""
        return self._file.status() if self._file else SourceStatus(str(self._path), loaded=False, age=None, fault="")

    def collectors(self) -> Sequence[Collector]:
        """See `source.RouteSource`."""
        return ()
