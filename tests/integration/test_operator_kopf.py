"""The operator with kopf in this process, against a fake API server: from a pool to ready pods, and back."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.operator_rig import NAMESPACE, Rig, operator_rig
from usher_operator import resends
from usher_operator.names import FINALIZER


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with operator_rig() as made:
        yield made


async def test_a_pool_becomes_ready_pods_with_ids_of_their_own(rig):
    async with rig.operator():
        rig.pool()
        await rig.ready()
        assert len(set(rig.ids())) == 3
        pool = rig.api.get("TransceiverPool", NAMESPACE, "p")
        assert pool["status"]["replicas"] == pool["status"]["readyReplicas"] == 3
        assert pool["metadata"]["finalizers"] == [FINALIZER]
        assert "kopf" not in json.dumps(pool["metadata"])
        assert rig.api.get("Lease", "usher", f"usher-cluster-{pool['status']['clusterID']}") is not None


async def test_a_settled_pool_is_left_alone(rig):
    async with rig.operator():
        rig.pool()
        await rig.ready()
        await asyncio.sleep(0.5)
        before = len(rig.api.writes())
        labels = {"app.kubernetes.io/managed-by": "usher-operator", "app.kubernetes.io/component": "transceiver"}
        labels["usher.fleet/pool"] = "p"
        metadata = {"name": "another", "namespace": NAMESPACE, "labels": labels}
        rig.api.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata})
        looks = len(rig.api.calls)
        await rig.api.until(lambda: len(rig.api.calls) > looks, "an event brings a look")
        await asyncio.sleep(0.5)
        assert rig.api.writes()[before:] == []


async def test_what_others_change_is_put_right(rig):
    async with rig.operator():
        rig.pool()
        await rig.ready()
        rig.api.remove("Deployment", NAMESPACE, "p-transceiver")
        await rig.api.until(lambda: len(rig.api.all("Pod")) == 0, "its pods are gone")
        await rig.api.until(lambda: len(rig.ids()) == 3, "there are new ones")
        await rig.ready()


async def test_a_deleted_pool_goes_once_its_calls_have_ended(rig):
    async with rig.operator():
        rig.pool(replicas=1)
        await rig.ready()
        [pod] = rig.api.all("Pod")
        rig.transceivers.sessions[pod["status"]["podIP"]] = 1
        rig.workloads._hold = True
        rig.api.remove("TransceiverPool", NAMESPACE, "p")
        await rig.api.until(
            lambda: rig.transceivers.draining or "deletionTimestamp" in rig.api.all("Pod")[0]["metadata"],
            "its pod is told to end",
        )
        await asyncio.sleep(0.3)
        assert rig.api.get("TransceiverPool", NAMESPACE, "p") is not None
        rig.transceivers.sessions.clear()
        await rig.api.until(lambda: "deletionTimestamp" in rig.api.all("Pod")[0]["metadata"], "its pod ends")
        rig.workloads.finish(NAMESPACE, pod["metadata"]["name"])
        await rig.api.until(lambda: not rig.api.all("TransceiverPool"), "the pool is gone")
        for kind in ("Deployment", "Service", "PodDisruptionBudget", "ServiceAccount"):
            assert rig.api.all(kind, NAMESPACE) == []


async def test_a_pod_that_somebody_sets_aside_drains_and_holds_up_neither_its_pool_nor_the_one_in_its_place(rig):
    async with rig.operator():
        rig.pool(replicas=1)
        await rig.ready()
        [pod] = rig.api.all("Pod")
        name, ip = pod["metadata"]["name"], pod["status"]["podIP"]
        rig.transceivers.sessions[ip] = 1
        rig.workloads.set_aside(NAMESPACE, name)
        await rig.api.until(lambda: len(set(rig.ids())) == 2, "the one in its place has an id of its own")
        await rig.api.until(lambda: rig.transceivers.draining == {ip}, "it drains")
        await rig.api.until(lambda: rig.status().get("sessions") == 1, "its call is counted")
        await rig.ready()
        assert [rig.status()[count] for count in ("replicas", "readyReplicas", "drainingReplicas")] == [1, 1, 0]
        states = {
            each["metadata"]["name"]: each["metadata"]["labels"]["usher.fleet/state"] for each in rig.api.all("Pod")
        }
        assert states.pop(name) == "draining"
        assert list(states.values()) == ["active"]
        rig.api.remove("TransceiverPool", NAMESPACE, "p")
        await rig.api.until(lambda: not rig.api.all("TransceiverPool"), "the pool is gone")
        await rig.api.until(lambda: len(rig.api.all("Pod")) == 1, "and its own pod")
        assert rig.api.all("Pod")[0]["metadata"]["name"] == name
        assert [name in event["message"] for event in rig.api.all("Event") if event["reason"] == "PodsLeft"] == [True]


async def test_a_silent_transceiver_keeps_no_other_one_of_a_deleted_pool_from_draining(rig):
    async with rig.operator():
        rig.pool()
        await rig.ready()
        ips = {pod["status"]["podIP"] for pod in rig.api.all("Pod")}
        rig.transceivers.sessions = dict.fromkeys(ips, 1)
        rig.transceivers.silent = {min(ips)}
        rig.api.remove("TransceiverPool", NAMESPACE, "p")
        await rig.api.until(lambda: rig.transceivers.draining == ips - {min(ips)}, "the others are told to drain")
        assert not any("deletionTimestamp" in pod["metadata"] for pod in rig.api.all("Pod"))
        assert rig.api.get("Deployment", NAMESPACE, "p-transceiver")["spec"]["replicas"] == 3
        rig.transceivers.silent.clear()
        await rig.api.until(lambda: not rig.api.all("TransceiverPool"), "the pool is gone")


async def test_two_pools_of_a_namespace_have_ids_and_drains_of_their_own(rig):
    async with rig.operator():
        rig.pool("p", replicas=2)
        rig.pool("q", replicas=2)
        await rig.ready("p")
        await rig.ready("q")
        clusters = {rig.api.get("TransceiverPool", NAMESPACE, name)["status"]["clusterID"] for name in "pq"}
        assert len(clusters) == 2
        rig.api.remove("TransceiverPool", NAMESPACE, "q")
        await rig.api.until(lambda: len(rig.api.all("TransceiverPool")) == 1, "one is gone")
        await rig.api.until(lambda: len(rig.api.all("Pod")) == 2, "and its pods")
        await rig.ready("p")
        assert {pod["metadata"]["labels"]["usher.fleet/pool"] for pod in rig.api.all("Pod")} == {"p"}
        assert rig.api.get("Secret", NAMESPACE, "usher-keys") is not None


async def test_one_operator_of_the_whole_cluster_looks_after_all_namespaces(rig):
    rig.settings = rig.settings.model_copy(update={"namespaces": ()})
    async with rig.operator():
        rig.pool(replicas=1)
        pool = {"apiVersion": "usher.fleet/v1alpha1", "kind": "TransceiverPool", "spec": {"replicas": 1}}
        rig.api.create({**pool, "metadata": {"name": "p", "namespace": "other"}})
        for namespace in (NAMESPACE, "other"):
            await rig.api.until(
                lambda namespace=namespace: rig.condition("Ready", namespace=namespace)[0] == "True", namespace
            )
        clusters = {rig.api.get("TransceiverPool", place, "p")["status"]["clusterID"] for place in (NAMESPACE, "other")}
        assert len(clusters) == 2


async def test_a_relay_pool_becomes_relays_with_an_address_and_goes_again(rig):
    async with rig.operator():
        rig.relay_pool()
        names = ("Role", "RoleBinding", "ServiceAccount", "Deployment", "Service", "PodDisruptionBudget")
        for kind in names:
            await rig.api.until(lambda kind=kind: rig.api.get(kind, NAMESPACE, "r-relay"), f"there is a {kind}")
        await rig.api.until(lambda: rig.condition("Available", "r", "RelayPool")[0] == "True", "relays are ready")
        assert rig.condition("Exposed", "r", "RelayPool") == ("False", "AddressPending")
        assert rig.condition("Ready", "r", "RelayPool")[0] == "False"
        status = {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}
        rig.api.change("Service", NAMESPACE, "r-relay", lambda body: body.update(status=status))
        await rig.api.until(lambda: rig.condition("Ready", "r", "RelayPool")[0] == "True", "it is Ready")
        assert rig.condition("Exposed", "r", "RelayPool")[0] == "True"
        pool = rig.api.get("RelayPool", NAMESPACE, "r")
        assert {address["ip"] for address in pool["status"]["addresses"]} == {"203.0.113.7"}
        rig.transceivers.flows.append("a call")
        rig.api.remove("RelayPool", NAMESPACE, "r")
        await rig.api.until(lambda: rig.condition("Ready", "r", "RelayPool")[1] == "Deleting", "it is being deleted")
        pool = rig.api.get("RelayPool", NAMESPACE, "r")
        assert not pool["status"].get("addresses")
        asked = rig.transceivers.asked.count("GET /flows")
        await rig.api.until(lambda: rig.transceivers.asked.count("GET /flows") > asked + 2, "they are asked again")
        assert all(rig.api.get(kind, NAMESPACE, "r-relay") for kind in names)
        rig.transceivers.flows.clear()
        await rig.api.until(lambda: not rig.api.all("RelayPool"), "the pool is gone", 20)
        for kind in (*names, "Pod"):
            await rig.api.until(lambda kind=kind: not rig.api.all(kind, NAMESPACE), f"no {kind} is left")


async def test_what_somebody_changed_by_hand_is_set_right(rig, monkeypatch):
    monkeypatch.setattr(resends, "RESEND_S", 0.0)
    async with rig.operator():
        rig.relay_pool()
        rig.pool(replicas=1)
        await rig.ready()
        await rig.api.until(lambda: rig.condition("Available", "r", "RelayPool")[0] == "True", "relays are ready")
        services = [("Service", NAMESPACE, "r-relay"), ("Service", NAMESPACE, "p-transceiver")]
        role = ("Role", NAMESPACE, "r-relay")
        wanted = [rig.api.get(*service)["spec"]["selector"] for service in services]
        rules = rig.api.get(*role)["rules"]
        rig.api.change(*role, lambda body: body.update(rules=[]))
        for service in services:
            rig.api.change(*service, lambda body: body["spec"].update(selector={"theirs": "1"}))
        for service, selector in zip(services, wanted, strict=True):
            await rig.api.until(
                lambda service=service, selector=selector: (
                    selector.items() <= rig.api.get(*service)["spec"]["selector"].items()
                ),
                f"{service} is right",
            )
        await rig.api.until(lambda: rig.api.get(*role)["rules"] == rules, "the Role is right")


async def test_a_wish_for_new_keys_is_in_condition_and_event_within_seconds(rig):
    async with rig.operator():
        rig.relay_pool()
        rig.pool(replicas=1)
        await rig.ready()
        await rig.api.until(lambda: rig.condition("Available", "r", "RelayPool")[0] == "True", "relays are ready")
        rig.api.change(
            "Secret",
            NAMESPACE,
            "usher-keys",
            lambda body: body["metadata"]["annotations"].update({"usher.fleet/rotate": "now"}),
        )
        for name, kind in (("p", "TransceiverPool"), ("r", "RelayPool")):
            await rig.api.until(
                lambda name=name, kind=kind: rig.condition("KeysReady", name, kind) == ("True", "Rotating"), name, 8
            )
        (given,) = [event["message"] for event in rig.api.all("Event") if event["reason"] == "KeyGiven"]
        assert "a rotation begins, as was asked for" in given
        conditions = rig.api.get("RelayPool", NAMESPACE, "r")["status"]["conditions"]
        message = next(each["message"] for each in conditions if each["type"] == "KeysReady")
        assert message.startswith("Rotation, step 1 of 2: key ")


async def test_a_scale_up_and_down_loses_no_pod_with_calls(rig):
    async with rig.operator():
        rig.pool(replicas=2)
        await rig.ready()
        busy = rig.api.all("Pod")[0]
        rig.transceivers.sessions[busy["status"]["podIP"]] = 5
        rig.scale(1)
        await rig.api.until(lambda: len(rig.api.all("Pod")) == 1, "one is left")
        assert rig.api.all("Pod")[0]["metadata"]["name"] == busy["metadata"]["name"]
        assert busy["status"]["podIP"] not in rig.transceivers.draining


@pytest.mark.parametrize("step", range(1, 27, 5))
async def test_an_operator_that_dies_after_any_write_is_continued_by_the_next(rig, step):
    rig.pool()
    async with rig.operator():

        def count(_type: str, _body: dict[str, Any]) -> None:
            if len(rig.api.writes()) >= step:
                rig.may_write = False

        rig.api.on_change(count)
        await rig.api.until(lambda: not rig.may_write or rig.condition("Ready")[0] == "True", f"{step} writes")
    rig.api._listeners.remove(count)
    rig.may_write = True
    async with rig.operator():
        await rig.ready()
    assert len(set(rig.ids())) == 3


@pytest.mark.parametrize(("code", "late"), [(409, False), (429, False), (503, False), (500, True), (0, True)])
async def test_errors_of_the_api_server_delay_and_do_no_harm(rig, code, late):
    for resource in ("leases.coordination.k8s.io", "deployments.apps", "pods", "secrets"):
        for verb in ("create", "update", "apply", "patch"):
            rig.api.fail(code, verb=verb, resource=resource, late=late)
    async with rig.operator():
        rig.pool()
        await rig.ready(within=25)
    assert len(set(rig.ids())) == 3


async def test_a_status_that_meets_a_conflict_is_written_again(rig):
    rig.api.fail(409, verb="apply", subresource="status", times=3)
    async with rig.operator():
        rig.pool()
        await rig.ready()


async def test_a_watch_that_is_too_old_or_cut_misses_nothing(rig):
    async with rig.operator():
        rig.pool()
        await rig.ready()
        for number in range(3):
            (rig.api.compact if number % 2 else rig.api.close_watches)()
            wanted = 4 + number
            rig.scale(wanted)
            await rig.api.until(lambda wanted=wanted: len(rig.ids()) == wanted, "one pod more")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (422, "spec.template: Invalid value"),
        (
            500,
            "failed to create typed patch object (ns/p): .spec.template.spec.volumes: expected list, got &{map[a:1]}",
        ),
    ],
)
async def test_a_refused_deployment_is_said_and_ids_are_given_all_the_same(rig, code, why):
    async with rig.operator():
        rig.pool()
        await rig.ready()
        rig.api.fail(code, verb="apply", resource="deployments.apps", message=why, times=1000)
        rig.api.change("TransceiverPool", NAMESPACE, "p", lambda body: body["spec"].update(image="transceiver:2"))
        await rig.api.until(lambda: rig.condition("Ready") == ("False", "Refused"), "the status says so")
        pool = rig.api.get("TransceiverPool", NAMESPACE, "p")
        message = next(c["message"] for c in pool["status"]["conditions"] if c["type"] == "Ready")
        assert why in message
        assert "change what spec of this pool sets there" in message
        assert "the last good state goes on" in message
        await rig.api.until(
            lambda: [event for event in rig.api.all("Event") if event["reason"] == "Refused"], "people are told"
        )
        rig.scale(5)
        await rig.api.until(lambda: len(set(rig.ids())) == 5, "the size goes on changing")
        await rig.api.until(lambda: rig.status().get("readyReplicas") == 5, "all are ready")
        rig.scale(3)
        await rig.api.until(lambda: len(rig.api.all("Pod")) == 3, "both ways")
        rig.api.remove("Pod", NAMESPACE, rig.api.all("Pod")[0]["metadata"]["name"])
        await rig.api.until(lambda: len(set(rig.ids())) == 3, "the new pod has an id")
        told = [event["message"] for event in rig.api.all("Event") if event["reason"] == "Ready"]
        assert told == ["All 3 wanted transceivers are ready."]


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (409, "Conflict")])
async def test_a_pod_that_cannot_be_changed_keeps_no_other_one_from_its_id_and_is_told_of(
    rig, monkeypatch, code, reason
):
    monkeypatch.setattr("usher_operator.reconciler.MAX_CONFLICT_S", 0.1)
    stubborn: list[str] = []

    def refuse_the_first_pod(_type: str, body: dict[str, Any]) -> None:
        if body["kind"] == "Pod" and not stubborn:
            stubborn.append(body["metadata"]["name"])
            rig.api.fail(code, verb="patch", resource="pods", name=stubborn[0], times=10_000)

    rig.api.on_change(refuse_the_first_pod)
    async with rig.operator():
        rig.pool()
        await rig.api.until(lambda: len(set(rig.ids())) == 2, "the others have ids")
        await rig.api.until(lambda: rig.condition("Ready") == ("False", reason), "the status says so", 20)
        conditions = rig.api.get("TransceiverPool", NAMESPACE, "p")["status"]["conditions"]
        assert stubborn[0] in next(found["message"] for found in conditions if found["type"] == "Ready")
        rig.api.heal()
        await rig.ready()


async def test_a_change_that_never_ceases_to_meet_conflicts_is_said_in_the_status(rig, monkeypatch):
    monkeypatch.setattr("usher_operator.reconciler.MAX_CONFLICT_S", 0.1)
    async with rig.operator():
        rig.pool()
        await rig.ready()
        # An answer of 422 without causes: a `test` that fails, or an operation that never works.
        rig.api.fail(422, verb="patch", resource="deployments.apps", times=10_000)
        rig.scale(5)
        await rig.api.until(lambda: rig.condition("Ready") == ("False", "Conflict"), "the status says so", 20)
        rig.api.heal()
        await rig.api.until(lambda: len(set(rig.ids())) == 5, "it goes on")
        await rig.ready()


async def test_a_spec_that_no_crd_checked_is_said_in_the_status(rig):
    async with rig.operator():
        rig.pool(replicas="many")
        await rig.api.until(lambda: rig.condition("Accepted") == ("False", "InvalidSpec"), "the status says so")


@pytest.mark.parametrize(
    ("kind", "name", "child"), [("TransceiverPool", "p", "p-transceiver"), ("RelayPool", "r", "r-relay")]
)
async def test_a_deleted_pool_whose_spec_is_invalid_goes_once_its_pods_have_ended(rig, kind, name, child):
    async with rig.operator():
        (rig.pool if kind == "TransceiverPool" else rig.relay_pool)()
        await rig.api.until(lambda: rig.condition("Available", name, kind)[0] == "True", "pods are ready")
        rig.api.change(kind, NAMESPACE, name, lambda body: body["spec"].update(replicas="many"))
        await rig.api.until(lambda: rig.condition("Accepted", name, kind) == ("False", "InvalidSpec"), "it is said")
        pods = [pod["metadata"]["name"] for pod in rig.api.all("Pod")]
        assert not any("deletionTimestamp" in pod["metadata"] for pod in rig.api.all("Pod"))
        rig.workloads._hold = True
        rig.api.remove(kind, NAMESPACE, name)
        await rig.api.until(
            lambda: all("deletionTimestamp" in pod["metadata"] for pod in rig.api.all("Pod")), "its pods end"
        )
        looks = len(rig.api.calls)
        await rig.api.until(lambda: len(rig.api.calls) > looks + 10, "it is looked at again", 20)
        assert rig.api.get(kind, NAMESPACE, name) is not None
        assert rig.api.get("Service", NAMESPACE, child) is not None
        for pod in pods:
            rig.workloads.finish(NAMESPACE, pod)
        await rig.api.until(lambda: not rig.api.all(kind), "the pool is gone", 20)


async def test_one_that_leads_no_more_writes_nothing(rig):
    async with rig.operator():
        rig.pool()
        await rig.ready()
        told = "Ready"  # the last write of a look
        await rig.api.until(lambda: told in {event["reason"] for event in rig.api.all("Event")}, "the look has ended")
        rig.may_write = False
        before = len([call for call in rig.api.writes() if call.resource != "transceiverpools.usher.fleet"])
        rig.scale(5)
        await asyncio.sleep(0.5)
        assert len([c for c in rig.api.writes() if c.resource != "transceiverpools.usher.fleet"]) == before


async def test_an_operator_waits_for_the_crds(rig):
    resource = rig.api.resources.pop("relaypools.usher.fleet")
    async with rig.operator():
        rig.pool()
        await asyncio.sleep(0.3)
        assert rig.condition("Ready") == ("", "")
        rig.api.resources[resource.id] = resource
        await rig.ready()


@pytest.mark.timed
async def test_pods_that_waited_while_no_operator_ran_start_within_two_seconds(rig):
    async with rig.operator():
        rig.pool()
        await rig.ready()
    rig.api.change("Deployment", NAMESPACE, "p-transceiver", lambda body: body["spec"].update(replicas=6))
    await rig.api.until(lambda: len(rig.api.all("Pod")) == 6, "three more pods wait")
    rig.scale(6)
    began = asyncio.get_running_loop().time()
    async with rig.operator():
        await rig.api.until(lambda: len(set(rig.ids())) == 6, "all have ids")
        assert asyncio.get_running_loop().time() - began < 2
