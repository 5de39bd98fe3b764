"""Which transceivers go when fewer are wanted, and how they are told (design D14).

The chosen pods are labelled, told to drain, and only when all have answered the Deployment shrinks: its ReplicaSet then
takes just these, since it takes pods that are not ready first and then those of the lowest deletion cost.

Two operators at once do no harm. The Deployment carries a round number, and each draining pod the round in which it was
chosen, or chosen again. Who calls pods back moves the round on first, by compare-and-swap on the size and the round
that it saw, and then changes only pods that still have the mark that it saw. Who shrinks brings all marks up to the
round, then tests size and round. So a shrink that rests on an older look is lost once a pod was called back, and a
call-back is lost once the Deployment shrank, or once its pods were chosen again. A drain itself is a message that no
swap can guard: one that comes late meets an active pod, and the next look takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from usher_core.decimals import read_decimal
from usher_core.internal_api import Load
from usher_operator.actions import Action, JsonPatch, Reference, SetDrain
from usher_operator.names import ACTIVE, DELETION_COST_ANNOTATION, DRAINING, GROUP, ROUND_ANNOTATION, STATE_LABEL
from usher_operator.plan.json_patch import escape, unchanged
from usher_operator.seen import Json, PodSeen

DRAINING_SINCE_ANNOTATION = f"{GROUP}/draining-since"
"""On a draining pod: Unix seconds of when it was chosen."""
DELETION_COST = "-1000000"
"""Far below the 0 of all other pods."""
ANSWER_LIMIT_S = 60.0
"""Seconds until a pod that does not answer no longer keeps the Deployment from shrinking: SIGTERM drains it too."""
BATCH = 500
"""Pods that one look chooses, so that it has an end; the Deployment shrinks when all are."""

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
        round: of the Deployment when they are carried out.
        calls_back: whether a pod that was chosen to go stays after all, which begins that round.
        back: actions that let pods take calls again.
        away: actions after which the pods that leave take no more calls.
        awaited: names of the pods whose answer the smaller Deployment waits for.
        unanswered: names of pods that have not answered for so long that nothing waits for them.
        is_last: whether no pod is left for the next look to choose; only then the Deployment may shrink.
    """

    round: int
    calls_back: bool
    back: tuple[Action, ...]
    away: tuple[Action, ...]
    awaited: tuple[str, ...]
    unanswered: tuple[str, ...]
    is_last: bool


def drain_actions(
    chosen: Split, loads: Mapping[str, Load], http_port: int, deployment: Json | None, now: float
) -> Drains:
    """Return what brings the pods' labels and the transceivers themselves in line with the choice.

    Labels come before the messages: an operator that dies between the two leaves what the next look mends.
    """
    stay = [pod for pod in chosen.staying if is_draining(pod)]
    round_ = round_of(deployment) + bool(stay)
    # A pod that drains without the label was told so by an operator that had not seen that it was called back.
    astray = [pod for pod in chosen.staying if not is_draining(pod) and _drains(pod, loads)]
    back_told = [_tell(pod, http_port, drain=False) for pod in (*stay, *astray) if pod.can_answer]

    fresh = [pod for pod in chosen.leaving if not is_draining(pod)]
    begun = [pod for pod in chosen.leaving if is_draining(pod)]
    outdated = [pod for pod in begun if pod.annotations.get(ROUND_ANNOTATION) != str(round_)]
    # Those that drain already come first: what is begun is ended.
    again = outdated[:BATCH]
    first = fresh[: BATCH - len(again)]
    # A program that does not run has no calls; once it does, the next look tells it.
    told = [pod for pod in (*begun, *first) if pod.may_carry]
    # Those that answer come first: silent ones may use up the time that all drains have.
    told = sorted((pod for pod in told if not _drains(pod, loads)), key=lambda pod: pod.uid not in loads)
    late = {pod.name for pod in told if is_draining(pod) and now - _draining_since(pod, now) >= ANSWER_LIMIT_S}
    return Drains(
        round=round_,
        calls_back=bool(stay),
        back=(*map(_mark_active, stay), *back_told),
        away=(
            *(_mark_again(pod, round_) for pod in again),
            *(_mark_draining(pod, round_, now) for pod in first),
            *(_tell(pod, http_port, drain=True) for pod in told),
        ),
        awaited=tuple(pod.name for pod in told if pod.name not in late),
        unanswered=tuple(pod.name for pod in told if pod.name in late),
        is_last=len(outdated) + len(fresh) <= BATCH,
    )


def _drains(pod: PodSeen, loads: Mapping[str, Load]) -> bool:
    return pod.uid in loads and loads[pod.uid].draining


def call_back(deployment: Json, seen: int, wanted: int) -> JsonPatch:
    """Return the patch that begins a new round and sets the size, if round and size are those that were seen."""
    round_ = round_of(deployment)
    operations = [_round_operation("replace", round_ + 1)] if has_round(deployment) else []
    return _sized(deployment, seen, wanted, round_, operations)


