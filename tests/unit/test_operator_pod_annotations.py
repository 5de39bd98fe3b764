"""What we write on pods leaves the annotations of others alone: from the pod's JSON to the patched JSON."""

from collections.abc import Callable
from typing import Any

import jsonpatch
import pytest

from tests.transceiver_pools import NOW, make_deployment, make_load, make_plan, make_pod, make_pool, patches
from usher_operator.actions import Plan
from usher_operator.names import DELETION_COST_ANNOTATION, DRAINING, LAST_POD_ID_ANNOTATION, ROUND_ANNOTATION
from usher_operator.observe import pod_seen
from usher_operator.plan.marks import MARKED_AT_ANNOTATION
from usher_operator.plan.scale_down import DRAINING_SINCE_ANNOTATION
from usher_operator.seen import PodSeen

FOREIGN = {"cni.projectcalico.org/podIP": "10.0.0.9/32", "kubectl.kubernetes.io/default-container": "transceiver"}


def make_body(annotations: dict[str, str] | None, state: str) -> dict[str, Any]:
    """Return a pod as the API server has it; None: without the map of annotations."""
    labels = {**make_pod("a").labels, "usher.fleet/state": state}
    metadata: dict[str, Any] = {"name": "a", "namespace": "fleet", "uid": "u", "resourceVersion": "7", "labels": labels}
    metadata["ownerReferences"] = [{"kind": "ReplicaSet", "uid": "v", "controller": True}]
    if annotations is not None:
        metadata["annotations"] = annotations
    return {
        "metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.9",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def plan_for(pod: PodSeen, replicas: int, sessions: int) -> Plan:
    pool = make_pool({"replicas": replicas}, annotations={LAST_POD_ID_ANNOTATION: "5"})
    return make_plan(pool, pod, loads={"u": make_load(sessions)}, deployment=make_deployment(pool, 1))


def has_calls(pod: PodSeen) -> Plan:
    return plan_for(pod, replicas=1, sessions=1)


def is_chosen(pod: PodSeen) -> Plan:
    return plan_for(pod, replicas=0, sessions=0)


def is_called_back(pod: PodSeen) -> Plan:
    return plan_for(pod, replicas=1, sessions=0)


@pytest.mark.parametrize("foreign", [FOREIGN, {}, None], ids=["some", "none", "no map"])
@pytest.mark.parametrize(
    ("happens", "state", "written"),
    [
        (has_calls, "active", MARKED_AT_ANNOTATION),
        (is_chosen, "active", DRAINING_SINCE_ANNOTATION),
        # A pod that lost its mark is marked again.
        (is_chosen, DRAINING, ROUND_ANNOTATION),
        (is_called_back, DRAINING, None),
    ],
    ids=["marked", "drained", "drained again", "called back"],
)
def test_the_annotations_of_others_stay(
    foreign: dict[str, str] | None, happens: Callable[[PodSeen], Plan], state: str, written: str | None
) -> None:
    body = make_body(foreign, state)
    found = patches(happens(pod_seen(body)), "Pod")
    assert found
    for patch in found:
        body = jsonpatch.apply_patch(body, patch.operations)
    annotations = body["metadata"]["annotations"]
    assert {name: value for name, value in annotations.items() if name in FOREIGN} == (foreign or {})
    assert written is None or written in annotations


def test_the_annotations_of_others_stay_when_ours_are_taken_off() -> None:
    ours = {DELETION_COST_ANNOTATION: "-1", DRAINING_SINCE_ANNOTATION: str(int(NOW)), ROUND_ANNOTATION: "0"}
    body = make_body({**FOREIGN, **ours}, DRAINING)
    for patch in patches(is_called_back(pod_seen(body)), "Pod"):
        body = jsonpatch.apply_patch(body, patch.operations)
    assert body["metadata"]["annotations"] == FOREIGN
