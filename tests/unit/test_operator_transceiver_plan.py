"""What a plan does about a TransceiverPool: rollouts, scaling, drains, deletion, and what the status says."""

import dataclasses
from datetime import datetime
from typing import Any

import pytest

from tests.transceiver_pools import (
    DEFAULTS,
    NOW,
    applied,
    condition,
    drained,
    make_deployment,
    make_load,
    make_plan,
    make_pod,
    make_pool,
    make_seen,
    patches,
    value_set,
)
from usher_operator.actions import Action, Apply, Delete, JsonPatch, Plan, SetDrain, Tell
from usher_operator.names import DELETION_COST_ANNOTATION, LAST_POD_ID_ANNOTATION, REVISION_LABEL, ROUND_ANNOTATION
from usher_operator.plan.events import tell_changes
from usher_operator.plan.marks import HOLD_S, MARKED_AT_ANNOTATION
from usher_operator.plan.scale_down import BATCH, DRAINING_SINCE_ANNOTATION
from usher_operator.plan.transceiver_pool import plan_transceiver_pool
from usher_operator.plan.transceiver_status import rounded_up

NOTED = {LAST_POD_ID_ANNOTATION: "5"}
STATE = "/metadata/labels/usher.fleet~1state"
ROUND = "/metadata/annotations/usher.fleet~1drain-round"
COST = "/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost"


def pool_of(replicas: int, **spec: Any) -> Any:
    return make_pool({"replicas": replicas, **spec}, annotations=NOTED)


def draining(name: str, **changes: Any) -> Any:
    annotations = {
        DELETION_COST_ANNOTATION: "-1000000",
        DRAINING_SINCE_ANNOTATION: str(int(NOW) - 5),
        ROUND_ANNOTATION: "0",
    }
    return make_pod(name, labels={"usher.fleet/state": "draining"}, annotations=annotations, **changes)


def labelled(plan: Plan) -> dict[str, str]:
    """Return the state that a plan writes on pods."""
    states = [(patch.target.name, value_set(patch, STATE)) for patch in patches(plan, "Pod")]
    return {name: state for name, state in states if state is not None}


def size(plan: Plan) -> int | None:
    """Return the replicas that a plan gives the Deployment; None when it leaves them."""
    for action in plan.actions:
        if isinstance(action, JsonPatch) and action.target.kind == "Deployment":
            return int(value_set(action, "/spec/replicas"))
        if isinstance(action, Apply) and action.manifest["kind"] == "Deployment":
            return int(action.manifest["spec"]["replicas"])
    return None


def kinds(actions: tuple[Action, ...]) -> list[str]:
    return [type(action).__name__ for action in actions if not isinstance(action, Tell)]


def test_a_new_pool_gets_all_its_children() -> None:
    plan = make_plan(pool_of(3), deployment=None, children={})
    assert set(applied(plan)) == {"Deployment", "Service", "PodDisruptionBudget", "ServiceAccount"}
    assert size(plan) == 3


def test_a_settled_pool_is_left_alone() -> None:
    plan = make_plan(pool_of(1), make_pod())
    assert kinds(plan.actions) == []
    assert plan.look_again is None
    assert condition(plan, "Ready")["status"] == "True"
    assert condition(plan, "Progressing")["reason"] == "Complete"


def test_more_replicas_are_given_at_once() -> None:
    assert size(make_plan(pool_of(4), make_pod())) == 4


