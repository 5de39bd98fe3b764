"""Pod ids: each is given to one pod, ever (design D13).

Why no id is given twice, whatever crashes or runs twice: ids of a batch are first taken out of the Lease, then noted on
the pool, and only then written on pods, each write a compare-and-swap. When that of Lease or note fails, the
batch stops; a pod that can't be written only burns its id. Of two operators only one moves the Lease. If the Lease is
deleted or put back to an older state, the note on the pool is what the next batch starts above, and a slower operator
whose ids are not yet on pods finds the note changed. Lease and note mend each other at the next look. If both are lost
together (a restored backup), the clock and the pods that exist remain: ids run ahead of the clock by less than the size
of the last burst, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from usher_core.decimals import read_decimal
from usher_core.ids import MAX_POD
from usher_operator.actions import Action, Create, JsonPatch, Reference, Replace
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.identity.cluster_ids import Claim, pool_identity
from usher_operator.identity.lease import moved_lease, new_lease
from usher_operator.names import (
    API_VERSION,
    CLUSTER_ID_LABEL,
    LAST_POD_ID_ANNOTATION,
    POD_ID_GATE,
    POD_ID_LABEL,
)
from usher_operator.plan.json_patch import escape, unchanged
from usher_operator.seen import PodSeen

EPOCH = 1_735_689_600
"""2025-01-01 UTC in Unix seconds."""
BATCH = 250
"""Pods that one look gives ids: an operator that dies amid a batch burns no more."""


@dataclass(frozen=True, slots=True)
class Grants:
    """Ids for a batch of pods.

    Attributes:
        pairs: pods and their new ids.
        last: highest id given, these included.
        left: pods for the next look.
        exhausted: pods that get none, since the cluster id has none left.
    """

    pairs: tuple[tuple[PodSeen, int], ...]
    last: int
    left: int
    exhausted: int


def is_waiting(pod: PodSeen, cluster: int) -> bool:
    """Return whether a pod waits for an id under that cluster id."""
    return POD_ID_GATE in pod.gates and not pod.is_ending and pod.labels.get(CLUSTER_ID_LABEL) == str(cluster)


def last_given(pool: TransceiverPool, claim: Claim) -> int:
    """Return the highest id that Lease, pool and status know of; 0 for none."""
    return max(claim.lease.last_pod_id if claim.lease else 0, _noted(pool), pool.status.last_pod_id or 0)


def grant(waiting: Sequence[PodSeen], last: int, existing: Iterable[int], now: float) -> Grants:
    """Return ids for the pods that wait, the oldest first.

    Args:
        waiting: pods without an id.
        last: from `last_given`.
        existing: ids of all pods with that cluster id.
        now: Unix seconds. A clock that is wrong can't make an id double, only burn some.
    """
    first = max(last + 1, int(now) - EPOCH, 1 + max(existing, default=0))
    room = max(0, MAX_POD + 1 - first)
    oldest = sorted(waiting, key=lambda pod: (pod.created_at, pod.name))[: min(BATCH, room)]
    pairs = tuple((pod, first + place) for place, pod in enumerate(oldest))
    left = len(waiting) - len(pairs)
    return Grants(
        pairs,
        last=pairs[-1][1] if pairs else last,
        left=left,
        exhausted=left if room <= len(pairs) else 0,
    )


def identity_actions(
    pool: TransceiverPool, claim: Claim, grants: Grants, namespace: str, now: float
) -> tuple[Action, ...]:
    """Return the writes that claim the cluster id and give pods their ids, in the one order that is safe."""
    if claim.cluster is None:
        return ()
    actions: list[Action] = []
    me = pool_identity(pool)
    if claim.lease is None:
        actions.append(Create(new_lease(claim.cluster, namespace, me, grants.last, now)))
    elif not claim.is_held or claim.lease.last_pod_id < grants.last:
        actions.append(Replace(moved_lease(claim.lease, me, grants.last, now)))
    if _noted(pool) < grants.last:
        actions.append(_note(pool, grants.last))
    actions += [_give(pod, number) for pod, number in grants.pairs]
    return tuple(actions)


def _noted(pool: TransceiverPool) -> int:
    return read_decimal(pool.metadata.annotations.get(LAST_POD_ID_ANNOTATION, ""), MAX_POD) or 0


def _note(pool: TransceiverPool, last: int) -> JsonPatch:
    path = f"/metadata/annotations/{escape(LAST_POD_ID_ANNOTATION)}"
    operations: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": pool.metadata.uid}]
    noted = pool.metadata.annotations.get(LAST_POD_ID_ANNOTATION)
    operations.append(unchanged(path, noted, pool.metadata.resource_version))
    if not pool.metadata.annotations:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    operations.append({"op": "add", "path": path, "value": str(last)})
    target = Reference(API_VERSION, pool.kind, pool.metadata.namespace, pool.metadata.name)
    return JsonPatch(target, tuple(operations))


def _give(pod: PodSeen, number: int) -> JsonPatch:
    gate = f"/spec/schedulingGates/{pod.gates.index(POD_ID_GATE)}"
    return JsonPatch(
        Reference("v1", "Pod", pod.namespace, pod.name),
        (
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": pod.resource_version},
            {"op": "test", "path": f"{gate}/name", "value": POD_ID_GATE},
            {"op": "add", "path": f"/metadata/labels/{escape(POD_ID_LABEL)}", "value": str(number)},
            {"op": "remove", "path": gate},
        ),
        stands_alone=True,
    )
