"""TransceiverPools and what a plan sees of them, for tests of the operator."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

from usher_core.internal_api import Load
from usher_operator.actions import Apply, JsonPatch, Plan, SetDrain
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.identity.lease import new_lease
from usher_operator.names import (
    CLUSTER_ID_LABEL,
    POD_ID_GATE,
    POD_ID_LABEL,
    REVISION_LABEL,
    STATE_LABEL,
    TRANSCEIVER,
    child_labels,
)
from usher_operator.plan.defaults import Defaults
from usher_operator.plan.transceiver_pool import plan_transceiver_pool
from usher_operator.render.transceiver import transceiver_children, transceiver_deployment
from usher_operator.seen import PodSeen, TransceiverPoolSeen

NOW = 1_767_225_600.0
"""2026-01-01 UTC."""
DEFAULTS = Defaults(
    relay_image="example.test/usher-relay:1",
    transceiver_image="example.test/usher-transceiver:1",
    identity_namespace="usher-system",
    first_cluster_id=100,
    last_cluster_id=102,
)
CLUSTER = 100


def make_pool(
    spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any
) -> TransceiverPool:
    return TransceiverPool.model_validate(
        {
            "metadata": {
                "name": "voice",
                "namespace": "fleet",
                "uid": "pool-uid",
                "resourceVersion": "7",
                "generation": 3,
                **metadata,
            },
            "spec": spec or {},
            "status": status or {},
        }
    )


PLAIN = make_pool()


def make_pod(
    name: str = "voice-a", *, pool: TransceiverPool | None = None, gated: bool = False, **changes: Any
) -> PodSeen:
    """Return a pod that runs and is ready, unless it is gated; `labels` are added, one that is None is taken away."""
    pool = pool or PLAIN
    labels: dict[str, str | None] = {
        **child_labels(TRANSCEIVER, pool.metadata.name),
        CLUSTER_ID_LABEL: str(CLUSTER),
        STATE_LABEL: "active",
        REVISION_LABEL: revision(pool),
    }
    if not gated:
        labels[POD_ID_LABEL] = "5"
    labels |= changes.pop("labels", {})
    state: dict[str, Any] = (
        {"phase": "Pending", "ready": False, "ip": "", "node": "", "gates": (POD_ID_GATE,)}
        if gated
        else {"phase": "Running", "ready": True, "ip": "10.0.0.9", "node": "n1", "gates": ()}
    )
    return PodSeen(
        **{
            "name": name,
            "namespace": "fleet",
            "uid": f"uid-of-{name}",
            "resource_version": "1",
            "labels": {key: value for key, value in labels.items() if value is not None},
            "annotations": {},
            "has_annotations": True,
            "created_at": NOW - 100,
            "deleted_at": None,
            "waiting_reason": "",
            "restarts": 0,
            **state,
            **changes,
        }
    )


def make_load(sessions: int = 0, *, draining: bool = False) -> Load:
    return Load(sessions=sessions, max_sessions=50, draining=draining, accepts=not draining)


def revision(pool: TransceiverPool) -> str:
    return _revision(pool.metadata.name, pool.spec.model_dump_json(by_alias=True))


@functools.cache
def _revision(name: str, spec: str) -> str:
    """Rendering takes ms, and state machines make thousands of pods."""
    pool = make_pool(json.loads(spec), name=name)
    found: str = transceiver_deployment(pool, CLUSTER, DEFAULTS)["spec"]["template"]["metadata"]["labels"][
        REVISION_LABEL
    ]
    return found


def make_deployment(pool: TransceiverPool, replicas: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the Deployment as the API server holds it once its controller has seen it."""
    manifest = transceiver_deployment(pool, CLUSTER, DEFAULTS)
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "uid": "deployment-uid", "resourceVersion": "9", "generation": 1},
        "spec": {**manifest["spec"], "replicas": replicas},
        "status": {"observedGeneration": 1},
        **changes,
    }


def make_lease(holder: str = "fleet/voice", last: int = 5, cluster: int = CLUSTER) -> dict[str, Any]:
    lease = new_lease(cluster, DEFAULTS.identity_namespace, holder, last, NOW)
    lease["metadata"] |= {"resourceVersion": "11", "uid": f"lease-{cluster}"}
    return lease


def make_seen(pool: TransceiverPool, *pods: PodSeen, **changes: Any) -> TransceiverPoolSeen:
    """Return a pool that is settled: its Lease and children are there, all pods answer and are empty."""
    children = {f"{child['kind']}/{child['metadata']['name']}": child for child in transceiver_children(pool)}
    live = [pod for pod in pods if not pod.is_ending]
    settled = TransceiverPoolSeen(
        pods=pods,
        cluster_pod_ids=(),
        loads={pod.uid: make_load(draining=pod.labels[STATE_LABEL] == "draining") for pod in pods if pod.ready},
        deployment=make_deployment(pool, len(live)),
        children=children,
        leases=(make_lease(),),
    )
    return dataclasses.replace(settled, **changes)


def make_plan(pool: TransceiverPool, *pods: PodSeen, now: float = NOW, **changes: Any) -> Plan:
    return plan_transceiver_pool(pool, make_seen(pool, *pods, **changes), now, DEFAULTS)


def condition(plan: Plan, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(found for found in plan.status["conditions"] if found["type"] == kind)
    return found


def patches(plan: Plan, kind: str) -> list[JsonPatch]:
    return [action for action in plan.actions if isinstance(action, JsonPatch) and action.target.kind == kind]


def applied(plan: Plan) -> dict[str, Any]:
    """Return what a plan applies, by kind."""
    return {action.manifest["kind"]: action.manifest for action in plan.actions if isinstance(action, Apply)}


def drained(plan: Plan) -> dict[str, bool]:
    """Return which pods a plan tells to drain (True) or to take calls again (False)."""
    return {action.pod: action.drain for action in plan.actions if isinstance(action, SetDrain)}


def value_set(patch: JsonPatch, path: str) -> Any:
    """Return what a patch sets at a path; None when it does not."""
    return next((step["value"] for step in patch.operations if step["path"] == path and step["op"] != "test"), None)
