"""What becomes of a pod that somebody took out of its ReplicaSet, as people do to look at it in peace."""

from dataclasses import replace
from typing import Any

import pytest

from tests.operator_keys import NOW as RELAYS_NOW
from tests.operator_relays import DEFAULTS as RELAY_DEFAULTS
from tests.operator_relays import relay_pool, running, with_ingress
from tests.transceiver_pools import (
    CLUSTER,
    DEFAULTS,
    NOW,
    applied,
    condition,
    drained,
    make_deployment,
    make_lease,
    make_load,
    make_plan,
    make_pod,
    make_pool,
    make_seen,
    patches,
    value_set,
)
from usher_operator.actions import JsonPatch, Plan, Tell
from usher_operator.names import (
    LAST_POD_ID_ANNOTATION,
    POD_ID_LABEL,
    REVISION_LABEL,
    ROUND_ANNOTATION,
    STATE_LABEL,
)
from usher_operator.observe import pod_seen
from usher_operator.plan.marks import MARKED_AT_ANNOTATION
from usher_operator.plan.relay_pool import plan_relay_pool
from usher_operator.plan.scale_down import ANSWER_LIMIT_S, DRAINING_SINCE_ANNOTATION
from usher_operator.plan.transceiver_pool import plan_pod_ids
from usher_operator.times import timestamp

STATE = "/metadata/labels/usher.fleet~1state"
ID = "/metadata/labels/usher.fleet~1pod-id"


def pool_of(replicas: int, **metadata: Any) -> Any:
    return make_pool({"replicas": replicas}, annotations={LAST_POD_ID_ANNOTATION: "5"}, **metadata)


def aside(name: str = "aside", **changes: Any) -> Any:
    return make_pod(name, has_controller=False, **changes)


def told_aside(since: float = NOW - 5, **changes: Any) -> Any:
    """Return one that is labelled as draining since then."""
    annotations = {DRAINING_SINCE_ANNOTATION: str(int(since)), ROUND_ANNOTATION: "0"}
    return aside(labels={STATE_LABEL: "draining"}, annotations=annotations, **changes)


def states(plan: Plan) -> dict[str, str]:
    """Return the state that a plan writes on pods."""
    return {patch.target.name: state for patch in patches(plan, "Pod") if (state := value_set(patch, STATE))}


@pytest.mark.parametrize(
    ("owners", "has_controller"),
    [
        ([{"kind": "ReplicaSet", "uid": "u", "controller": True}], True),
        ([{"kind": "ReplicaSet", "uid": "u"}], False),
        ([{"kind": "ConfigMap", "uid": "u"}, {"kind": "DaemonSet", "uid": "v", "controller": True}], True),
        ([], False),
        (None, False),
    ],
)
def test_a_pod_has_a_controller_when_one_of_its_owners_says_so(owners: Any, has_controller: bool) -> None:
    metadata = {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "1", "ownerReferences": owners}
    body = {"metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:00Z"}}
    assert pod_seen(body).has_controller == has_controller


def test_the_pod_in_its_place_gets_an_id_above_its_own_and_does_not_go() -> None:
    pool = pool_of(1)
    pods = (aside(labels={POD_ID_LABEL: "60000000"}), make_pod("new", gated=True))
    seen = make_seen(pool, *pods, deployment=make_deployment(pool, 1))
    plan = make_plan(pool, *pods, deployment=make_deployment(pool, 1))
    for actions in (plan.actions, plan_pod_ids(pool, seen, NOW, DEFAULTS)):
        given = {a.target.name: value_set(a, ID) for a in actions if isinstance(a, JsonPatch) and value_set(a, ID)}
        assert given == {"new": "60000001"}
    assert states(plan) == {"aside": "draining"}
    assert drained(plan) == {"aside": True}
    assert patches(plan, "Deployment") == []
    assert condition(plan, "Ready")["reason"] == "WaitingForPodID"


