"""The route table from a watch of transceiver pods (rules: `usher_core.pod_routes`)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from usher_core.errors import LocalError
from usher_core.ids import Route
from usher_core.kubernetes_names import TRANSCEIVER_SELECTOR
from usher_core.pod_routes import RoutablePod, parse_pod, routes_of
from usher_core.routes import RouteTable, Transceiver
from usher_shell.kubernetes_client import Json
from usher_shell.object_watch import Connect, ObjectWatch, connect, worst_of
from usher_shell.watched_file import SourceStatus

log = structlog.get_logger()

GATHER_S = 0.02
"""Least time between two tables: a hundred pods at once make a few tables, not a hundred."""


class PodWatch:
    """The transceiver pods of some namespaces; see `RouteSource` of the relay.

    A table is made once all namespaces have been listed: with half of the routes a relay would drop the packets of the
    other half, while another relay has them.

    Args:
        namespaces: where the pods are.
        selector: further label selector of the pods, "" for none.
        settle: seconds that an address must have been known before its pod gets new calls, so that relays know it, too.
        connect_: opens a connection to the API server.
    """

    def __init__(
        self, namespaces: Sequence[str], selector: str = "", settle: float = 0, connect_: Connect = connect
    ) -> None:
        self.table = RouteTable()
        self.pods: Mapping[Route, RoutablePod] = {}
        self.conflicts = 0
        self._settle = settle
        self._changed = asyncio.Event()
        self._published = asyncio.Event()
        self._known_since: dict[tuple[str, str], float] = {}
        self._fault = ""
        self._is_published = False
        both = f"{TRANSCEIVER_SELECTOR},{selector}" if selector else TRANSCEIVER_SELECTOR
        self.name = f"pods in {', '.join(namespaces)}" + (f" with {selector}" if selector else "")
        self._watches = [
            ObjectWatch(
                f"pods in {namespace}",
                f"/api/v1/namespaces/{namespace}/pods",
                both,
                self._parse,
                self._changed.set,
                connect_,
            )
            for namespace in namespaces
        ]

    @staticmethod
    def _parse(body: Json) -> RoutablePod | None:
        return parse_pod(body)

    async def run(self, publish: Callable[[RouteTable], None]) -> None:
        """Call `publish` with each new table, until cancelled. Never raises for what the API server says."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self._watches:
                tasks.create_task(watch.run())
            until_settled: float | None = None
            while True:
                try:
                    async with asyncio.timeout(until_settled):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                self._changed.clear()
                if all(watch.status().loaded for watch in self._watches):
                    until_settled = self._publish(publish)
                await asyncio.sleep(GATHER_S)

    def status(self) -> SourceStatus:
        """Return how the worst of the namespaces is."""
        status = worst_of(self.name, self._watches, loaded=self._is_published)
        return replace(status, fault=status.fault or self._fault)

    @property
    def skipped(self) -> Counter[str]:
        """How many pods have no route though they should, by reason."""
        return Counter(reason for watch in self._watches for reason in watch.skipped.values())

    @property
    def restarts(self) -> Counter[str]:
        """How often lists and watches ended, by reason."""
        return sum((watch.restarts for watch in self._watches), Counter())

    async def find(self, route: Route, within: float) -> Transceiver | None:
        """Return the transceiver of a route; when it is unknown, wait for it so many seconds."""
        try:
            async with asyncio.timeout(within):
                while route not in self.table:
                    await self._published.wait()
        except TimeoutError:
            pass
        return self.table.get(route)

    def _publish(self, publish: Callable[[RouteTable], None]) -> float | None:
        """Make and hand out a table; return in how many seconds a pod of it settles."""
        now = time.monotonic()
        pods = [pod for watch in self._watches for pod in watch.objects.values()]
        self._known_since = {key: self._known_since.get(key, now) for key in map(_address_of, pods)}
        settled_by = now - self._settle
        found = routes_of(pods, lambda pod: self._known_since[_address_of(pod)] <= settled_by)
        if found.conflicts > self.conflicts:
            log.error(
                "pods share a route; the oldest has it",
                count=found.conflicts,
                fix="delete the newer pods: pod ids are never given twice",
            )
        try:
            publish(found.table)
        except (OSError, ValueError, LocalError) as error:
            # Routes that can't be used: the last good ones stay in use.
            if not self._fault:
                log.error("routes can't be used", what=self.name, error=str(error))
            self._fault = f"the routes can't be used: {error}"
        else:
            self._fault = ""
            self._is_published = True
            self.table, self.pods, self.conflicts = found.table, found.pods, found.conflicts
            self._published.set()
            self._published = asyncio.Event()
        waiting = [since for since in self._known_since.values() if since > settled_by]
        return min(waiting) + self._settle - now if waiting else None


def _address_of(pod: RoutablePod) -> tuple[str, str]:
    return pod.uid, pod.transceiver.udp
