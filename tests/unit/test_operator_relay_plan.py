"""What the operator does about a RelayPool, and what the pool says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.operator_keys import NOW
from tests.operator_relays import DEFAULTS, NODES, NOTHING, relay_pool, running, seen_after, with_ingress
from usher_operator import names
from usher_operator.actions import Apply, Plan
from usher_operator.api.relay_pool import RelayPool
from usher_operator.plan.events import tell_changes
from usher_operator.plan.relay_pool import plan_relay_pool
from usher_operator.seen import RelayPoolSeen
from usher_operator.times import timestamp


def plan(pool: RelayPool, seen: RelayPoolSeen) -> Plan:
    return plan_relay_pool(pool, seen, NOW, DEFAULTS)


def applied(outcome: Plan) -> list[str]:
    return [action.manifest["kind"] for action in outcome.actions if isinstance(action, Apply)]


def conditions(outcome: Plan) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in outcome.status["conditions"]}


def message(outcome: Plan, kind: str) -> str:
    return str(next(each["message"] for each in outcome.status["conditions"] if each["type"] == kind))


def addresses(outcome: Plan) -> list[tuple[int, str, int]]:
    return [(each["listener"], each["ip"], each["port"]) for each in outcome.status["addresses"]]


def told(outcome: Plan, before: RelayPool) -> dict[str, str]:
    """What people are told at once, and of what is still wrong after a while."""
    first = tell_changes(outcome.status["conditions"], before.status.conditions, {}, NOW)
    wrong = {reason: replace(trouble, last=NOW + 300) for reason, trouble in first.troubles.items()}
    later = tell_changes(outcome.status["conditions"], before.status.conditions, wrong, NOW + 300)
    assert {event.type for event in first.events} <= {"Normal"}
    return {event.reason: event.type for event in (*first.events, *later.events)}


LB = {"ip": "203.0.113.10"}
MINE = {"mine": frozenset({"keys.json"})}


# ---- what is made


def test_a_new_pool_gets_all_its_children_before_its_relays() -> None:
    outcome = plan(relay_pool(), NOTHING)
    kinds = applied(outcome)
    assert set(kinds) == {"ServiceAccount", "Role", "RoleBinding", "Service", "PodDisruptionBudget", "Deployment"}
    assert kinds[-1] == "Deployment"


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_a_pool_that_is_as_it_shall_be_is_left_alone(kind: str) -> None:
    pool = relay_pool(workload=kind)
    assert applied(plan(pool, running(pool))) == []


def test_only_what_changed_is_sent_again() -> None:
    pool = relay_pool()
    seen = running(pool)
    assert applied(plan(relay_pool(replicas=5), seen)) == ["Deployment"]
    assert applied(plan(relay_pool(exposure={"annotations": {"a": "b"}}), seen)) == ["Service"]
    assert applied(plan(relay_pool(disruption={"maxUnavailable": 2}), seen)) == ["PodDisruptionBudget"]
    assert applied(plan(pool, replace(seen, service=None))) == ["Service"]


def test_replicas_that_somebody_else_set_are_set_back() -> None:
    pool = relay_pool()
    seen = running(pool)
    assert seen.workload is not None
    changed = {**seen.workload, "spec": {**seen.workload["spec"], "replicas": 9}}
    assert applied(plan(pool, replace(seen, workload=changed))) == ["Deployment"]


def test_a_paused_pool_is_looked_at_but_not_changed() -> None:
    outcome = plan(relay_pool(paused=True), NOTHING)
    assert applied(outcome) == []
    assert conditions(outcome)["Progressing"] == ("False", "Paused")


# ---- deletion


def deleted(seconds_ago: float, **spec: Any) -> RelayPool:
    return relay_pool(metadata={"deletion_timestamp": timestamp(NOW - seconds_ago)}, **spec)


def test_a_deleted_pool_is_named_to_nobody_and_left_alone_while_its_relays_carry_flows() -> None:
    pool = relay_pool()
    seen = with_ingress(pool, LB)
    outcome = plan(deleted(30, drain={"gracePeriod": "60s"}), replace(seen, idle=frozenset({seen.pods[0].uid})))
    assert (outcome.done, applied(outcome), addresses(outcome)) == (False, [], [])
    assert conditions(outcome)["Ready"] == conditions(outcome)["Exposed"] == ("False", "Deleting")
    assert "may carry flows: 1" in message(outcome, "Progressing")
    assert not plan(pool, seen).done


def test_a_deleted_pool_is_done_once_every_relay_says_that_it_carries_nothing() -> None:
    seen = running(relay_pool())
    idle = frozenset(pod.uid for pod in seen.pods)
    assert plan(deleted(30), replace(seen, idle=idle)).done
    assert not plan(deleted(1), replace(seen, idle=idle)).done, "clients may come that were told the address just now"
    ending = tuple(replace(pod, deleted_at=NOW + 60) for pod in seen.pods)
    assert not plan(deleted(30), replace(seen, pods=ending)).done, "relays that end still forward"


def test_a_deleted_pool_is_done_when_its_time_is_over_whatever_its_relays_carry() -> None:
    seen = running(relay_pool())
    assert not plan(deleted(89), seen).done
    assert plan(deleted(90), seen).done
    assert not plan(deleted(3599, drain={"gracePeriod": "1h"}), seen).done
    assert plan(deleted(3600, drain={"gracePeriod": "1h"}), seen).done


def test_a_deleted_pool_without_a_running_relay_is_done_at_once() -> None:
    seen = running(relay_pool())
    stuck = tuple(replace(pod, phase="Pending", ready=False) for pod in seen.pods)
    assert plan(deleted(0), replace(seen, pods=stuck)).done
    crashed = tuple(replace(pod, ready=False, is_up=False) for pod in seen.pods)
    assert plan(deleted(0), replace(seen, pods=crashed)).done
    assert plan(deleted(0), NOTHING).done


# ---- addresses


def test_a_load_balancer_tells_its_addresses_for_each_listener() -> None:
    pool = relay_pool(listeners=[{"name": "media", "id": 1, "port": 3478}, {"name": "alt", "id": 2, "port": 443}])
    outcome = plan(pool, with_ingress(pool, LB, {"hostname": "lb.example"}, resolved={"lb.example": ("203.0.113.11",)}))
    assert addresses(outcome) == [
        (1, "203.0.113.10", 3478),
        (1, "203.0.113.11", 3478),
        (2, "203.0.113.10", 443),
        (2, "203.0.113.11", 443),
    ]
    assert conditions(outcome)["Ready"] == ("True", "Ready")


def test_without_an_address_it_says_what_to_do() -> None:
    pool = relay_pool()
    outcome = plan(pool, running(pool))
    assert conditions(outcome)["Exposed"] == conditions(outcome)["Ready"] == ("False", "AddressPending")
    assert outcome.status["endpoint"] == ""
    assert "exposure.advertisedAddresses" in message(outcome, "Exposed")
    outcome = plan(pool, with_ingress(pool, {"hostname": "lb.example"}))
    assert conditions(outcome)["Exposed"] == ("False", "NameUnresolved")
    assert "lb.example" in message(outcome, "Exposed")
    assert outcome.look_again is not None


def test_advertised_addresses_stand_instead_of_what_the_service_tells() -> None:
    told_addresses = ["192.0.2.9", "media.example", "[2001:db8::9]:5000", "192.0.2.8:3479"]
    listeners = [{"name": "media", "id": 1, "port": 3478}, {"name": "alt", "id": 2, "port": 3479}]
    pool = relay_pool(listeners=listeners, exposure={"advertisedAddresses": told_addresses})
    outcome = plan(pool, with_ingress(pool, LB, resolved={"media.example": ("192.0.2.10",)}))
    assert addresses(outcome) == [
        (1, "192.0.2.10", 3478),
        (1, "192.0.2.9", 3478),
        (1, "2001:db8::9", 5000),
        (2, "192.0.2.10", 3479),
        (2, "192.0.2.8", 3479),
        (2, "192.0.2.9", 3479),
    ]
    pool = relay_pool(exposure={"advertisedAddresses": ["media.example"]})
    assert conditions(plan(pool, running(pool)))["Exposed"] == ("False", "NameUnresolved")


@pytest.mark.parametrize("exposure", [{}, {"advertisedAddresses": ["lb.example"]}])
def test_a_name_that_does_not_resolve_keeps_the_addresses_that_the_status_has_of_it(exposure: Any) -> None:
    pool = relay_pool(exposure=exposure)
    entry = {"hostname": "lb.example"}
    before = plan(pool, with_ingress(pool, entry, resolved={"lb.example": ("203.0.113.11",)}))
    pool = relay_pool(status=before.status, exposure=exposure)
    # A new leader knows nothing but the status.
    outcome = plan(pool, with_ingress(pool, entry))
    assert addresses(outcome) == [(1, "203.0.113.11", 3478)]
    assert conditions(outcome)["Ready"] == ("True", "Ready")
    again = plan(relay_pool(status=outcome.status, exposure=exposure), with_ingress(pool, entry))
    assert addresses(again) == [(1, "203.0.113.11", 3478)]
    moved = with_ingress(pool, entry, resolved={"lb.example": ("203.0.113.12",)})
    assert addresses(plan(pool, moved)) == [(1, "203.0.113.12", 3478)]


def test_only_addresses_of_the_name_that_fails_are_kept() -> None:
    names_ = {"advertisedAddresses": ["a.example", "b.example", "192.0.2.9"]}
    pool = relay_pool(exposure=names_)
    seen = running(pool, resolved={"a.example": ("192.0.2.1",), "b.example": ("192.0.2.2",)})
    before = plan(pool, seen).status
    pool = relay_pool(status=before, exposure=names_)
    outcome = plan(pool, replace(seen, resolved={"a.example": ("192.0.2.7",)}))
    assert {ip for _, ip, _ in addresses(outcome)} == {"192.0.2.7", "192.0.2.2", "192.0.2.9"}
    fewer = relay_pool(status=before, exposure={"advertisedAddresses": ["c.example"]})
    assert addresses(plan(fewer, replace(seen, resolved={}))) == []


def node_port_pool(policy: str = "Local") -> tuple[RelayPool, RelayPoolSeen]:
    pool = relay_pool(exposure={"type": "NodePort", "externalTrafficPolicy": policy})
    seen = running(pool, nodes=NODES)
    assert seen.service is not None
    ports = [{**port, "nodePort": 31478} for port in seen.service["spec"]["ports"]]
    service = {**seen.service, "spec": {**seen.service["spec"], "ports": ports}}
    return pool, replace(seen, service=service)


def test_node_ports_are_told_of_nodes_that_forward() -> None:
    pool, seen = node_port_pool()
    seen = replace(seen, pods=seen.pods[:1])
    outcome = plan(pool, seen)
    assert addresses(outcome) == [(1, "198.51.100.1", 31478)]
    assert outcome.status["endpoint"] == "198.51.100.1:31478"
    assert "by 198.51.100.1:31478." in message(outcome, "Exposed")
    pool, everywhere = node_port_pool("Cluster")
    found = addresses(plan(pool, replace(everywhere, pods=seen.pods)))
    assert found == [(1, "198.51.100.1", 31478), (1, "198.51.100.2", 31478)]


def test_advertised_addresses_of_node_ports_have_the_node_port_unless_they_name_one() -> None:
    advertised = {"advertisedAddresses": ["192.0.2.9", "192.0.2.8:3478", "192.0.2.7:31478", "192.0.2.6:40000"]}
    pool = relay_pool(exposure={"type": "NodePort", **advertised})
    _, seen = node_port_pool()
    assert addresses(plan(pool, seen)) == [
        (1, "192.0.2.6", 40000),
        (1, "192.0.2.7", 31478),
        (1, "192.0.2.8", 3478),
        (1, "192.0.2.9", 31478),
    ]
    assert addresses(plan(pool, replace(seen, service=None))) == []


def test_host_ports_are_told_of_nodes_with_a_ready_relay() -> None:
    pool = relay_pool(exposure={"type": "HostPort"})
    seen = running(pool, nodes=NODES, pod_security="privileged")
    assert addresses(plan(pool, seen)) == [(1, "198.51.100.1", 3478), (1, "198.51.100.2", 3478)]
    ending = replace(seen.pods[0], deleted_at=NOW + 90)
    unready = replace(seen.pods[1], ready=False)
    outcome = plan(pool, replace(seen, pods=(ending, unready)))
    assert addresses(outcome) == []
    assert conditions(outcome)["Exposed"] == ("False", "NoReadyRelay")


@pytest.mark.parametrize("kind", ["NodePort", "HostPort"])
def test_an_operator_that_may_not_see_nodes_says_so(kind: str) -> None:
    pool = relay_pool(exposure={"type": kind})
    outcome = plan(pool, running(pool))
    assert conditions(outcome)["Exposed"] == ("False", "NodesUnknown")
    assert "advertisedAddresses" in message(outcome, "Exposed")


def test_a_cluster_ip_is_told_and_none_is_not() -> None:
    pool = relay_pool(exposure={"type": "ClusterIP"})
    seen = running(pool)
    assert seen.service is not None
    service = {**seen.service, "spec": {**seen.service["spec"], "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]}}
    assert addresses(plan(pool, replace(seen, service=service))) == [(1, "10.96.0.9", 3478)]
    service["spec"]["clusterIPs"] = ["None"]
    assert addresses(plan(pool, replace(seen, service=service))) == []


# ---- HostPort and Pod Security


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_host_ports_are_not_tried_where_pod_security_forbids_them_and_the_last_good_state_goes_on(level: str) -> None:
    before = relay_pool()
    status = plan(before, with_ingress(before, LB)).status
    pool = relay_pool(status=status, exposure={"type": "HostPort"})
    outcome = plan(pool, with_ingress(before, LB, pod_security=level))
    assert applied(outcome) == []
    assert addresses(outcome) == [(1, "203.0.113.10", 3478)]
    assert conditions(outcome)["Exposed"] == conditions(outcome)["Ready"] == ("False", "HostPortForbidden")
    assert conditions(outcome)["Available"][0] == "True"
    assert "enforce=privileged" in message(outcome, "Exposed")
    assert level in message(outcome, "Exposed")
    assert told(outcome, pool)["HostPortForbidden"] == "Warning"


@pytest.mark.parametrize("level", ["", "privileged"])
def test_host_ports_are_used_where_they_are_admitted(level: str) -> None:
    pool = relay_pool(exposure={"type": "HostPort"})
    assert "Deployment" in applied(plan(pool, replace(NOTHING, pod_security=level)))


# ---- conditions


def test_a_pool_without_an_image_keeps_what_runs() -> None:
    pool = relay_pool()
    outcome = plan_relay_pool(pool, running(pool), NOW, replace(DEFAULTS, relay_image=""))
    assert applied(outcome) == []
    assert conditions(outcome)["Accepted"] == conditions(outcome)["Ready"] == ("False", "NoImage")
    assert conditions(outcome)["Available"][0] == "True"


def test_children_of_somebody_else_are_not_touched() -> None:
    pool = relay_pool()
    seen = running(pool)
    theirs: dict[str, Any] = {"metadata": {"name": "edge-relay", "ownerReferences": []}}
    for changed in (replace(seen, workload=theirs), replace(seen, service=theirs)):
        outcome = plan(pool, changed)
        assert applied(outcome) == []
        assert conditions(outcome)["Accepted"] == ("False", "NameTaken")


def test_keys_that_are_missing_broken_or_rotating_are_said() -> None:
    pool = relay_pool(keys={"secretRef": {"name": "mine"}})
    outcome = plan(pool, with_ingress(pool, LB))
    assert conditions(outcome)["KeysReady"] == conditions(outcome)["Ready"] == ("False", "SecretMissing")
    outcome = plan(pool, with_ingress(pool, LB, secrets_forbidden=frozenset({"mine"})))
    assert conditions(outcome)["KeysReady"] == conditions(outcome)["Ready"] == ("False", "SecretForbidden")
    assert "add mine to rbac.secretNames" in message(outcome, "KeysReady")
    outcome = plan(pool, with_ingress(pool, LB, secrets={"mine": frozenset({"keys"})}))
    assert conditions(outcome)["KeysReady"] == conditions(outcome)["Ready"] == ("False", "SecretKeyMissing")
    assert "Secret mine of spec.keys.secretRef in namespace calls has no key keys.json" in message(outcome, "Ready")
    outcome = plan(pool, with_ingress(pool, LB, secrets=MINE, key_ids=("ice/A active 1d",)))
    assert conditions(outcome)["Ready"][0] == "True"
    assert outcome.status["keyIDs"] == []
    pool = relay_pool()
    outcome = plan(pool, with_ingress(pool, LB, keys_fault="Secret usher-keys was edited by hand"))
    assert conditions(outcome)["KeysReady"] == ("False", "KeysNotReady")
    assert "edited by hand" in message(outcome, "Ready")
    outcome = plan(pool, with_ingress(pool, LB, keys_note="waiting for edge-relay-2", key_ids=("ice/A active 1d",)))
    assert conditions(outcome)["KeysReady"] == ("True", "Rotating")
    assert "edge-relay-2" in message(outcome, "KeysReady")
    assert conditions(outcome)["Ready"][0] == "True"
    assert outcome.status["keyIDs"] == ["ice/A active 1d"]


def test_transceivers_of_another_namespace_need_keys_that_both_have() -> None:
    pool = relay_pool(transceivers={"namespaces": ["calls", "other"]})
    outcome = plan(pool, with_ingress(pool, LB))
    assert conditions(outcome)["KeysReady"] == ("False", "OtherNamespace")
    assert "spec.keys.secretRef" in message(outcome, "KeysReady")


@pytest.mark.parametrize("spec", [{}, {"keys": {"secretRef": {"name": names.RELAY_KEYS_SECRET}}}])
def test_transceivers_with_their_own_keys_are_named_by_relays_with_those_of_the_operator(spec: dict[str, Any]) -> None:
    pool = relay_pool(**spec)
    keys = {"voice": names.TRANSCEIVER_KEYS_SECRET, "other": "mine"}
    found = {names.RELAY_KEYS_SECRET: frozenset({names.KEYS_FILE})}
    outcome = plan(pool, with_ingress(pool, LB, secrets=found, transceiver_keys=keys))
    assert conditions(outcome)["KeysReady"] == conditions(outcome)["Ready"] == ("False", "MixedKeys")
    assert "the transceivers of other have keys of another source" in message(outcome, "KeysReady")
    assert addresses(outcome), "calls that work go on, such as those of a change from one source to the other"
    outcome = plan(pool, with_ingress(pool, LB, secrets=found, transceiver_keys={"voice": keys["voice"]}))
    assert conditions(outcome)["KeysReady"] == ("True", "KeysFound")


def test_transceivers_with_keys_of_the_operator_are_named_by_relays_with_keys_of_their_own() -> None:
    pool = relay_pool(keys={"secretRef": {"name": "mine"}})
    keys = {f"voice-{number}": names.TRANSCEIVER_KEYS_SECRET for number in range(7)} | {"good": "theirs"}
    outcome = plan(pool, with_ingress(pool, LB, secrets=MINE, transceiver_keys=keys))
    assert conditions(outcome)["KeysReady"] == ("False", "MixedKeys")
    assert "voice-0, voice-1, voice-2, voice-3, voice-4 and 2 more have" in message(outcome, "KeysReady")


def test_keys_of_transceivers_that_the_relays_do_not_serve_do_not_matter() -> None:
    pool = relay_pool(keys={"secretRef": {"name": "mine"}}, transceivers={"namespaces": ["other"]})
    keys = {"voice": names.TRANSCEIVER_KEYS_SECRET}
    outcome = plan(pool, with_ingress(pool, LB, secrets=MINE, transceiver_keys=keys))
    assert conditions(outcome)["KeysReady"] == ("True", "KeysFound")


def test_a_rollout_a_scaling_and_their_end_are_said() -> None:
    pool = relay_pool()
    seen = with_ingress(pool, LB)
    assert conditions(plan(pool, seen))["Progressing"] == ("False", "Complete")
    old = replace(seen.pods[0], labels={**seen.pods[0].labels, names.REVISION_LABEL: "old"})
    outcome = plan(pool, replace(seen, pods=(old, seen.pods[1])))
    assert conditions(outcome)["Progressing"] == ("True", "RollingOut")
    assert (outcome.status["replicas"], outcome.status["readyReplicas"], outcome.status["updatedReplicas"]) == (2, 2, 1)
    outcome = plan(pool, replace(seen, pods=seen.pods[:1]))
    assert conditions(outcome)["Progressing"] == ("True", "Scaling")
    assert conditions(outcome)["Available"][0] == "True"
    assert conditions(outcome)["Ready"][0] == "False"


def test_an_image_that_cannot_be_pulled_is_named() -> None:
    pool = relay_pool(image="registry.example/relay:nope")
    seen = with_ingress(pool, LB)
    bad = tuple(replace(each, ready=False, waiting_reason="ImagePullBackOff") for each in seen.pods)
    outcome = plan(pool, replace(seen, pods=bad))
    assert conditions(outcome)["Available"] == conditions(outcome)["Ready"] == ("False", "ImagePullFailed")
    assert "registry.example/relay:nope" in message(outcome, "Ready")


def test_a_daemon_set_wants_one_relay_for_each_node() -> None:
    pool = relay_pool(workload="DaemonSet")
    seen = with_ingress(pool, LB)
    outcome = plan(pool, replace(seen, workload={**(seen.workload or {}), "status": {"desiredNumberScheduled": 3}}))
    assert conditions(outcome)["Progressing"] == ("True", "Scaling")
    assert "of 3" in message(outcome, "Progressing")
    assert outcome.status["desiredReplicas"] == 3


def test_the_wanted_number_stands_beside_that_of_the_ready_ones() -> None:
    pool = relay_pool(replicas=5)
    status = plan(pool, with_ingress(pool, LB)).status
    assert [status[count] for count in ("desiredReplicas", "replicas", "readyReplicas")] == [5, 2, 2]


def test_events_are_told_when_something_changes_and_not_again() -> None:
    pool = relay_pool()
    first = plan(pool, running(pool))
    assert told(first, pool) == {"AddressPending": "Warning"}
    exposed = plan(pool, with_ingress(pool, LB))
    assert told(exposed, relay_pool(status=first.status))["Exposed"] == "Normal"
    pool = relay_pool(status=exposed.status)
    assert told(plan(pool, with_ingress(pool, LB)), pool) == {}
    assert told(plan(pool, running(pool)), pool)["AddressPending"] == "Warning"


def test_the_status_is_that_of_the_generation_and_carries_the_selector() -> None:
    outcome = plan(relay_pool(), NOTHING)
    assert outcome.status["observedGeneration"] == 3
    assert outcome.status["selector"] == (
        "app.kubernetes.io/component=relay,app.kubernetes.io/name=usher,usher.fleet/pool=edge"
    )
    assert [each["type"] for each in outcome.status["conditions"]] == [
        "Accepted",
        "Available",
        "Exposed",
        "KeysReady",
        "Progressing",
        "Ready",
    ]


def test_two_looks_bring_a_pool_to_rest() -> None:
    pool = relay_pool()
    seen = seen_after(pool, plan(pool, NOTHING))
    assert applied(plan(pool, seen)) == []
