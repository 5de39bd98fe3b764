"""The pods that the operator knows: found by what they belong to, once all of them have been told of."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.kube_fake import KubeFake
from tests.pod_objects import connect_to
from tests.transceiver_pools import make_pod
from usher_operator.names import CLUSTER_ID_LABEL, TRANSCEIVER, child_labels
from usher_operator.seen import PodSeen
from usher_operator.watched_pods import PodIndex, WatchedPods

LABELS = child_labels(TRANSCEIVER, "voice")


@pytest.fixture
async def api() -> AsyncIterator[KubeFake]:
    async with KubeFake() as fake:
        yield fake


@contextlib.asynccontextmanager
async def watching(pods: WatchedPods) -> AsyncIterator[None]:
    task = asyncio.create_task(pods.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def make(api: KubeFake, name: str, namespace: str = "fleet", *gates: dict[str, str]) -> None:
    metadata = {"name": name, "namespace": namespace, "labels": {**LABELS, CLUSTER_ID_LABEL: "7"}}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"schedulingGates": list(gates)}})


def names(pods: tuple[PodSeen, ...]) -> list[str]:
    return [pod.name for pod in pods]


def test_pods_are_found_by_pool_cluster_id_and_namespace_in_the_order_of_their_names() -> None:
    index = PodIndex([make_pod("b"), make_pod("a")])
    pod = make_pod("a")
    assert names(index.of_namespace(pod.namespace)) == ["a", "b"]
    assert names(index.of_pool(pod.namespace, TRANSCEIVER, "voice")) == ["a", "b"]
    assert names(index.of_cluster(pod.labels[CLUSTER_ID_LABEL])) == ["a", "b"]
    assert index.of_pool(pod.namespace, TRANSCEIVER, "other") == index.of_cluster("8") == index.of_namespace("x") == ()


async def test_pods_are_known_once_all_namespaces_have_been_listed_and_each_change_is_told(api: KubeFake) -> None:
    make(api, "a")
    make(api, "b", "other")
    make(api, "c", "third")
    fault = api.fail(403, verb="list", resource="pods", times=1)
    told: list[str] = []
    pods = WatchedPods(("fleet", "other"), connect_to(lambda: api.url), lambda pod: told.append(pod.name))
    async with watching(pods):
        await asyncio.wait_for(pods.until_loaded(), 10)
        assert fault.times == 0
        assert sorted(told) == names(pods.of_cluster("7")) == ["a", "b"]
        api.remove("Pod", "fleet", "a", force=True)
        await api.until(lambda: not pods.of_namespace("fleet"), "the pod is gone")
        assert told[2:] == ["a"]


async def test_without_namespaces_those_of_the_whole_cluster_are_watched(api: KubeFake) -> None:
    make(api, "a")
    make(api, "b", "other")
    pods = WatchedPods((), connect_to(lambda: api.url), lambda _: None)
    async with watching(pods):
        await asyncio.wait_for(pods.until_loaded(), 10)
        assert names(pods.of_cluster("7")) == ["a", "b"]


async def test_a_pod_that_cannot_be_read_costs_no_other_one(api: KubeFake) -> None:
    make(api, "a")
    make(api, "b", "fleet", {"label": "a gate has a name"})
    pods = WatchedPods(("fleet",), connect_to(lambda: api.url), lambda _: None)
    async with watching(pods):
        await asyncio.wait_for(pods.until_loaded(), 10)
        assert names(pods.of_namespace("fleet")) == ["a"]
