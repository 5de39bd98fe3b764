"""Cluster ids: who gets which. Pod ids: which number is next, and what is written in which order."""

import dataclasses
from typing import Any

import pytest

from tests.transceiver_pools import (
    CLUSTER,
    DEFAULTS,
    NOW,
    condition,
    make_lease,
    make_plan,
    make_pod,
    make_pool,
    make_seen,
    patches,
    value_set,
)
from usher_core.ids import MAX_POD
from usher_operator.actions import Apply, Create, JsonPatch, Replace
from usher_operator.identity.cluster_ids import claim_cluster_id
from usher_operator.identity.lease import read_leases
from usher_operator.identity.pod_ids import BATCH, EPOCH, grant
from usher_operator.names import LAST_POD_ID_ANNOTATION, POD_ID_GATE, POD_ID_LABEL, REVISION_LABEL
from usher_operator.plan.defaults import Defaults
from usher_operator.plan.transceiver_pool import plan_pod_ids, plan_transceiver_pool

CLOCK = int(NOW) - EPOCH
OTHER = "fleet/other"


@pytest.mark.parametrize(
    ("spec", "status", "leases", "holders", "cluster", "reason"),
    [
        pytest.param({}, {}, [], [], 100, "Claiming", id="the first of the range"),
        pytest.param({}, {"clusterID": 101}, [(OTHER, 101)], [OTHER], 100, "Claiming", id="a status copied from it"),
        pytest.param({}, {"clusterID": 101}, [(OTHER, 101)], [], 100, "Claiming", id="copied, the other pool is gone"),
        pytest.param(
            {}, {"clusterID": 102}, [("fleet/voice", 101)], [], 101, "Allocated", id="a status that somebody wrote"
        ),
        pytest.param(
            {},
            {"clusterID": 101},
            [("fleet/voice", 100), ("fleet/voice", 101)],
            [],
            101,
            "Allocated",
            id="of several the one in the status",
        ),
        pytest.param({}, {"clusterID": 101}, [("", 101)], [], 101, "Claiming", id="the Lease was emptied"),
        pytest.param({}, {}, [(OTHER, 100)], [OTHER], 101, "Claiming", id="the first that nobody ever had"),
        pytest.param({}, {}, [(OTHER, 100)], [], 101, "Claiming", id="an unused one before one given back"),
        pytest.param({}, {}, [(OTHER, i) for i in (100, 101, 102)], [], 100, "Claiming", id="one given back"),
        pytest.param(
            {}, {}, [(OTHER, i) for i in (100, 101, 102)], [OTHER], None, "RangeExhausted", id="none in the range"
        ),
        pytest.param({}, {}, [("fleet/voice", 101)], [], 101, "Allocated", id="a pool of that name resumes"),
        pytest.param({"clusterID": 7}, {}, [], [], 7, "Claiming", id="pinned, outside of the range"),
        pytest.param({"clusterID": 7}, {}, [(OTHER, 7)], [OTHER], None, "Taken", id="pinned, but of another pool"),
        pytest.param({"clusterID": 7}, {}, [(OTHER, 7)], [], 7, "Claiming", id="pinned, the other pool is gone"),
        pytest.param({}, {"clusterID": 101}, [], [], 101, "Claiming", id="the Lease was deleted"),
        pytest.param(
            {"clusterID": 7}, {"clusterID": 101}, [("fleet/voice", 101)], [], 101, "Immutable", id="pinned too late"
        ),
    ],
)
def test_a_pool_gets_its_cluster_id(
    spec: dict[str, Any],
    status: dict[str, Any],
    leases: list[tuple[str, int]],
    holders: list[str],
    cluster: int | None,
    reason: str,
) -> None:
    found = read_leases(make_lease(holder, cluster=number) for holder, number in leases)
    claim = claim_cluster_id(make_pool(spec, status), found, frozenset(holders), DEFAULTS)
    assert (claim.cluster, claim.verdict.reason) == (cluster, reason)