def test_it_takes_no_more_calls_and_what_it_has_is_marked() -> None:
    pool = pool_of(1)
    plan = make_plan(
        pool,
        aside(),
        make_pod("new"),
        deployment=make_deployment(pool, 1),
        loads={"uid-of-aside": make_load(3), "uid-of-new": make_load()},
    )
    assert states(plan) == {"aside": "draining"}
    assert drained(plan) == {"aside": True}
    assert any(
        value_set(patch, f"/metadata/annotations/{MARKED_AT_ANNOTATION.replace('/', '~1')}")
        for patch in patches(plan, "Pod")
    )
    assert plan.look_again == 1.0, "whether it drains is asked soon"
    assert all(action.stands_alone for action in patches(plan, "Pod")), "one that can't be changed holds nothing up"


def test_the_status_counts_it_nowhere_but_its_calls_and_names_it() -> None:
    pool = pool_of(1)
    loads = {"uid-of-aside": make_load(3, draining=True), "uid-of-new": make_load()}
    plan = make_plan(pool, told_aside(), make_pod("new"), deployment=make_deployment(pool, 1), loads=loads)
    assert (plan.actions, plan.look_again) == (tuple(patches(plan, "Pod")), None)
    counts = ("replicas", "readyReplicas", "updatedReplicas", "drainingReplicas", "waitingReplicas", "sessions")
    assert [plan.status[name] for name in counts] == [1, 1, 1, 0, 0, 3]
    assert condition(plan, "Ready")["status"] == "True"
    assert condition(plan, "Progressing")["reason"] == "Complete"
    assert "aside" in condition(plan, "Progressing")["message"]


def test_it_does_not_stand_for_one_that_is_missing() -> None:
    plan = make_plan(pool_of(1), told_aside(), deployment=make_deployment(pool_of(1), 1))
    assert condition(plan, "Ready")["status"] == condition(plan, "Available")["status"] == "False"
    lost = make_plan(pool_of(1), told_aside(), make_pod("new"), deployment=None)
    assert applied(lost)["Deployment"]["spec"]["replicas"] == 1


def test_an_old_template_of_it_is_no_rollout() -> None:
    old = replace(told_aside(), labels={**told_aside().labels, REVISION_LABEL: "old"})
    plan = make_plan(pool_of(1), old, make_pod("new"), deployment=make_deployment(pool_of(1), 1))
    assert condition(plan, "Progressing")["reason"] == "Complete"


def test_a_pool_that_shrinks_does_not_wait_for_it() -> None:
    pool = pool_of(1)
    plan = make_plan(pool, aside(), make_pod("a"), make_pod("b"), deployment=make_deployment(pool, 2))
    assert set(drained(plan)) == {"aside", "a"}
    (smaller,) = patches(plan, "Deployment")
    assert value_set(smaller, "/spec/replicas") == 1
    assert smaller.waits_for == ("a",)
    assert "1 transceivers drain" in condition(plan, "Progressing")["message"]


@pytest.mark.parametrize(("age", "tells"), [(ANSWER_LIMIT_S - 1, True), (ANSWER_LIMIT_S, False)])
def test_one_that_never_answers_is_not_asked_for_ever(age: float, tells: bool) -> None:
    pool = pool_of(1)
    plan = make_plan(
        pool,
        told_aside(NOW - age),
        make_pod("new"),
        deployment=make_deployment(pool, 1),
        loads={"uid-of-new": make_load()},
    )
    assert (drained(plan) == {"aside": True}) == tells
    assert (plan.look_again is not None) == tells


def test_one_that_takes_calls_again_long_after_is_told_again() -> None:
    pool = pool_of(1)
    plan = make_plan(
        pool, told_aside(NOW - 9999), loads={"uid-of-aside": make_load()}, deployment=make_deployment(pool)
    )
    assert drained(plan) == {"aside": True}


def test_one_that_waits_for_an_id_gets_none_and_is_not_waited_for() -> None:
    pool = pool_of(1)
    gated = aside(gated=True, labels={STATE_LABEL: "draining"}, annotations={ROUND_ANNOTATION: "0"})
    plan = make_plan(pool, gated, make_pod("new"), deployment=make_deployment(pool, 1))
    assert not any(value_set(patch, ID) for patch in patches(plan, "Pod"))
    assert plan.status["waitingReplicas"] == 0
    assert plan.look_again is None


