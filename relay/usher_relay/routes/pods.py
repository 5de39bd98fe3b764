"""The route table from the transceiver pods of Kubernetes namespaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client.registry import Collector

from usher_core.routes import RouteTable
from usher_shell.pod_watch import PodWatch
from usher_shell.pod_watch_metrics import PodWatchCollector
from usher_shell.watched_file import SourceStatus


class PodRoutes:
    """See `source.RouteSource`. Relays know an address at once, so pods need not settle."""

    def __init__(self, namespaces: Sequence[str], selector: str) -> None:
        self._watch = PodWatch(namespaces, selector)

    async def run(self, publish: Callable[[RouteTable], None]) -> None:
        """See `source.RouteSource`."""
        await self._watch.run(publish)

    def status(self) -> SourceStatus:
        """See `source.RouteSource`."""
        return self._watch.status()

    def collectors(self) -> Sequence[Collector]:
        """See `source.RouteSource`."""
        return (PodWatchCollector(self._watch, "usher_relay"),)