@pytest.mark.parametrize("holds", [(), (100,)])
def test_an_id_that_its_pods_carry_a_pool_keeps_or_says_who_took_it(holds: tuple[int, ...]) -> None:
    leases = read_leases([make_lease(OTHER, cluster=101), *(make_lease(cluster=each) for each in holds)])
    pool, used = make_pool(status={"clusterID": 101}), frozenset([101])
    claim = claim_cluster_id(pool, leases, frozenset([OTHER]), DEFAULTS, used)
    assert (claim.cluster, claim.verdict.reason) == (None, "Taken")
    assert claim_cluster_id(pool, {}, frozenset(), DEFAULTS, used).cluster == 101


def test_a_status_copied_from_another_pool_is_set_right_and_gives_none_of_its_ids() -> None:
    pool = make_pool(status={"clusterID": 101})
    leases = (make_lease(OTHER, cluster=101),)
    first = make_plan(pool, deployment=None, children={}, leases=leases, holders=frozenset([OTHER]))
    (claim,) = [action for action in first.actions if isinstance(action, Create)]
    assert claim.manifest["metadata"]["name"] == "usher-cluster-100"
    held = make_plan(pool, deployment=None, leases=(*leases, make_lease()), holders=frozenset([OTHER, "fleet/voice"]))
    assert held.status["clusterID"] == 100
    assert condition(held, "ClusterIDAllocated")["reason"] == "Allocated"


@pytest.mark.parametrize(("pods", "claims"), [((), False), ((make_pod(),), True)])
def test_a_pool_that_is_refused_claims_no_cluster_id_that_it_does_not_use(pods: tuple[Any, ...], claims: bool) -> None:
    pool = make_pool()
    theirs = {"metadata": {"name": "voice-transceiver", "ownerReferences": []}}
    plan = make_plan(pool, *pods, deployment=theirs, children={}, leases=())
    assert condition(plan, "Ready")["reason"] == "NameTaken"
    assert any(isinstance(action, Create) for action in plan.actions) == claims
    if not claims:
        assert condition(plan, "ClusterIDAllocated")["reason"] == "NotAccepted"
        assert "clusterID" not in plan.status
        assert plan.look_again is None, "nothing comes by itself"


def test_who_holds_a_taken_cluster_id_is_named() -> None:
    pool = make_pool({"clusterID": 7})
    plan = make_plan(pool, deployment=None, leases=(make_lease(OTHER, cluster=7),), holders=frozenset([OTHER]))
    assert OTHER in condition(plan, "ClusterIDAllocated")["message"]
    assert condition(plan, "Ready")["reason"] == "Taken"
    assert not [action for action in plan.actions if isinstance(action, Apply | Create | Replace)]


def test_a_holder_in_a_namespace_that_we_do_not_see_is_never_taken_for_gone() -> None:
    narrow = dataclasses.replace(DEFAULTS, namespaces=frozenset(["fleet"]))
    leases = read_leases([make_lease("elsewhere/voice", cluster=7)])
    assert claim_cluster_id(make_pool({"clusterID": 7}), leases, frozenset(), narrow).verdict.reason == "Taken"
    assert claim_cluster_id(make_pool({"clusterID": 7}), leases, frozenset(), DEFAULTS).cluster == 7


def test_a_cluster_id_stands_in_the_status_only_once_its_lease_is_ours() -> None:
    fresh = make_plan(make_pool(), deployment=None, leases=())
    assert "clusterID" not in fresh.status
    assert [type(action) for action in fresh.actions][:1] == [Create]
    held = make_plan(make_pool(), deployment=None)
    assert held.status["clusterID"] == CLUSTER
    lost = make_plan(make_pool(status={"clusterID": CLUSTER}), deployment=None, leases=())
    assert lost.status["clusterID"] == CLUSTER


