"""What plans see: pods without what they don't use, loads at a bounded rate, names with the last good answer."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from usher_core.internal_api import Load
from usher_operator.api.relay_pool import RelayPool
from usher_operator.loads import Loads, PodClient
from usher_operator.observe import Resolver, host_names, node_seen, pod_seen
from usher_operator.seen import PodSeen, pod_ids


def pod(uid: str = "u", phase: str = "Running", **more) -> PodSeen:
    body = {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "ns",
            "uid": uid,
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"big": "x" * 9999, "usher.fleet/mine": "1"},
            **more,
        },
        "spec": {"schedulingGates": [{"name": "usher.fleet/pod-id"}]},
        "status": {
            "phase": phase,
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"restartCount": 2, "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
        },
    }
    return pod_seen(body)


def test_a_pod_is_seen_without_what_no_plan_uses():
    seen = pod()
    assert seen.annotations == {"usher.fleet/mine": "1"}
    assert (seen.created_at, seen.ready, seen.restarts) == (1767225600.0, True, 2)
    assert (seen.gates, seen.waiting_reason, seen.deleted_at) == (("usher.fleet/pod-id",), "ImagePullBackOff", None)


def test_a_pod_that_the_api_server_has_just_made_is_seen():
    metadata = {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    seen = pod_seen({"metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:00Z"}})
    assert (seen.phase, seen.ip, seen.ready) == ("Pending", "", False)


@pytest.mark.parametrize(
    ("state", "is_up"),
    [
        ({"state": {"running": {}}, "started": True}, True),
        ({"state": {"running": {}}}, True),
        ({"state": {"running": {}}, "started": False}, False),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "started": False}, False),
        ({"state": {"terminated": {"exitCode": 1}}, "started": False}, False),
        ({}, False),
    ],
)
def test_a_program_is_up_once_its_own_container_has_started(state, is_up):
    metadata = {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    labels = {"app.kubernetes.io/component": "transceiver"}
    containers = [{"name": "a-mesh", "state": {"running": {}}, "started": True}, {"name": "transceiver", **state}]
    body = {"metadata": {**metadata, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}}
    assert pod_seen({**body, "status": {"phase": "Running", "containerStatuses": containers}}).is_up == is_up
    assert pod_seen({**body, "status": {"phase": "Running", "containerStatuses": containers[:1]}}).is_up
    assert pod_seen({**body, "status": {"phase": "Running"}}).is_up


@pytest.mark.parametrize("label", ["", "abc", "-1", "1" * 11, "٣"])
def test_a_label_that_is_no_pod_id_counts_for_nothing(label):
    assert pod_ids([pod(labels={"usher.fleet/pod-id": label})]) == ()


def test_a_node_is_known_by_its_external_addresses_or_else_its_internal_ones():
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "ExternalIP", "address": "192.0.2.1"}]
    node = {"metadata": {"name": "n"}}
    assert node_seen({**node, "status": {"addresses": addresses}}).addresses == ("192.0.2.1",)
    assert node_seen({**node, "status": {"addresses": addresses[:1]}}).addresses == ("10.0.0.1",)


def relay_pool(*advertised: str) -> RelayPool:
    metadata = {"name": "p", "namespace": "ns", "uid": "u"}
    return RelayPool.model_validate(
        {"metadata": metadata, "spec": {"exposure": {"advertisedAddresses": list(advertised)}}}
    )


def test_names_to_resolve_are_those_of_the_spec_or_of_the_load_balancer():
    pool = relay_pool("192.0.2.1", "192.0.2.1:1", "a.example", "b.example:3478", "2001:db8::1", "[2001:db8::1]:5")
    assert host_names(pool, None) == ["a.example", "b.example"]
    service = {"status": {"loadBalancer": {"ingress": [{"hostname": "lb.example"}, {"ip": "192.0.2.7"}]}}}
    assert host_names(relay_pool(), service) == ["lb.example"]


async def test_the_last_good_answer_of_a_name_stays_and_no_more_than_four_addresses_are_taken():
    now, answers = [0.0], [["192.0.2.%d" % n for n in range(9)]]

    async def resolve(_host: str) -> list[str]:
        if not answers:
            raise OSError("no such name")
        return answers.pop()

    resolver = Resolver(lambda: now[0], resolve)
    first = await resolver.look(["lb.example"])
    assert len(first["lb.example"]) == 4
    now[0] = 100
    assert await resolver.look(["lb.example"]) == first
    assert await resolver.look(["never.example"]) == {}


class Asked:
    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        self.is_silent = False
        self.outcomes: list[str] = []
        self.client = PodClient(httpx.MockTransport(self.answer))
        self.loads = Loads(self.client, lambda: self.now, self.outcomes.append)

    async def answer(self, _request: httpx.Request) -> httpx.Response:
        self.count += 1
        if self.is_silent:
            await asyncio.Event().wait()
        load = Load(sessions=self.count, max_sessions=9, accepts=True)
        return httpx.Response(200, content=load.model_dump_json())

    async def look(self, *pods: PodSeen, urgent: tuple[str, ...] = ()):
        return await self.loads.look(pods, 7280, "t", frozenset(urgent))


async def test_loads_are_asked_for_at_a_bounded_rate_but_for_urgent_pods():
    asked = Asked()
    for _ in range(3):
        await asked.look(pod("a"), pod("b", phase="Pending"))
    assert asked.count == 1
    await asked.look(pod("a"), urgent=("a",))
    assert asked.count == 2
    asked.now = 2.5
    assert (await asked.look(pod("a")))["a"].sessions == 3
    await asked.client.close()


async def test_pods_that_do_not_answer_are_missing_and_hold_nobody_up():
    asked = Asked()
    asked.loads.LOOK_S = 0.1
    asked.is_silent = True
    async with asyncio.timeout(5):
        assert await asked.look(*(pod(str(number)) for number in range(200))) == {}
    assert set(asked.outcomes) == {"silent"}
    await asked.client.close()


async def test_only_a_relay_that_says_it_has_no_flows_or_silent_ones_is_idle():
    says = [
        '{"flows": [], "idle": null, "limit": 1}',
        '{"flows": [{}], "idle": 10.0}',
        '{"flows": [{}], "idle": 9.9}',
        '{"flows": [{}]}',
        "no JSON",
    ]
    answers = {f"127.0.0.{number}": said for number, said in enumerate(says, start=1)}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host not in answers:
            raise httpx.ConnectError("no answer")
        assert (request.url.port, request.url.path) == (9478, "/flows")
        return httpx.Response(200, content=answers[request.url.host])

    client = PodClient(httpx.MockTransport(answer))
    loads = Loads(client, lambda: 0.0, lambda _outcome: None)
    pods = [replace(pod(str(number)), ip=f"127.0.0.{number}") for number in range(1, 7)]
    pods.append(pod("pending", phase="Pending"))
    assert await loads.idle_relays(pods, 9478) == {"1", "2"}
    assert await loads.idle_relays([], 9478) == frozenset()
    await client.close()
