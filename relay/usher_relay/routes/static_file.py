"""The route table from a file (format: `usher_core.routes`), read again when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from usher_core.routes import RouteTable, parse_route_file
from usher_relay.routes.source import SourceStatus
from usher_relay.watched_file import WatchedFile


class StaticFileRoutes:
    """See `source.RouteSource`."""

    def __init__(self, path: Path) -> None:
        self._publish: Callable[[RouteTable], None] = _nowhere
        self._file = WatchedFile(path, parse_route_file, "route file", self._accept)

    def _accept(self, table: RouteTable) -> None:
        self._publish(table)

    async def run(self, publish: Callable[[RouteTable], None]) -> None:
        """See `source.RouteSource`."""
        self._publish = publish
        await self._file.watch(time.monotonic)

    def status(self) -> SourceStatus:
        """See `source.RouteSource`."""
        file = self._file
        return SourceStatus("file", file.loaded, file.age(time.monotonic()), file.fault)


def _nowhere(_table: RouteTable) -> None:
    raise AssertionError("the file is read by `run` only")