def test_one_that_is_put_back_takes_calls_again() -> None:
    back = replace(told_aside(), has_controller=True)
    plan = make_plan(pool_of(1), back)
    assert states(plan) == {"aside": "active"}
    assert drained(plan) == {"aside": False}


def test_a_paused_pool_leaves_it_alone() -> None:
    pool = make_pool({"replicas": 1, "paused": True}, annotations={LAST_POD_ID_ANNOTATION: "5"})
    plan = make_plan(pool, aside(), make_pod("new"), deployment=make_deployment(pool, 1))
    assert (plan.actions, plan.look_again) == ((), None)


def test_a_deleted_pool_goes_without_it_and_says_that_it_is_left() -> None:
    pool = pool_of(1, deletionTimestamp="2026-01-01T00:00:00Z")
    plan = make_plan(pool, aside(), deployment=make_deployment(pool, 0))
    assert plan.done
    assert drained(plan) == {"aside": True}
    (event,) = [action for action in plan.actions if isinstance(action, Tell)]
    assert (event.type, event.reason) == ("Warning", "PodsLeft")
    assert "aside" in event.message
    assert "aside" in condition(plan, "Progressing")["message"]
    others = make_plan(pool, aside(), make_pod("a"), deployment=make_deployment(pool, 1))
    assert not others.done
    assert "1 pods still drain" in condition(others, "Progressing")["message"]


@pytest.mark.parametrize("changes", [{"deleted_at": NOW}, {"phase": "Failed"}])
def test_one_that_ends_is_named_no_more(changes: dict[str, Any]) -> None:
    pool = pool_of(1, deletionTimestamp="2026-01-01T00:00:00Z")
    plan = make_plan(pool, aside(**changes), deployment=make_deployment(pool, 0), leases=(make_lease(cluster=CLUSTER),))
    assert plan.done
    assert not any(isinstance(action, Tell) for action in plan.actions)


# ---- relays


def test_a_relay_that_was_set_aside_is_none_of_those_wanted() -> None:
    pool = relay_pool()
    seen = with_ingress(pool, {"ip": "203.0.113.10"})
    extra = replace(seen.pods[0], name="edge-aside", uid="uid-aside", has_controller=False)
    plan = plan_relay_pool(pool, replace(seen, pods=(*seen.pods, extra)), RELAYS_NOW, RELAY_DEFAULTS)
    assert [plan.status[name] for name in ("replicas", "readyReplicas", "updatedReplicas")] == [2, 2, 2]
    assert condition(plan, "Ready")["status"] == "True"
    assert "edge-aside" in condition(plan, "Progressing")["message"]
    fewer = plan_relay_pool(pool, replace(seen, pods=(seen.pods[0], extra)), RELAYS_NOW, RELAY_DEFAULTS)
    assert condition(fewer, "Ready")["status"] == "False"


def test_a_deleted_relay_pool_says_which_relays_are_left() -> None:
    pool = relay_pool(metadata={"deletionTimestamp": timestamp(RELAYS_NOW - 30)})
    seen = running(relay_pool())
    extra = replace(seen.pods[0], name="edge-aside", uid="uid-aside", has_controller=False)
    pods = (*seen.pods, extra)
    idle = frozenset(pod.uid for pod in pods)
    plan = plan_relay_pool(pool, replace(seen, pods=pods, idle=idle), RELAYS_NOW, RELAY_DEFAULTS)
    (event,) = [action for action in plan.actions if isinstance(action, Tell)]
    assert "edge-aside" in event.message
    assert plan.done
    # The Service that leads to it goes with the pool, so its flows are waited for like all others.
    carrying = replace(seen, pods=pods, idle=idle - {extra.uid})
    assert not plan_relay_pool(pool, carrying, RELAYS_NOW, RELAY_DEFAULTS).done