def test_the_emptiest_pod_drains_and_the_deployment_shrinks_behind_its_answer() -> None:
    pods = [make_pod(name) for name in "abc"]
    loads = {f"uid-of-{name}": make_load(sessions) for name, sessions in zip("abc", (3, 1, 2), strict=True)}
    plan = make_plan(pool_of(2), *pods, loads=loads)
    assert labelled(plan) == {"b": "draining"}
    assert drained(plan) == {"b": True}
    last_three = [action for action in plan.actions if not isinstance(action, Tell)][:3]
    label, drain, shrink = last_three
    assert isinstance(label, JsonPatch)
    assert value_set(label, COST) == "-1000000"
    assert {"op": "test", "path": STATE, "value": "active"} in label.operations
    assert isinstance(drain, SetDrain)
    assert drain.http == "http://10.0.0.9:7280"
    assert isinstance(shrink, JsonPatch)
    assert shrink.target.kind == "Deployment"
    assert {"op": "test", "path": "/spec/replicas", "value": 3} in shrink.operations


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"gated": True}, {"ready": False}, id="gated before not ready"),
        pytest.param({"phase": "Pending", "ready": False}, {"ready": False}, id="not started before not ready"),
        pytest.param({"ready": False}, {}, id="not ready before ready"),
        pytest.param({"created_at": NOW - 10}, {"created_at": NOW - 20}, id="newest of equally full ones"),
    ],
)
def test_pods_go_in_the_order_in_which_a_replica_set_takes_them(first: dict[str, Any], second: dict[str, Any]) -> None:
    plan = make_plan(pool_of(1), make_pod("first", **first), make_pod("second", **second))
    assert labelled(plan) == {"first": "draining"}


def test_a_ready_pod_that_does_not_say_how_full_it_is_goes_last() -> None:
    loads = {"uid-of-full": make_load(40)}
    plan = make_plan(pool_of(1), make_pod("full"), make_pod("silent"), loads=loads)
    assert labelled(plan) == {"full": "draining"}


def test_a_pod_without_a_process_is_not_waited_for() -> None:
    plan = make_plan(pool_of(1), make_pod("a"), make_pod("b", gated=True))
    assert drained(plan) == {}
    assert size(plan) == 1


def test_a_container_that_restarted_is_told_again_to_drain() -> None:
    pods = (make_pod("a"), draining("b"))
    forgot = {"uid-of-a": make_load(), "uid-of-b": make_load()}
    assert drained(make_plan(pool_of(1), *pods, loads=forgot)) == {"b": True}
    knows = {"uid-of-a": make_load(), "uid-of-b": make_load(draining=True)}
    plan = make_plan(pool_of(1), *pods, loads=knows)
    assert drained(plan) == {}
    assert size(plan) == 1


def test_a_pod_that_does_not_answer_for_long_no_longer_blocks_the_scale_down() -> None:
    pods = (make_pod("a"), draining("b"))
    loads = {"uid-of-a": make_load()}
    (waiting,) = patches(make_plan(pool_of(1), *pods, loads=loads), "Deployment")
    assert waiting.waits_for == ("b",)
    late = make_plan(pool_of(1), *pods, loads=loads, now=NOW + 60)
    (shrink,) = patches(late, "Deployment")
    assert shrink.waits_for == ()
    assert drained(late) == {"b": True}
    assert "b did not answer" in condition(late, "Progressing")["message"]


def test_a_program_that_has_crashed_or_never_came_up_keeps_nothing_from_shrinking() -> None:
    pods = (make_pod("a", ready=False, is_up=False, waiting_reason="CrashLoopBackOff"), make_pod("b"))
    plan = make_plan(pool_of(0), *pods, loads={"uid-of-b": make_load()})
    assert labelled(plan) == {"a": "draining", "b": "draining"}
    assert drained(plan) == {"b": True}
    (shrink,) = patches(plan, "Deployment")
    assert shrink.waits_for == ("b",)
    assert value_set(shrink, "/spec/replicas") == 0
    back_up = make_plan(pool_of(0), draining("a", ready=False), loads={})
    assert drained(back_up) == {"a": True}


def test_pods_that_answer_are_told_to_drain_before_silent_ones() -> None:
    pods = [make_pod(name) for name in "abcd"]
    loads = {f"uid-of-{name}": make_load() for name in "bd"}
    assert list(drained(make_plan(pool_of(0), *pods, loads=loads))) == ["b", "d", "a", "c"]


