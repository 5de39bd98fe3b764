"""The relay addresses that RelayPools have in their status, followed by a watch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from usher_core.ids import Route
from usher_core.kubernetes_names import API_VERSION
from usher_core.pod_routes import RoutablePod
from usher_core.relay_pools import RelayPoolAddresses, parse_relay_pool
from usher_shell.kubernetes_client import Json
from usher_shell.object_watch import Connect, ObjectWatch, connect, worst_of
from usher_shell.pod_watch import PodWatch
from usher_shell.watched_file import SourceStatus
from usher_signaling.regions import RegionalAddress


class PoolAddresses:
    """See AddressBook. First the fixed addresses, then those of the RelayPools that serve the transceiver.

    Args:
        fixed: addresses that hold for all transceivers.
        namespaces: where the RelayPools are.
        pods: the transceiver pods.
        connect_: opens a connection to the API server.
    """

    advice = "whoever runs this server sees why in `kubectl get rpool`, at Exposed"

    def __init__(
        self,
        fixed: tuple[RegionalAddress, ...],
        namespaces: Sequence[str],
        pods: PodWatch,
        connect_: Connect = connect,
    ) -> None:
        self._fixed = fixed
        self._pods = pods
        self._pools: tuple[RelayPoolAddresses, ...] = ()
        self._joined: dict[tuple[int, ...], tuple[RegionalAddress, ...]] = {}
        self._remembered: dict[Route, tuple[RoutablePod, tuple[RegionalAddress, ...]]] = {}
        self._remembered_for: Mapping[Route, RoutablePod] = pods.pods
        self._name = f"RelayPools in {', '.join(namespaces)}"
        self._watches = [
            ObjectWatch(
                f"RelayPools in {namespace}",
                f"/apis/{API_VERSION}/namespaces/{namespace}/relaypools",
                "",
                self._parse,
                self._on_change,
                connect_,
            )
            for namespace in namespaces
        ]

    @staticmethod
    def _parse(body: Json) -> RelayPoolAddresses | None:
        return parse_relay_pool(body)

    async def run(self) -> None:
        """Follow the RelayPools until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self._watches:
                tasks.create_task(watch.run())

    def status(self) -> SourceStatus:
        """Return how the worst of the namespaces is."""
        loaded = all(watch.status().loaded for watch in self._watches)
        return worst_of(self._name, self._watches, loaded=loaded)

    def all(self) -> tuple[RegionalAddress, ...]:
        """See AddressBook."""
        return self._join(range(len(self._pools)))

    def of(self, route: Route) -> tuple[RegionalAddress, ...]:
        """See AddressBook."""
        pod = self._pods.pods.get(route)
        if pod is None:
            return self._fixed
        if self._remembered_for is not self._pods.pods:
            self._remembered_for = self._pods.pods
            self._remembered = {key: kept for key, kept in self._remembered.items() if key in self._remembered_for}
        remembered = self._remembered.get(route)
        if remembered is None or remembered[0] is not pod:
            serving = [index for index, pool in enumerate(self._pools) if pool.serves(pod)]
            remembered = self._remembered[route] = pod, self._join(serving)
        return remembered[1]

    def _join(self, indexes: Iterable[int]) -> tuple[RegionalAddress, ...]:
        key = tuple(indexes)
        if key not in self._joined:
            found = [
                RegionalAddress(address, self._pools[index].region)
                for index in key
                for address in self._pools[index].addresses
            ]
            self._joined[key] = tuple(dict.fromkeys((*self._fixed, *found)))
        return self._joined[key]

    def _on_change(self) -> None:
        pools = [pool for watch in self._watches for pool in watch.objects.values()]
        self._pools = tuple(sorted(pools, key=lambda pool: (pool.namespace, pool.name)))
        self._joined.clear()
        self._remembered.clear()
