"""Looks at keys ask the watched pods as long as nothing is to be written, and then those that there are."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from kubernetes.aio.client import Configuration

from tests.kube_fake import KubeFake
from tests.operator_keys import pod
from tests.transceiver_pools import make_pod
from usher_operator.actions import Create, Reference
from usher_operator.apply import Applier, Subject
from usher_operator.keys.neighbours import Neighbour
from usher_operator.keys_keeper import FORGET_S, KeysKeeper
from usher_operator.kube import HttpKubeApi
from usher_operator.loads import Loads, PodClient
from usher_operator.main import Worker
from usher_operator.metrics import OperatorMetrics
from usher_operator.names import API_VERSION, RELAY, TRANSCEIVER, TRANSCEIVER_KEYS_SECRET, child_labels
from usher_operator.observe import Observer, Resolver
from usher_operator.plan.keys import KeysPlan, KeysSeen
from usher_operator.resends import Resends
from usher_operator.seen import PodSeen
from usher_operator.settings import OperatorSettings
from usher_operator.watched_pods import PodIndex

POOL = Subject(Reference("usher.fleet/v1alpha1", "TransceiverPool", "fleet", "voice"), "uid")
LABELS = child_labels(TRANSCEIVER, "voice")


class Watched(PodIndex):
    """What the watch knows, as a test tells it."""

    def take(self, pods: Iterable[PodSeen]) -> None:
        super().__init__(pods)


class Rig:
    """A keeper whose plan makes a Secret when it sees no pod."""

    def __init__(self, server: KubeFake) -> None:
        configuration = Configuration()
        configuration.host = server.url
        self.now = 0.0
        self.server = server
        self.seen: list[int] = []
        self.look_again: float | None = None
        self.waits_since: dict[str, float] = {}
        self.pods = Watched()
        self.api = HttpKubeApi(configuration)
        self.peers: list[dict[str, Any]] = []
        self.neighbours: tuple[Neighbour, ...] = ()
        self.asked: list[str] = []
        self.client = PodClient(httpx.MockTransport(self._answer))
        loads = Loads(self.client, lambda: self.now, lambda _outcome: None)
        observer = Observer(self.api, self.pods, loads, Resolver(lambda: self.now), Resends(lambda: self.now), "usher")
        applier = Applier(self.api, self.client, lambda: self.now)
        self.keeper = KeysKeeper(
            self.api, self.client, self.pods, observer, applier, self._plan, lambda: self.now, lambda: self.now
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        return httpx.Response(200, json={"peers": self.peers} if request.url.path == "/routes" else {"keys": []})

    def _plan(self, seen: KeysSeen, _now: float, _fresh: bytes) -> KeysPlan:
        self.seen.append(len(seen.transceivers))
        self.neighbours = seen.neighbours
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "made", "namespace": "fleet"}}
        if seen.transceivers or seen.namespace != "fleet":
            return KeysPlan((), (), look_again=self.look_again, waits_since=self.waits_since.get(seen.namespace))
        return KeysPlan((Create(secret),), ())

    def watch(self, *names: str) -> None:
        self.pods.take(make_pod(name) for name in names)

    def make(self, *names: str) -> None:
        for name in names:
            metadata = {"name": name, "namespace": "fleet", "labels": LABELS}
            self.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})

    def lists(self) -> int:
        return sum(call.verb == "list" and call.resource == "pods" for call in self.server.calls)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with KubeFake() as server:
        server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}})
        rig = Rig(server)
        yield rig
        await rig.api.close()
        await rig.client.close()


async def test_a_look_that_writes_nothing_lists_no_pods(rig: Rig) -> None:
    rig.make("a")
    rig.watch("a")
    await rig.keeper.current(POOL)
    assert rig.seen == [1]
    assert rig.lists() == 0


async def test_nothing_is_written_on_a_watch_that_lags(rig: Rig) -> None:
    rig.make("a")
    await rig.keeper.current(POOL)
    assert rig.seen == [0, 1]
    assert rig.server.get("Secret", "fleet", "made") is None


async def test_many_pods_are_listed_in_pages_and_none_is_missed(rig: Rig) -> None:
    rig.make(*(f"p{number}" for number in range(1100)))
    await rig.keeper.current(POOL)
    assert rig.seen == [0, 1100]
    assert rig.lists() == 3


async def test_a_look_that_is_wanted_at_once_asks_for_the_pods_that_there_are(rig: Rig) -> None:
    rig.watch("gone")
    await rig.keeper.current(POOL, now=True)
    assert rig.seen == [0]
    assert rig.server.get("Secret", "fleet", "made") is not None


async def test_looks_at_a_large_namespace_are_further_apart(rig: Rig) -> None:
    rig.pods.take(make_pod(f"p{number}", gated=True) for number in range(10_000))
    await rig.keeper.current(POOL)
    rig.now += 199
    await rig.keeper.current(POOL)
    assert len(rig.seen) == 1
    rig.now += 1
    await rig.keeper.current(POOL)
    assert len(rig.seen) == 2


async def test_a_wish_for_new_keys_is_seen_soon_though_the_next_step_by_schedule_is_weeks_away(rig: Rig) -> None:
    rig.watch("a")
    rig.look_again = 30 * 86_400.0
    await rig.keeper.current(POOL)
    rig.now += 30
    await rig.keeper.current(POOL)
    assert len(rig.seen) == 2


def pool_in(namespace: str) -> Subject:
    return Subject(Reference("usher.fleet/v1alpha1", "TransceiverPool", namespace, "voice"), "uid")


async def test_the_keeper_tells_how_long_the_rotation_that_waits_longest_has_waited(rig: Rig) -> None:
    assert rig.keeper.longest_wait() == 0
    rig.now = 1_000
    rig.waits_since = {"one": 900, "two": 400}
    for namespace in ("one", "two", "three"):
        await rig.keeper.current(pool_in(namespace))
    assert rig.keeper.longest_wait() == 600
    rig.now += 30
    assert rig.keeper.longest_wait() == 630
    rig.waits_since = {}
    for namespace in ("one", "two"):
        await rig.keeper.current(pool_in(namespace))
    assert rig.keeper.longest_wait() == 0


async def test_namespaces_whose_pools_are_gone_are_forgotten(rig: Rig) -> None:
    rig.waits_since = {f"n{number}": 1 for number in range(50)}
    for namespace in rig.waits_since:
        await rig.keeper.current(pool_in(namespace))
    rig.now += FORGET_S
    assert rig.keeper.longest_wait() == rig.now - 1
    rig.now += FORGET_S
    assert rig.keeper.longest_wait() == 0
    await rig.keeper.current(pool_in("n1"))
    assert rig.keeper.longest_wait() == rig.now - 1
    assert list(rig.keeper._latest) == ["n1"]
    assert list(rig.keeper._turns) == []


async def test_relays_hear_where_the_keys_of_each_pool_of_transceivers_come_from(rig: Rig) -> None:
    specs: dict[str, Any] = {"one": {}, "two": {"keys": {"secretRef": {"name": "mine"}}}, "going": {}}
    for name, spec in specs.items():
        metadata = {"name": name, "namespace": "fleet", "finalizers": ["example.com/stays"]}
        body = {"apiVersion": API_VERSION, "kind": "TransceiverPool", "metadata": metadata}
        rig.server.create({**body, "spec": {"replicas": 1, **spec}})
    rig.server.remove("TransceiverPool", "fleet", "going")
    rig.watch("a")
    plan = await rig.keeper.current(POOL)
    assert plan.transceiver_keys == {"one": TRANSCEIVER_KEYS_SECRET, "two": "mine"}


async def test_what_relays_hear_of_clusters_with_a_copy_of_the_keys_reaches_the_plan(rig: Rig) -> None:
    trunk = {"neighbours": [{"clusterID": 9}, {"clusterID": 8}]}
    for name, spec in {
        "one": {"trunk": trunk},
        "two": {},
        "own": {"keys": {"secretRef": {"name": "mine"}}, "trunk": trunk},
    }.items():
        body = {"apiVersion": API_VERSION, "kind": "RelayPool", "metadata": {"name": name, "namespace": "fleet"}}
        rig.server.create({**body, "spec": spec})
    rig.peers = [{"cluster": 9, "address": "192.0.2.1:3479", "up": True, "held_ice": ["1:a", "1:b"], "heard_s": 0.1}]
    rig.pods.take([make_pod("a"), replace(pod("relay", "r"), namespace="fleet", labels=child_labels(RELAY, "one"))])
    await rig.keeper.current(POOL)
    assert rig.neighbours == (Neighbour(8), Neighbour(9, (frozenset({"1:a", "1:b"}),)))
    assert [rig.asked.count(path) for path in ("/keys", "/routes")] == [1, 1], "each once"


async def test_pools_that_ask_at_a_time_share_one_look(rig: Rig) -> None:
    rig.watch("a")
    await asyncio.gather(*(rig.keeper.current(POOL) for _ in range(5)))
    assert rig.seen == [1]


async def test_the_operator_shows_the_wait_as_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeysKeeper, "longest_wait", lambda _keeper: 42.0)
    metrics = OperatorMetrics()
    worker = Worker(OperatorSettings(own_namespace="usher"), Configuration(), metrics, lambda: True)
    assert metrics.registry.get_sample_value("usher_operator_keys_waiting_seconds") == 42
    await worker._client.close()
    await worker._api.close()