def test_one_look_chooses_a_bounded_number_of_pods_and_the_deployment_shrinks_when_all_are_chosen() -> None:
    pods = [make_pod(f"p{number}") for number in range(BATCH + 2)]
    first = make_plan(pool_of(0), *pods)
    assert len(labelled(first)) == BATCH
    assert size(first) is None
    assert first.look_again is not None
    told = labelled(first)
    left = [draining(pod.name) if pod.name in told else pod for pod in pods]
    second = make_plan(pool_of(0), *left)
    assert len(labelled(second)) == 2
    assert size(second) == 0


def test_sizes_and_calling_back_are_compare_and_swaps_on_the_round_of_the_deployment() -> None:
    back = make_plan(pool_of(2), make_pod("a"), draining("b"))
    (claim,) = patches(back, "Deployment")
    assert claim.operations == (
        {"op": "test", "path": "/metadata/uid", "value": "deployment-uid"},
        {"op": "test", "path": "/spec/replicas", "value": 2},
        {"op": "test", "path": ROUND, "value": "0"},
        {"op": "replace", "path": ROUND, "value": "1"},
    )
    assert back.actions[0] == claim
    both = make_plan(pool_of(2), make_pod("a"), draining("b"), draining("c"), make_pod("d", ready=False))
    assert [value_set(patch, ROUND) for patch in patches(both, "Deployment")] == ["1", None]
    shrink = patches(both, "Deployment")[1]
    assert {"op": "test", "path": ROUND, "value": "1"} in shrink.operations
    more = make_plan(pool_of(3), make_pod("a"))
    assert [value_set(patch, "/spec/replicas") for patch in patches(more, "Deployment")] == [3]


def test_a_round_that_somebody_removed_is_put_back() -> None:
    deployment = make_deployment(pool_of(1), 1)
    del deployment["metadata"]["annotations"]
    plan = make_plan(pool_of(1), make_pod(), deployment=deployment)
    assert set(applied(plan)) == {"Deployment"}
    (smaller,) = patches(make_plan(pool_of(0), make_pod(), deployment=deployment), "Deployment")
    assert value_set(smaller, "/spec/replicas") == 0


@pytest.mark.parametrize("spoilt", ["007", "²", "x", "-1", "", "9" * 400, "1 "])
def test_a_round_that_somebody_spoilt_is_made_anew_and_stops_no_scaling(spoilt: str) -> None:
    deployment = make_deployment(pool_of(1), 1)
    deployment["metadata"]["annotations"][ROUND_ANNOTATION] = spoilt
    plan = make_plan(pool_of(1), make_pod(), deployment=deployment)
    (apply,) = (
        action for action in plan.actions if isinstance(action, Apply) and action.manifest["kind"] == "Deployment"
    )
    assert all(ROUND_ANNOTATION not in path for path in apply.keeps)
    (smaller,) = patches(make_plan(pool_of(0), make_pod(), deployment=deployment), "Deployment")
    assert value_set(smaller, "/spec/replicas") == 0
    assert ROUND not in [operation["path"] for operation in smaller.operations]


@pytest.mark.parametrize("mark", ["²", "<", "a\x00b", "\ud800", '"'])
def test_a_mark_that_json_may_spell_in_two_ways_is_guarded_by_the_version_of_the_pod(mark: str) -> None:
    """RFC 6902 section 4.6; the API server compares bytes, and `<` is stored as an escape."""
    pod = make_pod("a", annotations={ROUND_ANNOTATION: mark})
    (patch,) = patches(make_plan(pool_of(0), pod), "Pod")
    tests = {operation["path"] for operation in patch.operations if operation["op"] == "test"}
    assert "/metadata/resourceVersion" in tests
    assert ROUND not in tests


def test_draining_pods_take_calls_again_when_more_are_wanted() -> None:
    plan = make_plan(pool_of(2), make_pod("a"), draining("b"))
    assert drained(plan) == {"b": False}
    assert labelled(plan) == {"b": "active"}
    # Crashed after the label, the next look still sees a pod that drains; crashed after the drain, one that may go.
    assert kinds(plan.actions) == ["JsonPatch", "JsonPatch", "SetDrain"]
    assert {"op": "remove", "path": COST} in patches(plan, "Pod")[0].operations


