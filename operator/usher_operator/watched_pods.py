"""The pods of all pools, kept up to date by list and watch; found by pool, cluster id and namespace.

Kopf does not watch them: it has a task for each object, and as long as it fills an index each of these is woken for
every other one. With ten thousand pods a leader would do nothing else for longer than its Lease lasts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from usher_core.errors import RemoteError
from usher_operator import names
from usher_operator.kube import PAGE
from usher_operator.observe import pod_seen
from usher_operator.seen import PodSeen
from usher_shell.object_watch import Connect, ObjectWatch

SELECTOR = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
"""The API server filters, not we: otherwise every pod in sight would come in."""

_POOL, _CLUSTER, _NAMESPACE = "pool", "cluster", "namespace"


class PodIndex:
    """Pods by pool, cluster id and namespace.

    Args:
        pods: all of them.
    """

    def __init__(self, pods: Iterable[PodSeen] = ()) -> None:
        found = defaultdict[tuple[str, ...], list[PodSeen]](list)
        for pod in sorted(pods, key=lambda pod: pod.name):
            for key in _keys(pod):
                found[key].append(pod)
        self._found: Mapping[tuple[str, ...], tuple[PodSeen, ...]] = {key: tuple(pods) for key, pods in found.items()}

    def of_pool(self, namespace: str, component: str, pool: str) -> tuple[PodSeen, ...]:
        """Return the pods of a pool, by name."""
        return self._found.get((_POOL, namespace, component, pool), ())

    def of_cluster(self, cluster: str) -> tuple[PodSeen, ...]:
        """Return all pods that carry a cluster id, by name."""
        return self._found.get((_CLUSTER, cluster), ())

    def of_namespace(self, namespace: str) -> tuple[PodSeen, ...]:
        """Return all pods of a namespace, by name."""
        return self._found.get((_NAMESPACE, namespace), ())


def _keys(pod: PodSeen) -> list[tuple[str, ...]]:
    """Return under what a pod is found."""
    labels = pod.labels
    keys: list[tuple[str, ...]] = [(_NAMESPACE, pod.namespace)]
    if component := labels.get(names.COMPONENT_LABEL):
        keys.append((_POOL, pod.namespace, component, labels.get(names.POOL_LABEL, "")))
    if cluster := labels.get(names.CLUSTER_ID_LABEL):
        keys.append((_CLUSTER, cluster))
    return keys


def _parse(body: dict[str, Any]) -> PodSeen:
    try:
        return pod_seen(body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RemoteError("malformed", f"it can't be read: {type(error).__name__} {error}") from None


class _PodWatch(ObjectWatch[PodSeen]):
    """Nothing here minds that parsing a larger page holds up the process for longer."""

    page_size = PAGE


class WatchedPods:
    """The pods of some namespaces, as the API server last told of them.

    Args:
        namespaces: where the pods are; none: the whole cluster.
        connect: opens a connection to the API server.
        on_change: called with each pod that came, changed or went.
    """

    def __init__(self, namespaces: Sequence[str], connect: Connect, on_change: Callable[[PodSeen], None]) -> None:
        places = {f"pods in {each}": f"/api/v1/namespaces/{each}/pods" for each in namespaces}
        self._watches = [
            _PodWatch(name, path, SELECTOR, _parse, self._changed, connect, on_each=on_change)
            for name, path in (places or {"pods": "/api/v1/pods"}).items()
        ]
        self._loaded = asyncio.Event()
        self._index: PodIndex | None = None

    async def run(self) -> None:
        """Follow them until cancelled. Never raises for what the API server says."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self._watches:
                tasks.create_task(watch.run())

    async def until_loaded(self) -> None:
        """Return once the pods of all namespaces are known."""
        await self._loaded.wait()

    def of_pool(self, namespace: str, component: str, pool: str) -> tuple[PodSeen, ...]:
        """See PodIndex."""
        return self._now().of_pool(namespace, component, pool)

    def of_cluster(self, cluster: str) -> tuple[PodSeen, ...]:
        """See PodIndex."""
        return self._now().of_cluster(cluster)

    def of_namespace(self, namespace: str) -> tuple[PodSeen, ...]:
        """See PodIndex."""
        return self._now().of_namespace(namespace)

    def _changed(self) -> None:
        self._index = None
        if all(watch.status().loaded for watch in self._watches):
            self._loaded.set()

    def _now(self) -> PodIndex:
        """Return the index, made when somebody asks: in a storm of changes there are fewer looks."""
        if self._index is None:
            self._index = PodIndex(pod for watch in self._watches for pod in watch.objects.values())
        return self._index
