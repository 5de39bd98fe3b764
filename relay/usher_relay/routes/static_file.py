"""The route table from a file (format: `usher_core.routes`), read again when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

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
        # Read here and not before, so that nobody takes the source for loaded whose table was not published.
        file = self._file = WatchedFile(self._path, parse_route_file, "route file", until_there=RouteTable())
        publish(file.value)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if file.look():
                publish(file.value)

    def status(self) -> SourceStatus:
        """See `source.RouteSource`."""
        return self._file.status() if self._file else SourceStatus(str(self._path), loaded=False, age=None, fault="")
