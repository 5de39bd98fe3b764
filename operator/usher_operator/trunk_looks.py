"""What the operator looks at where a RelayPool names other clusters: what its relays say, and which ids are taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from usher_core.decimals import read_decimal
from usher_core.ids import MAX_CLUSTER
from usher_core.internal_api import HeldKeys
from usher_core.keys import KeyState
from usher_core.label_selectors import matches
from usher_operator import names
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.loads import PodClient, answered, ask_all
from usher_operator.seen import EndpointSeen, PodSeen, TrunksSeen

AnswerT = TypeVar("AnswerT")

LOOK_S = 3.0
MAX_ASKED = 100
"""Relays that a look asks; they have the same peers."""


async def ask_relays(client: PodClient, pods: Iterable[PodSeen]) -> tuple[TrunksSeen, ...]:
    """Return what the ready relays among `pods` say of trunks; whoever gives no answer is missing."""

    async def ask(pod: PodSeen) -> TrunksSeen:
        base = pod.base_url(names.ADMIN_PORT)
        endpoints, keys = await client.relay_peers(base), await client.relay_keys(base)
        return TrunksSeen(pod.name, endpoints, *_live_keys(keys))

    return tuple(await _ask_ready(pods, ask))


async def ask_endpoints(client: PodClient, pods: Iterable[PodSeen]) -> list[EndpointSeen]:
    """Return the endpoints of peers that the ready relays among `pods` tell, of all relays in one list."""

    async def ask(pod: PodSeen) -> tuple[EndpointSeen, ...]:
        return await client.relay_peers(pod.base_url(names.ADMIN_PORT))

    return [each for endpoints in await _ask_ready(pods, ask) for each in endpoints]


async def _ask_ready(pods: Iterable[PodSeen], ask: Callable[[PodSeen], Awaitable[AnswerT]]) -> list[AnswerT]:
    asked = [pod for pod in pods if pod.ready and pod.can_answer and not pod.is_ending][:MAX_ASKED]
    return list(answered(await ask_all({pod.uid: ask(pod) for pod in asked}, LOOK_S)).values())


def _live_keys(held: HeldKeys) -> tuple[frozenset[int], Mapping[int, frozenset[str]]]:
    live = [key for key in held.keys if key.state != KeyState.RETIRED]
    ice: dict[int, set[str]] = {}
    for key in live:
        for cluster in key.clusters if key.list == "ice" else ():
            ice.setdefault(cluster, set()).add(key.id)
    hop = frozenset(cluster for key in live if key.list == "hop" for cluster in key.clusters)
    return hop, {cluster: frozenset(letters) for cluster, letters in ice.items()}


def clusters_served(
    pool: RelayPool, pods: Iterable[PodSeen], transceiver_pools: Iterable[TransceiverPool]
) -> dict[int, str]:
    """Return the cluster ids of the transceivers that a RelayPool selects, each with the name of its TransceiverPool.

    Args:
        pool: the RelayPool.
        pods: of the namespaces that it serves.
        transceiver_pools: those there; one may have no pods yet.
    """
    selector, found = pool.spec.transceivers.selector, {}
    for each in transceiver_pools:
        cluster = each.status.cluster_id or each.spec.cluster_id
        if cluster is not None and matches(selector, _labels_of_pods(each, cluster)):
            found[cluster] = each.metadata.name
    for pod in pods:
        cluster = read_decimal(pod.labels.get(names.CLUSTER_ID_LABEL, ""), MAX_CLUSTER, 1)
        if cluster is not None and matches(selector, pod.labels):
            found.setdefault(cluster, pod.labels.get(names.POOL_LABEL, ""))
    return found


def _labels_of_pods(pool: TransceiverPool, cluster: int) -> dict[str, str]:
    own = (pool.spec.pod_template.get("metadata") or {}).get("labels") or {}
    fixed = names.child_labels(names.TRANSCEIVER, pool.metadata.name)
    return {**own, **fixed, names.CLUSTER_ID_LABEL: str(cluster)}