def test_the_fullest_draining_pod_is_called_back_first() -> None:
    loads = {"uid-of-b": make_load(1, draining=True), "uid-of-c": make_load(9, draining=True)}
    plan = make_plan(pool_of(2), make_pod("a"), draining("b"), draining("c"), loads={**loads, "uid-of-a": make_load()})
    assert labelled(plan) == {"c": "active"}


def test_a_pod_that_begins_to_end_counts_no_more_and_is_not_called_back() -> None:
    plan = make_plan(
        pool_of(2), make_pod("a"), draining("b", deleted_at=NOW), deployment=make_deployment(pool_of(2), 1)
    )
    assert drained(plan) == {}
    assert size(plan) == 2


def test_a_pod_that_drains_without_its_label_is_called_back() -> None:
    loads = {"uid-of-a": make_load(draining=True)}
    assert drained(make_plan(pool_of(1), make_pod("a"), loads=loads)) == {"a": False}


def test_while_the_replica_set_has_not_acted_draining_pods_stay_so() -> None:
    plan = make_plan(pool_of(1), make_pod("a"), draining("b"), deployment=make_deployment(pool_of(1), 1))
    assert kinds(plan.actions) == []


def test_a_rollout_keeps_its_surge_and_gets_the_new_template_at_once() -> None:
    pool = pool_of(2, image="new:1")
    old = [make_pod(name, labels={REVISION_LABEL: "old"}) for name in "ab"]
    begun = make_plan(pool, *old, deployment=make_deployment(pool_of(2), 2))
    assert size(begun) == 2
    assert drained(begun) == {}
    under_way = make_plan(pool, *old, make_pod("c", pool=pool), deployment=make_deployment(pool, 2))
    assert kinds(under_way.actions) == []
    assert condition(under_way, "Ready")["reason"] == "RollingOut"
    assert under_way.status["updatedReplicas"] == 1


def test_old_pods_go_first_when_a_rollout_shrinks() -> None:
    pool = pool_of(1, image="new:1")
    old = [make_pod(name, labels={REVISION_LABEL: "old"}) for name in "ab"]
    loads = {"uid-of-a": make_load(3), "uid-of-b": make_load(2), "uid-of-c": make_load(0)}
    plan = make_plan(pool, *old, make_pod("c", pool=pool), deployment=make_deployment(pool, 2), loads=loads)
    assert labelled(plan) == {"b": "draining"}
    assert size(plan) == 1


def test_a_stuck_rollout_calls_draining_pods_back_once_the_deployment_has_seen_its_size() -> None:
    pool = pool_of(2, image="new:1")
    pods = [make_pod("a", labels={REVISION_LABEL: "old"}), draining("b")]
    unseen = make_deployment(pool, 2, status={"observedGeneration": 0})
    assert drained(make_plan(pool, *pods, deployment=unseen)) == {}
    assert drained(make_plan(pool, *pods, deployment=make_deployment(pool, 2))) == {"b": False}


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_template_that_is_refused_does_not_keep_the_size_from_changing(wanted: int) -> None:
    pool = pool_of(wanted, image="refused:1")
    old = [make_pod(name, labels={REVISION_LABEL: "old"}) for name in "ab"]
    plan = make_plan(pool, *old, deployment=make_deployment(pool_of(2), 2))
    (apply,) = [action for action in plan.actions if isinstance(action, Apply)]
    assert apply.keeps == (("spec", "replicas"), ("metadata", "annotations", "usher.fleet/drain-round"))
    assert [value_set(patch, "/spec/replicas") for patch in patches(plan, "Deployment")] == [wanted]


def test_pods_whose_deployment_can_not_be_seen_are_kept() -> None:
    plan = make_plan(pool_of(1), make_pod("a"), make_pod("b"), deployment=None)
    assert drained(plan) == {}
    assert size(plan) == 2