def test_a_lease_given_back_is_taken_over_by_compare_and_swap_and_keeps_its_count() -> None:
    plan = make_plan(make_pool({"clusterID": 7}), leases=(make_lease(OTHER, last=4_000_000_000, cluster=7),))
    (write,) = [action for action in plan.actions if isinstance(action, Replace)]
    assert write.manifest["spec"]["holderIdentity"] == "fleet/voice"
    assert write.manifest["spec"]["leaseTransitions"] == 1
    assert write.manifest["metadata"]["resourceVersion"] == "11"
    assert write.manifest["metadata"]["annotations"][LAST_POD_ID_ANNOTATION] == "4000000000"


@pytest.mark.parametrize(
    ("before", "after"), [(2**31 - 2, 2**31 - 1), (2**31 - 1, 0), (2**31, 1), (-1, 1), (None, 1), ("7", 1), (1.5, 1)]
)
def test_a_cluster_id_is_taken_over_whatever_its_lease_counts(before: Any, after: int) -> None:
    lease = make_lease(OTHER, cluster=7)
    lease["spec"]["leaseTransitions"] = before
    plan = make_plan(make_pool({"clusterID": 7}), leases=(lease,))
    (write,) = [action for action in plan.actions if isinstance(action, Replace)]
    assert write.manifest["spec"]["leaseTransitions"] == after


@pytest.mark.parametrize("text", ["", "-1", "x", "٣", "99999999999999", "4294967296"])
def test_a_damaged_count_of_a_lease_counts_as_none(text: str) -> None:
    lease = make_lease()
    lease["metadata"]["annotations"][LAST_POD_ID_ANNOTATION] = text
    assert read_leases([lease])[CLUSTER].last_pod_id == 0


@pytest.mark.parametrize("name", ["usher-operator", "usher-cluster-", "usher-cluster-0", "usher-cluster-07", "x-7"])
def test_other_leases_are_left_out(name: str) -> None:
    lease = make_lease()
    lease["metadata"]["name"] = name
    assert read_leases([lease]) == {}


@pytest.mark.parametrize(
    ("last", "existing", "first"),
    [
        pytest.param(0, [], CLOCK, id="the clock"),
        pytest.param(CLOCK + 50, [], CLOCK + 51, id="the last one"),
        pytest.param(0, [3, CLOCK + 9], CLOCK + 10, id="pods that exist"),
    ],
)
def test_the_next_id_is_above_the_last_one_the_clock_and_all_pods(last: int, existing: list[int], first: int) -> None:
    assert grant([make_pod(gated=True)], last, existing, NOW).pairs[0][1] == first


def test_ids_go_to_the_oldest_pods_first_and_the_rest_waits_for_the_next_look() -> None:
    pods = [make_pod(f"p{i}", gated=True, created_at=NOW - i) for i in range(BATCH + 3)]
    grants = grant(pods, 0, [], NOW)
    assert [pod.name for pod, _ in grants.pairs[:2]] == [f"p{BATCH + 2}", f"p{BATCH + 1}"]
    assert (len(grants.pairs), grants.left, grants.exhausted) == (BATCH, 3, 0)
    assert len({number for _, number in grants.pairs}) == BATCH
    plan = make_plan(make_pool({"replicas": len(pods)}), *pods)
    assert plan.look_again == 0


@pytest.mark.parametrize(("last", "given"), [(MAX_POD, 0), (MAX_POD - 1, 1)])
def test_when_the_ids_of_a_cluster_run_out_the_pool_says_so_and_none_is_used_again(last: int, given: int) -> None:
    pool = make_pool({"replicas": 2})
    pods = [make_pod(name, gated=True) for name in "ab"]
    plan = make_plan(pool, *pods, leases=(make_lease(last=last),))
    assert len(patches(plan, "Pod")) == given
    assert condition(plan, "ClusterIDAllocated")["reason"] == "PodIDsExhausted"
    assert condition(plan, "Ready")["status"] == "False"


