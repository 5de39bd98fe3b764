"""Looks after the keys of namespaces: one look at a time for each, shared by the pools there."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from usher_core.decimals import read_decimal
from usher_core.ids import MAX_CLUSTER
from usher_operator import names
from usher_operator.actions import Reference
from usher_operator.api.common import seconds
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.apply import Applier, Subject
from usher_operator.keys.holders import Holder
from usher_operator.keys.neighbours import neighbours_heard
from usher_operator.keys.secrets import ALL as KEPT
from usher_operator.kube import KubeApi
from usher_operator.loads import PodClient, answered, ask_all
from usher_operator.observe import Observer, Pods, Pool, is_deleting, pod_seen, readable_pools
from usher_operator.plan.keys import FRESH_BYTES, KeysPlan, KeysSeen
from usher_operator.render.transceiver import keys_secret, token_secret
from usher_operator.seen import PodSeen
from usher_operator.trunk_looks import ask_endpoints

KEYS_EVERY_S = 30.0
POD_S = 0.02
"""A look asks every pod, so the looks of a large namespace are so many seconds for each pod apart."""
HELD_S = 30.0
"""For the answers of all pods."""
STEPS = 8
"""Looks in a row; each takes one step."""
HTTP_PORT = 7280
"""Of transceivers whose pool is gone."""
FORGET_S = 600.0
"""A namespace that nobody has asked for though a look was due so long has no pools any more."""


@dataclass(frozen=True, slots=True)
class _Latest:
    """The outcome of the latest look at a namespace, and when the next one is due."""

    plan: KeysPlan
    due: float


class KeysKeeper:
    """Keeps the keys of namespaces, and the outcome of the latest look for the pools there.

    Args:
        api: the API server.
        client: asks programs which keys they hold.
        pods: those that we watch. What is written rests on a list of those that there are, since a watch may lag.
        observer: reads tokens.
        applier: carries the plan out.
        plan: the pure plan, of what is seen, Unix seconds and FRESH_BYTES random bytes.
        clock: seconds that only go forward.
        wall: Unix seconds.
    """

    def __init__(
        self,
        api: KubeApi,
        client: PodClient,
        pods: Pods,
        observer: Observer,
        applier: Applier,
        plan: Callable[[KeysSeen, float, bytes], KeysPlan],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._api = api
        self._client = client
        self._pods = pods
        self._observer = observer
        self._applier = applier
        self._plan = plan
        self._clock = clock
        self._wall = wall
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._latest: dict[str, _Latest] = {}

    def longest_wait(self) -> float:
        """Return for how many seconds a rotation has waited for programs, of all namespaces the longest."""
        self._forget_old()
        since = [each.plan.waits_since for each in self._latest.values() if each.plan.waits_since is not None]
        return max(0.0, self._wall() - min(since)) if since else 0.0

    def wishes(self) -> dict[str, str]:
        """Return the wish for a rotation that the latest look at each namespace saw, "" for none."""
        return {namespace: latest.plan.wish for namespace, latest in self._latest.items()}

    def expire(self, namespace: str) -> None:
        """Something about the keys of a namespace has changed: the next one that asks gets a new look."""
        if latest := self._latest.get(namespace):
            self._latest[namespace] = replace(latest, due=self._clock())

    async def current(self, subject: Subject, *, now: bool = False) -> KeysPlan:
        """Return the newest outcome for a namespace, after a look if one is due or wanted `now`. Raises KubeError.

        Args:
            subject: the pool that asks; Events about keys are told of it.
            now: look, whether due or not.
        """
        namespace = subject.target.namespace
        async with self._turns.setdefault(namespace, asyncio.Lock()):
            latest = self._latest.get(namespace)
            if latest is not None and not now and self._clock() < latest.due:
                return latest.plan
            plan = await self._look(namespace, subject, is_live=now)
            wait = KEYS_EVERY_S if plan.look_again is None else min(max(plan.look_again, 1.0), KEYS_EVERY_S)
            wait = max(wait, POD_S * len(self._pods.of_namespace(namespace)))
            self._forget_old()
            self._latest[namespace] = _Latest(plan, self._clock() + wait)
            return plan

    def _forget_old(self) -> None:
        oldest = self._clock() - FORGET_S
        self._latest = {namespace: latest for namespace, latest in self._latest.items() if latest.due >= oldest}

    async def _look(self, namespace: str, subject: Subject, *, is_live: bool) -> KeysPlan:
        for _ in range(STEPS):
            plan = await self._plan_for(namespace, is_live=is_live)
            if plan.actions and not is_live:
                plan = await self._plan_for(namespace, is_live=True)
            outcome = await self._applier.carry_out(plan.actions, subject, "")
            if outcome.faults:
                fault = outcome.faults[0].message
                return KeysPlan((), plan.key_ids, fault, transceiver_keys=plan.transceiver_keys, wish=plan.wish)
            if plan.look_again != 0:
                break
        return plan

    async def _plan_for(self, namespace: str, *, is_live: bool) -> KeysPlan:
        seen = await self._observe(namespace, self._listed if is_live else self._watched)
        plan = self._plan(seen, self._wall(), secrets.token_bytes(FRESH_BYTES))
        return replace(plan, transceiver_keys=seen.transceiver_keys, wish=seen.wish)

    async def _watched(self, namespace: str) -> list[PodSeen]:
        return list(self._pods.of_namespace(namespace))

    async def _listed(self, namespace: str) -> list[PodSeen]:
        selector = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
        pages = self._api.pages("v1", "Pod", namespace, selector)
        return [pod_seen(body) async for page in pages for body in page]

    async def _observe(self, namespace: str, pods_of: Callable[[str], Awaitable[list[PodSeen]]]) -> KeysSeen:
        # The order matters, see KeysSeen: Secrets, then pods, then what they hold.
        found = {name: await self._api.get(Reference("v1", "Secret", namespace, name)) for name in KEPT}
        relay_pools = await readable_pools(self._api, RelayPool, namespace)
        transceiver_pools = await readable_pools(self._api, TransceiverPool, namespace)
        pods = await pods_of(namespace)
        relays = [pod for pod in _of(pods, names.RELAY) if _uses_ours(pod, relay_pools)]
        neighbours = _neighbours(relay_pools)
        transceivers = [pod for pod in _of(pods, names.TRANSCEIVER) if _uses_ours(pod, transceiver_pools)]
        labelled = {read_decimal(pod.labels.get(names.CLUSTER_ID_LABEL, ""), MAX_CLUSTER, 1) for pod in pods}
        ids = {pool.status.cluster_id or pool.spec.cluster_id for pool in transceiver_pools.values()}
        pools: tuple[Pool, ...] = (*relay_pools.values(), *transceiver_pools.values())
        staying = [pool for pool in pools if not is_deleting(pool)]
        uses_token = any(
            isinstance(pool, TransceiverPool) and pool.spec.internal_token_secret_ref is None for pool in staying
        )
        uses_keys = any(pool.spec.keys.secret_ref is None for pool in staying)
        return KeysSeen(
            namespace=namespace,
            secrets={name: secret for name, secret in found.items() if secret is not None},
            relays=await self._held(relays, self._relay_keys),
            transceivers=await self._held(transceivers, self._transceiver_keys(transceiver_pools)),
            clusters=frozenset(cluster for cluster in labelled | ids if cluster is not None),
            longest_call=max((float(seconds(p.spec.max_session_age)) for p in transceiver_pools.values()), default=0.0),
            is_wanted=bool(relays or transceivers) or uses_token or uses_keys,
            transceiver_keys={
                name: keys_secret(pool) for name, pool in transceiver_pools.items() if not is_deleting(pool)
            },
            neighbours=neighbours_heard(neighbours, await ask_endpoints(self._client, relays if neighbours else [])),
        )

    async def _held(self, pods: list[PodSeen], ask: Callable[[PodSeen], Any]) -> tuple[Holder, ...]:
        """Ask all pods at once, HELD_S for all; None for one that gives no answer."""
        held = answered(await ask_all({pod.uid: ask(pod) for pod in pods if pod.can_answer}, HELD_S))
        return tuple(Holder(pod, held.get(pod.uid)) for pod in pods)

    async def _relay_keys(self, pod: PodSeen) -> Any:
        return await self._client.relay_keys(pod.base_url(names.ADMIN_PORT))

    def _transceiver_keys(self, pools: Mapping[str, TransceiverPool]) -> Callable[[PodSeen], Any]:
        tokens: dict[str, str] = {}

        async def ask(pod: PodSeen) -> Any:
            pool = pools.get(pod.labels.get(names.POOL_LABEL, ""))
            secret = token_secret(pool)
            if secret not in tokens:
                tokens[secret] = await self._observer.token(pod.namespace, secret)
            port = pool.spec.media.http_port if pool is not None else HTTP_PORT
            return await self._client.transceiver_keys(pod.base_url(port), tokens[secret])

        return ask


def _of(pods: list[PodSeen], component: str) -> list[PodSeen]:
    return [pod for pod in pods if pod.labels.get(names.COMPONENT_LABEL) == component]


def _neighbours(pools: Mapping[str, RelayPool]) -> set[int]:
    """The clusters that trunks here name, of pools whose keys we make."""
    trunks = [pool.spec.trunk for pool in pools.values() if pool.spec.keys.secret_ref is None and not is_deleting(pool)]
    return {each.cluster_id for trunk in trunks if trunk is not None for each in trunk.neighbours}


def _uses_ours(pod: PodSeen, pools: Mapping[str, Pool]) -> bool:
    """Whether we make the keys of a pod; the pool may be gone already."""
    pool = pools.get(pod.labels.get(names.POOL_LABEL, ""))
    return pool is None or pool.spec.keys.secret_ref is None