def test_children_of_somebody_else_are_not_touched() -> None:
    pool = pool_of(1)
    other = make_deployment(pool, 3)
    other["metadata"]["ownerReferences"][0]["uid"] = "former-pool"
    plan = make_plan(pool, make_pod("a"), make_pod("b"), deployment=other)
    assert kinds(plan.actions) == []
    assert condition(plan, "Accepted")["reason"] == "NameTaken"


def test_without_an_image_what_runs_is_kept_and_the_fix_is_named() -> None:
    pool = pool_of(1)
    nameless = dataclasses.replace(DEFAULTS, transceiver_image="")
    plan = plan_transceiver_pool(pool, make_seen(pool, make_pod("a"), make_pod("b")), NOW, nameless)
    assert kinds(plan.actions) == []
    assert condition(plan, "Accepted")["reason"] == "NoImage"
    assert "spec.image" in condition(plan, "Ready")["message"]


def test_a_paused_pool_changes_nothing() -> None:
    plan = make_plan(pool_of(1, paused=True, image="new:1"), make_pod("a"), make_pod("b"))
    assert kinds(plan.actions) == []
    assert condition(plan, "Progressing")["reason"] == "Paused"


def test_a_configuration_that_nobody_uses_is_removed() -> None:
    pool = pool_of(1)
    metadata = {
        "name": "voice-transceiver-backend",
        "uid": "u",
        "ownerReferences": make_deployment(pool)["metadata"]["ownerReferences"],
    }
    children = {"ConfigMap/voice-transceiver-backend": {"metadata": metadata}}
    plan = make_plan(pool, make_pod(), children=children)
    assert [action.uid for action in plan.actions if isinstance(action, Delete)] == ["u"]


class TestDeletion:
    DELETED = "2026-01-01T00:00:00Z"

    def pool(self) -> Any:
        return make_pool({"replicas": 2}, annotations=NOTED, deletionTimestamp=self.DELETED)

    def test_all_pods_drain_and_then_the_deployment_goes_to_nothing(self) -> None:
        pool = self.pool()
        plan = make_plan(pool, make_pod("a"), make_pod("b"))
        assert drained(plan) == {"a": True, "b": True}
        assert size(plan) == 0
        assert not plan.done

    def test_a_pool_without_claim_or_image_can_be_deleted_too(self) -> None:
        plan = make_plan(self.pool(), make_pod("a"), leases=())
        assert size(plan) == 0

    def test_it_is_done_when_the_last_pod_is_gone(self) -> None:
        pool = self.pool()
        ending = make_plan(pool, make_pod("a", deleted_at=NOW), deployment=make_deployment(pool, 0))
        assert not ending.done
        assert ending.look_again is not None
        gone = make_plan(pool, deployment=make_deployment(pool, 0))
        assert gone.done
        assert make_plan(pool, deployment=None).done
        assert not make_plan(pool, deployment=make_deployment(pool, 2)).done

    def test_it_is_done_when_the_grace_period_is_long_over(self) -> None:
        end = datetime.fromisoformat(self.DELETED).timestamp() + 3600 + 70
        pool = self.pool()
        assert not make_plan(pool, make_pod("a", deleted_at=NOW), now=end - 1).done
        assert make_plan(pool, make_pod("a", deleted_at=NOW), now=end).done

    def test_a_paused_pool_can_be_deleted(self) -> None:
        pool = make_pool({"paused": True}, annotations=NOTED, deletionTimestamp=self.DELETED)
        assert drained(make_plan(pool, make_pod("a"))) == {"a": True}

    def test_nothing_is_applied(self) -> None:
        assert applied(make_plan(self.pool(), make_pod("a"), children={}, deployment=None)) == {}

    def test_a_pool_that_is_not_deleted_is_never_done(self) -> None:
        assert not make_plan(pool_of(0), deployment=make_deployment(pool_of(0), 0)).done