def resize(deployment: Json, seen: int, wanted: int, round_: int, waits_for: tuple[str, ...] = ()) -> JsonPatch:
    """Return the patch that sets a Deployment's size, if neither it nor the round has changed meanwhile.

    Args:
        deployment: as it was seen.
        seen: its size after what stands before this patch in the plan.
        wanted: the size to set.
        round_: its round after what stands before.
        waits_for: names of pods that have to answer before.
    """
    return _sized(deployment, seen, wanted, round_, (), waits_for)


def _sized(
    deployment: Json,
    seen: int,
    wanted: int,
    round_: int,
    operations: Sequence[dict[str, Any]],
    waits_for: tuple[str, ...] = (),
) -> JsonPatch:
    metadata = deployment["metadata"]
    guards = [
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        {"op": "test", "path": "/spec/replicas", "value": seen},
    ]
    if has_round(deployment):
        guards.append(_round_operation("test", round_))
    size = [] if wanted == seen else [{"op": "replace", "path": "/spec/replicas", "value": wanted}]
    target = Reference("apps/v1", "Deployment", metadata["namespace"], metadata["name"])
    return JsonPatch(target, (*guards, *operations, *size), waits_for)


def _round_operation(op: str, round_: int) -> dict[str, Any]:
    return {"op": op, "path": f"/metadata/annotations/{escape(ROUND_ANNOTATION)}", "value": str(round_)}


MAX_ROUND = 10**18


def has_round(deployment: Json | None) -> bool:
    """Return whether the Deployment has the round that every manifest of it begins with; people may remove it."""
    return _round_of(deployment) is not None


def round_of(deployment: Json | None) -> int:
    """Return the round of a Deployment, 0 for none."""
    return _round_of(deployment) or 0


def _round_of(deployment: Json | None) -> int | None:
    text = str(((deployment or {}).get("metadata", {}).get("annotations") or {}).get(ROUND_ANNOTATION, ""))
    round_ = read_decimal(text, MAX_ROUND)
    # Another spelling, such as 007, is not ours, and a patch that tests for the number would never be taken.
    return round_ if str(round_) == text else None


def _tell(pod: PodSeen, http_port: int, *, drain: bool) -> SetDrain:
    return SetDrain(pod.name, pod.base_url(http_port), drain)


def _draining_since(pod: PodSeen, now: float) -> float:
    text = pod.annotations.get(DRAINING_SINCE_ANNOTATION, "")
    return float(text) if text.isascii() and text.isdigit() else now


def _mark_draining(pod: PodSeen, round_: int, now: float) -> JsonPatch:
    values = {
        DELETION_COST_ANNOTATION: DELETION_COST,
        DRAINING_SINCE_ANNOTATION: str(int(now)),
        ROUND_ANNOTATION: str(round_),
    }
    return _patch(pod, DRAINING, *annotation_operations(pod, values))


def _mark_again(pod: PodSeen, round_: int) -> JsonPatch:
    return pod_patch(pod, *_guards(pod), *annotation_operations(pod, {ROUND_ANNOTATION: str(round_)}))


def _mark_active(pod: PodSeen) -> JsonPatch:
    ours = (DELETION_COST_ANNOTATION, DRAINING_SINCE_ANNOTATION, ROUND_ANNOTATION)
    return _patch(pod, ACTIVE, *annotation_operations(pod, dict.fromkeys(ours)))


def _patch(pod: PodSeen, state: str, *operations: dict[str, Any]) -> JsonPatch:
    change = {"op": "add", "path": f"/metadata/labels/{escape(STATE_LABEL)}", "value": state}
    return pod_patch(pod, *_guards(pod), change, *operations)


def _guards(pod: PodSeen) -> list[dict[str, Any]]:
    """Return the tests that lose a patch when another operator has changed state or mark meanwhile."""
    state, mark = pod.labels.get(STATE_LABEL), pod.annotations.get(ROUND_ANNOTATION)
    guards = []
    if state is not None:
        guards.append({"op": "test", "path": f"/metadata/labels/{escape(STATE_LABEL)}", "value": state})
    if mark is not None or is_draining(pod):
        guards.append(unchanged(f"/metadata/annotations/{escape(ROUND_ANNOTATION)}", mark, pod.resource_version))
    return guards


def pod_patch(pod: PodSeen, *operations: dict[str, Any], stands_alone: bool = False) -> JsonPatch:
    """Return a patch of just this pod, not of a later one with its name."""
    guard = {"op": "test", "path": "/metadata/uid", "value": pod.uid}
    target = Reference("v1", "Pod", pod.namespace, pod.name)
    return JsonPatch(target, (guard, *operations), stands_alone=stands_alone)


def annotation_operations(pod: PodSeen, values: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Return the operations that set annotations, or remove those whose value is None."""
    operations: list[dict[str, Any]] = []
    if not pod.has_annotations:
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