def test_ids_leave_the_lease_first_then_stand_on_the_pool_and_then_on_pods() -> None:
    plan = make_plan(make_pool(), make_pod(gated=True))
    lease, note, pod = plan.actions[:3]
    assert isinstance(lease, Replace)
    assert isinstance(note, JsonPatch)
    assert isinstance(pod, JsonPatch)
    assert lease.manifest["metadata"]["annotations"][LAST_POD_ID_ANNOTATION] == str(CLOCK)
    assert note.target.kind == "TransceiverPool"
    assert note.operations[-1]["value"] == str(CLOCK)
    assert value_set(pod, "/metadata/labels/usher.fleet~1pod-id") == str(CLOCK)


def test_label_and_gate_change_in_one_patch_that_fails_for_a_pod_that_changed() -> None:
    gates = ("example.test/quota", POD_ID_GATE)
    (patch,) = patches(make_plan(make_pool(), make_pod(gated=True, gates=gates, resource_version="42")), "Pod")
    assert {"op": "test", "path": "/metadata/resourceVersion", "value": "42"} in patch.operations
    assert {"op": "test", "path": "/spec/schedulingGates/1/name", "value": POD_ID_GATE} in patch.operations
    assert patch.operations[-1] == {"op": "remove", "path": "/spec/schedulingGates/1"}


@pytest.mark.parametrize(
    ("annotations", "guard"),
    [
        ({}, {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}),
        ({"a": "b"}, {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}),
        (
            {LAST_POD_ID_ANNOTATION: "3"},
            {"op": "test", "path": "/metadata/annotations/usher.fleet~1last-pod-id", "value": "3"},
        ),
        # The API server compares bytes, and JSON spells these in two ways.
        ({LAST_POD_ID_ANNOTATION: "²"}, {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}),
        ({LAST_POD_ID_ANNOTATION: "<3>"}, {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}),
    ],
)
def test_the_note_on_the_pool_is_a_compare_and_swap(annotations: dict[str, str], guard: dict[str, str]) -> None:
    (note,) = patches(make_plan(make_pool(annotations=annotations), make_pod(gated=True)), "TransceiverPool")
    assert note.operations[0] == {"op": "test", "path": "/metadata/uid", "value": "pool-uid"}
    assert guard in note.operations


def test_lease_and_note_mend_each_other() -> None:
    behind = make_plan(make_pool(annotations={LAST_POD_ID_ANNOTATION: "9"}), make_pod())
    (write,) = [action for action in behind.actions if isinstance(action, Replace)]
    assert write.manifest["metadata"]["annotations"][LAST_POD_ID_ANNOTATION] == "9"
    fresh_pool = make_plan(make_pool(), make_pod())
    assert patches(fresh_pool, "TransceiverPool")[0].operations[-1]["value"] == "5"
    both = make_plan(make_pool(annotations={LAST_POD_ID_ANNOTATION: "5"}), make_pod())
    assert not [action for action in both.actions if isinstance(action, Replace | JsonPatch)]


def test_a_gated_pod_with_a_label_gets_an_id_of_its_own() -> None:
    (patch,) = patches(make_plan(make_pool(), make_pod(gated=True, labels={POD_ID_LABEL: "5"})), "Pod")
    assert value_set(patch, "/metadata/labels/usher.fleet~1pod-id") == str(CLOCK)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"labels": {"usher.fleet/cluster-id": "99"}}, id="of another cluster id"),
        pytest.param({"deleted_at": NOW}, id="that is ending"),
        pytest.param({"gates": ("example.test/quota",)}, id="that waits for somebody else"),
    ],
)
def test_no_id_for_a_pod(changes: dict[str, Any]) -> None:
    assert patches(make_plan(make_pool(), make_pod(gated=True, **changes)), "Pod") == []


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        pytest.param({}, {"keys_fault": "not all relays hold a key for cluster 100 yet"}, id="the relays lack its key"),
        pytest.param({"keys": {"secretRef": {"name": "mine"}}}, {}, id="its Secret is missing"),
        pytest.param(
            {"internalTokenSecretRef": {"name": "mine"}},
            {"secrets": {"mine": frozenset({"keys.json"})}},
            id="a key of its Secret is missing",
        ),
    ],
)
def test_pods_stay_gated_until_their_keys_are_there(spec: dict[str, Any], seen: dict[str, Any]) -> None:
    plan = make_plan(make_pool(spec), make_pod(gated=True), **seen)
    assert patches(plan, "Pod") == []
    assert condition(plan, "KeysReady")["status"] == "False"