class TestMarks:
    def test_a_pod_with_calls_is_marked_and_one_without_is_not(self) -> None:
        loads = {"uid-of-a": make_load(2), "uid-of-b": make_load(0)}
        plan = make_plan(pool_of(2), make_pod("a"), make_pod("b"), loads=loads)
        (patch,) = patches(plan, "Pod")
        assert patch.target.name == "a"
        assert value_set(patch, "/metadata/annotations/cluster-autoscaler.kubernetes.io~1safe-to-evict") == "false"
        assert value_set(patch, "/metadata/annotations/karpenter.sh~1do-not-disrupt") == "true"

    @pytest.mark.parametrize(("age", "removed"), [(HOLD_S - 1, False), (HOLD_S, True)])
    def test_the_mark_stays_for_a_while_after_the_last_call(self, age: float, removed: bool) -> None:
        annotations = {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            MARKED_AT_ANNOTATION: str(int(NOW - age)),
        }
        plan = make_plan(pool_of(1), make_pod("a", annotations=annotations))
        assert bool(patches(plan, "Pod")) == removed

    def test_nothing_is_written_about_a_pod_that_does_not_answer(self) -> None:
        plan = make_plan(pool_of(1), make_pod("a", annotations={MARKED_AT_ANNOTATION: "1"}), loads={})
        assert patches(plan, "Pod") == []


