"""Where the route table comes from: one interface, several sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from prometheus_client.registry import Collector

from usher_core.routes import RouteTable
from usher_shell.watched_file import SourceStatus


class RouteSource(Protocol):
    """A source of the route table. When it is lost, the last good table stays in use."""

    async def run(self, publish: Callable[[RouteTable], None]) -> None:
        """Call `publish` with each new table, until cancelled. Never raises for what the source holds."""
        ...

    def status(self) -> SourceStatus:
        """Return how the source is now."""
        ...

    def collectors(self) -> Sequence[Collector]:
        """Return metrics of this source, beside those of its status."""
        ...