def test_a_secret_that_only_the_operator_may_not_read_burns_no_id_and_is_said() -> None:
    pool = make_pool({"keys": {"secretRef": {"name": "mine"}}, "internalTokenSecretRef": {"name": "token"}})
    plan = make_plan(pool, make_pod(gated=True), secrets_forbidden=frozenset({"mine", "token"}))
    assert len(patches(plan, "Pod")) == 1
    verdict = condition(plan, "KeysReady")
    assert (verdict["status"], verdict["reason"]) == ("False", "SecretForbidden")
    assert "add mine to rbac.secretNames" in verdict["message"]


def test_a_missing_secret_comes_before_one_that_may_not_be_read() -> None:
    pool = make_pool({"keys": {"secretRef": {"name": "mine"}}, "internalTokenSecretRef": {"name": "token"}})
    plan = make_plan(pool, make_pod(gated=True), secrets_forbidden=frozenset({"mine"}))
    assert patches(plan, "Pod") == []
    assert condition(plan, "KeysReady")["reason"] == "SecretMissing"


def test_a_paused_pool_still_gives_ids() -> None:
    plan = make_plan(make_pool({"paused": True}), make_pod(gated=True))
    assert len(patches(plan, "Pod")) == 1


def test_a_pool_that_is_being_deleted_claims_and_gives_nothing() -> None:
    pool = make_pool(deletionTimestamp="2026-01-01T00:00:00Z")
    seen = dataclasses.replace(make_seen(pool, make_pod(gated=True)), leases=())
    plan = plan_transceiver_pool(pool, seen, NOW, DEFAULTS)
    assert not [action for action in plan.actions if isinstance(action, Create | Replace)]
    assert not [patch for patch in patches(plan, "Pod") if value_set(patch, "/metadata/labels/usher.fleet~1pod-id")]


def test_the_defaults_see_all_namespaces_unless_some_are_named() -> None:
    assert DEFAULTS.sees("anywhere")
    assert not Defaults("", "", "", 1, 2, frozenset(["a"])).sees("b")


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_ids_alone_are_those_of_the_whole_plan_though_no_load_is_known(replicas: int) -> None:
    pool = make_pool({"replicas": replicas}, annotations={LAST_POD_ID_ANNOTATION: "5"})
    pods = [make_pod(name, gated=name in "cd", created_at=NOW - 10 - place) for place, name in enumerate("abcd")]
    pods.append(make_pod("old", labels={REVISION_LABEL: "old"}))
    seen = make_seen(pool, *pods)
    given = [
        action
        for action in plan_transceiver_pool(pool, seen, NOW, DEFAULTS).actions
        if isinstance(action, Create | Replace | JsonPatch) and is_about_ids(action)
    ]
    assert plan_pod_ids(pool, dataclasses.replace(seen, loads={}), NOW, DEFAULTS) == tuple(given)


def is_about_ids(action: Create | Replace | JsonPatch) -> bool:
    if not isinstance(action, JsonPatch):
        return True
    return (
        action.target.kind == "TransceiverPool" or value_set(action, "/metadata/labels/usher.fleet~1pod-id") is not None
    )