class TestStatus:
    def test_only_active_pods_are_replicas(self) -> None:
        pods = (
            make_pod("a"),
            make_pod("b", ready=False),
            draining("c"),
            make_pod("d", gated=True),
            make_pod("e", deleted_at=NOW),
            make_pod("f", phase="Failed", ready=False),
        )
        loads = {"uid-of-a": make_load(7), "uid-of-c": make_load(20, draining=True), "uid-of-e": make_load(13)}
        status = make_plan(pool_of(3), *pods, loads=loads).status
        assert status["replicas"] == 3
        assert status["readyReplicas"] == 1
        assert status["updatedReplicas"] == 3
        assert status["drainingReplicas"] == 2
        assert status["waitingReplicas"] == 1
        assert status["terminating"] == [{"name": "e", "sessions": 15}]
        assert status["sessions"] == 40
        assert status["observedGeneration"] == 3

    @pytest.mark.parametrize(
        ("sessions", "changes", "shown"),
        [
            pytest.param(3, {}, 1, id="has calls"),
            pytest.param(0, {}, 0, id="its last call is over"),
            pytest.param(None, {}, 1, id="does not answer, so it may have some"),
            pytest.param(None, {"is_up": False}, 0, id="crashed"),
            pytest.param(None, {"phase": "Pending", "ip": ""}, 0, id="never started"),
            pytest.param(3, {"phase": "Succeeded"}, 0, id="has ended"),
        ],
    )
    def test_a_pod_that_ends_is_shown_as_draining_as_long_as_it_may_have_calls(
        self, sessions: int | None, changes: dict[str, Any], shown: int
    ) -> None:
        loads = {} if sessions is None else {"uid-of-b": make_load(sessions, draining=True)}
        ending = make_pod("b", **{"deleted_at": NOW, "ready": False, **changes})
        status = make_plan(pool_of(1), make_pod("a"), ending, loads=loads).status
        assert (status["replicas"], status["drainingReplicas"]) == (1, shown)

    def test_the_selector_finds_active_pods_only(self) -> None:
        selector = make_plan(pool_of(1), make_pod()).status["selector"]
        wanted = dict(pair.split("=") for pair in selector.split(","))
        assert wanted.items() <= make_pod().labels.items()
        assert not wanted.items() <= draining("b").labels.items()

    @pytest.mark.parametrize(
        ("sessions", "shown"),
        [(0, 0), (1, 1), (9, 9), (10, 10), (11, 15), (99, 100), (101, 150), (1000, 1000), (1001, 1500)],
    )
    def test_sessions_are_rounded_up(self, sessions: int, shown: int) -> None:
        assert rounded_up(sessions) == shown

    def test_at_most_32_ending_pods_are_listed(self) -> None:
        pods = [make_pod(f"p{i}", deleted_at=NOW) for i in range(40)]
        assert len(make_plan(pool_of(0), *pods).status["terminating"]) == 32

    @pytest.mark.parametrize(
        ("pod", "reason", "hint"),
        [
            ({"waiting_reason": "ImagePullBackOff"}, "ImagePullFailed", "spec.image"),
            ({"waiting_reason": "CrashLoopBackOff", "restarts": 7}, "CrashLoop", "ended 7 times"),
            ({"waiting_reason": "CreateContainerConfigError"}, "ContainerNotCreated", "Secret"),
            ({"phase": "Pending", "node": ""}, "Unschedulable", "add nodes"),
            ({}, "NotReady", "1 pod"),
        ],
    )
    def test_the_reason_why_pods_are_not_ready_is_named(self, pod: dict[str, Any], reason: str, hint: str) -> None:
        plan = make_plan(pool_of(1), make_pod("a", ready=False, **pod))
        for kind in ("Available", "Ready"):
            assert condition(plan, kind)["reason"] == reason
            assert hint in condition(plan, kind)["message"]

    def test_a_gated_pod_is_said_to_wait(self) -> None:
        assert condition(make_plan(pool_of(1), make_pod(gated=True)), "Ready")["reason"] == "WaitingForPodID"

    def test_a_quota_that_is_full_is_named(self) -> None:
        pool = pool_of(1)
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: q"}
        deployment = make_deployment(pool, 1, status={"observedGeneration": 1, "conditions": [failure]})
        ready = condition(make_plan(pool, deployment=deployment), "Ready")
        assert ready["reason"] == "FailedCreate"
        assert "exceeded quota: q" in ready["message"]

    def test_a_bad_image_leaves_the_old_pods_and_says_that_it_is_stuck(self) -> None:
        pool = pool_of(1, image="wrong:1")
        stuck = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
        deployment = make_deployment(pool, 1, status={"observedGeneration": 1, "conditions": [stuck]})
        pods = (
            make_pod("old", labels={REVISION_LABEL: "old"}),
            make_pod("new", pool=pool, ready=False, waiting_reason="ImagePullBackOff"),
        )
        plan = make_plan(pool, *pods, deployment=deployment)
        assert kinds(plan.actions) == []
        assert condition(plan, "Progressing")["reason"] == "Stalled"
        assert condition(plan, "Available")["status"] == "True"
        assert "wrong:1" in condition(plan, "Ready")["message"]

    def test_a_missing_secret_is_named(self) -> None:
        plan = make_plan(pool_of(1, internalTokenSecretRef={"name": "mine"}), make_pod())
        assert condition(plan, "KeysReady")["reason"] == "SecretMissing"
        assert "mine" in condition(plan, "Ready")["message"]

    def test_events_are_told_at_changes_only(self) -> None:
        pool = pool_of(1)
        first = make_plan(pool, make_pod())
        assert tell_changes(first.status["conditions"], [], {}, NOW).events == ()
        before = make_pool({"replicas": 1}, dict(make_plan(pool, leases=()).status)).status.conditions
        told = tell_changes(first.status["conditions"], before, {}, NOW).events
        assert [(event.type, event.reason) for event in told] == [
            ("Normal", "Allocated"),
            ("Normal", "TransceiversReady"),
            ("Normal", "Complete"),
            ("Normal", "Ready"),
        ]
        settled = make_pool({"replicas": 1}, dict(first.status), annotations=NOTED)
        again = make_plan(settled, make_pod()).status["conditions"]
        assert tell_changes(again, settled.status.conditions, {}, NOW).events == ()

    def test_a_look_that_changes_nothing_writes_the_same_status(self) -> None:
        first = make_plan(pool_of(1), make_pod())
        settled = make_pool({"replicas": 1}, dict(first.status), annotations=NOTED)
        assert make_plan(settled, make_pod(), now=NOW + 100).status == first.status
