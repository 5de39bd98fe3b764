"""Which transceivers go when fewer are wanted, and how they are told (design D14).

The chosen pods are labelled, told to drain, and only when all have answered the Deployment shrinks: its ReplicaSet then
takes just these, since it takes pods that are not ready first and then those of the lowest deletion cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from usher_core.internal_api import Load
from usher_operator.actions import Action, JsonPatch, Reference, SetDrain
from usher_operator.names import ACTIVE, DELETION_COST_ANNOTATION, DRAINING, GROUP, STATE_LABEL
from usher_operator.plan.json_pointer import escape
from usher_operator.seen import PodSeen

DRAINING_SINCE_ANNOTATION = f"{GROUP}/draining-since"
"""On a draining pod: Unix seconds of when it was chosen."""
DELETION_COST = "-1000000"
"""Far below the 0 of all other pods."""
ANSWER_LIMIT_S = 60.0
"""Seconds until a pod that does not answer no longer keeps the Deployment from shrinking: SIGTERM drains it too."""

_PHASES = {"Pending": 1, "Unknown": 2, "Running": 3}


@dataclass(frozen=True, slots=True)
class Split:
    """Pods of the pool that have not begun to end: those that shall go, and those that stay."""

    leaving: tuple[PodSeen, ...]
    staying: tuple[PodSeen, ...]


def is_draining(pod: PodSeen) -> bool:
    """Return whether the pod was told to drain, as its label says."""
    return pod.labels.get(STATE_LABEL) == DRAINING


def split(live: Sequence[PodSeen], loads: Mapping[str, Load], surplus: int, is_old: Callable[[PodSeen], bool]) -> Split:
    """Choose `surplus` pods that shall go.

    In the order in which a ReplicaSet would take them: without a node, without a started container, not ready. Among
    ready ones: those that drain already, the emptiest, those that don't say how full they are, the newest. Pods of an
    old template go before all others, since a rollout takes them anyway.
    """

    def order(pod: PodSeen) -> tuple[Any, ...]:
        load = loads.get(pod.uid)
        sessions = load.sessions if load else float("inf")
        stage = 4 if pod.ready else _PHASES.get(pod.phase, 2) if pod.node else 0
        return (not is_old(pod), stage, not is_draining(pod), sessions, -pod.created_at, pod.name)

    ordered = sorted(live, key=order)
    count = max(0, surplus)
    return Split(leaving=tuple(ordered[:count]), staying=tuple(ordered[count:]))


@dataclass(frozen=True, slots=True)
class Drains:
    """What to do about the state of pods.

    Attributes:
        back: actions that let pods take calls again.
        away: actions after which the pods that leave take no more calls; the Deployment may shrink when all are done.
        unanswered: drains of pods that have not answered for so long that nothing waits for them.
    """

    back: tuple[Action, ...]
    away: tuple[Action, ...]
    unanswered: tuple[Action, ...]


def drain_actions(chosen: Split, loads: Mapping[str, Load], http_port: int, now: float) -> Drains:
    """Return what brings the pods' labels and the transceivers themselves in line with the choice."""
    back: list[Action] = []
    away: list[Action] = []
    unanswered: list[Action] = []
    for pod in chosen.staying:
        load = loads.get(pod.uid)
        # A pod that drains without the label was told so by an operator that had not seen that it was called back.
        if _can_answer(pod) and (is_draining(pod) or (load is not None and load.draining)):
            back.append(_tell(pod, http_port, drain=False))
        if is_draining(pod):
            back.append(_mark_active(pod))
    labelled = [_mark_draining(pod, now) for pod in chosen.leaving if not is_draining(pod)]
    for pod in chosen.leaving:
        load = loads.get(pod.uid)
        if _can_answer(pod) and not (load is not None and load.draining):
            is_late = is_draining(pod) and now - _draining_since(pod, now) >= ANSWER_LIMIT_S
            (unanswered if is_late else away).append(_tell(pod, http_port, drain=True))
    return Drains(tuple(back), (*labelled, *away), tuple(unanswered))


def _can_answer(pod: PodSeen) -> bool:
    """Return whether there is a process; before that nothing can place a call on the pod."""
    return bool(pod.ip) and pod.phase in ("Running", "Unknown")


def _tell(pod: PodSeen, http_port: int, *, drain: bool) -> SetDrain:
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return SetDrain(pod.name, f"http://{host}:{http_port}", drain)


def _draining_since(pod: PodSeen, now: float) -> float:
    text = pod.annotations.get(DRAINING_SINCE_ANNOTATION, "")
    return float(text) if text.isascii() and text.isdigit() else now


def _mark_draining(pod: PodSeen, now: float) -> JsonPatch:
    added = {DELETION_COST_ANNOTATION: DELETION_COST, DRAINING_SINCE_ANNOTATION: str(int(now))}
    return _patch(pod, DRAINING, *annotation_operations(pod, added))


def _mark_active(pod: PodSeen) -> JsonPatch:
    return _patch(
        pod, ACTIVE, *annotation_operations(pod, {DELETION_COST_ANNOTATION: None, DRAINING_SINCE_ANNOTATION: None})
    )


def _patch(pod: PodSeen, state: str, *operations: dict[str, Any]) -> JsonPatch:
    """Return a patch of state and annotations. It is lost when another operator has changed the state meanwhile."""
    path = f"/metadata/labels/{escape(STATE_LABEL)}"
    before = pod.labels.get(STATE_LABEL)
    guards = [] if before is None else [{"op": "test", "path": path, "value": before}]
    return pod_patch(pod, *guards, {"op": "add", "path": path, "value": state}, *operations)


def pod_patch(pod: PodSeen, *operations: dict[str, Any]) -> JsonPatch:
    """Return a patch of just this pod, not of a later one with its name."""
    guard = {"op": "test", "path": "/metadata/uid", "value": pod.uid}
    return JsonPatch(Reference("v1", "Pod", pod.namespace, pod.name), (guard, *operations))


def annotation_operations(pod: PodSeen, values: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Return the operations that set annotations, or remove those whose value is None."""
    operations: list[dict[str, Any]] = []
    if not pod.annotations:
        # Adding the map would take away what somebody else may have added meanwhile.
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": pod.resource_version}
        operations += [version, {"op": "add", "path": "/metadata/annotations", "value": {}}]
    for name, value in values.items():
        path = f"/metadata/annotations/{escape(name)}"
        if value is not None:
            operations.append({"op": "add", "path": path, "value": value})
        elif name in pod.annotations:
            operations.append({"op": "remove", "path": path})
    return operations
