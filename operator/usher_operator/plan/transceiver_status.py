"""What a TransceiverPool's status says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from usher_core.internal_api import Load
from usher_operator.api.transceiver_pool import TerminatingPod, TransceiverPool, TransceiverPoolStatus
from usher_operator.conditions import Verdict, merge, sentence, some
from usher_operator.names import ACTIVE, POD_ID_GATE, REVISION_LABEL, STATE_LABEL, TRANSCEIVER, pool_labels, selector_of
from usher_operator.plan.diagnosis import is_stuck, why_not_ready
from usher_operator.plan.scale_down import is_draining
from usher_operator.plan.secret_refs import (
    needed_by_backend,
    needed_keys,
    secret_forbidden,
    secret_missing,
    secrets_verdict,
)
from usher_operator.pods_aside import with_aside
from usher_operator.seen import Json, PodSeen, TransceiverPoolSeen

MAX_TERMINATING = 32


@dataclass(frozen=True, slots=True)
class Counts:
    """The pods of a pool by what they do.

    `terminating`: deletion has begun, containers still run. `aside`: were taken out of the pool, and go on.
    """

    active: tuple[PodSeen, ...]
    draining: tuple[PodSeen, ...]
    waiting: tuple[PodSeen, ...]
    terminating: tuple[PodSeen, ...]
    aside: tuple[PodSeen, ...]

    @property
    def ready(self) -> int:
        """Active pods that are ready."""
        return sum(pod.ready for pod in self.active)

    def updated(self, revision: str) -> int:
        """Return how many active pods have the newest template."""
        return sum(pod.labels.get(REVISION_LABEL) == revision for pod in self.active)


def count(pods: Sequence[PodSeen]) -> Counts:
    """Sort pods by what they do."""
    live = [pod for pod in pods if pod.is_live]
    return Counts(
        active=tuple(pod for pod in live if not is_draining(pod)),
        draining=tuple(pod for pod in live if is_draining(pod)),
        waiting=tuple(pod for pod in live if POD_ID_GATE in pod.gates),
        terminating=tuple(
            pod for pod in pods if pod.deleted_at is not None and pod.phase not in ("Succeeded", "Failed")
        ),
        aside=tuple(pod for pod in pods if pod.is_aside),
    )


def keys_verdict(pool: TransceiverPool, seen: TransceiverPoolSeen) -> Verdict:
    """Return whether pods find keys and token. While those are missing they get no id: it would only be burnt."""
    needed, namespace = needed_keys(pool), pool.metadata.namespace
    if fault := secret_missing("KeysReady", needed, seen, namespace):
        return fault
    # Without the token no transceiver can be asked or told anything.
    if fault := secret_forbidden("KeysReady", "False", needed, seen, namespace):
        return fault
    if seen.keys_fault:
        return Verdict("KeysReady", "False", "KeysNotReady", sentence(seen.keys_fault))
    if seen.keys_note:
        return Verdict("KeysReady", "True", "Rotating", sentence(seen.keys_note))
    return Verdict("KeysReady", "True", "KeysFound", "Keys and token are there.")


def secret_verdicts(pool: TransceiverPool, seen: TransceiverPoolSeen) -> list[Verdict]:
    """Return KeysReady, and BackendReady where the backend takes anything from Secrets."""
    backend = secrets_verdict("BackendReady", needed_by_backend(pool), seen, pool.metadata.namespace)
    return [keys_verdict(pool, seen), *([] if backend is None else [backend])]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions about pods are made of. `blocker`: a verdict that keeps the pool from being worked on."""

    pool: TransceiverPool
    counts: Counts
    wanted: int
    revision: str
    image: str
    deployment: Json | None
    leaving: int
    silent: tuple[str, ...]
    is_rolling: bool
    blocker: Verdict | None


def pod_verdicts(facts: Facts) -> list[Verdict]:
    """Return Available, Progressing and Ready."""
    counts = facts.counts
    trouble = why_not_ready(counts.active, facts.deployment, facts.image)
    if counts.ready or not facts.wanted:
        text = f"{counts.ready} of {facts.wanted} wanted transceivers are ready."
        available = Verdict("Available", "True", "TransceiversReady", text)
    else:
        reason, message = _lack(facts, trouble)
        available = Verdict("Available", "False", reason, message)
    progressing = with_aside(_progressing(facts, trouble), counts.aside)
    return [available, progressing, _ready(facts, trouble)]


def _progressing(facts: Facts, trouble: tuple[str, str] | None) -> Verdict:
    kind = "Progressing"
    counts = facts.counts
    if facts.pool.metadata.deletion_timestamp is not None:
        left = len(counts.active) + len(counts.draining) + len(counts.terminating)
        return Verdict(kind, "True", "Deleting", f"The pool is being deleted; {left} pods still drain.")
    if facts.pool.spec.paused:
        return Verdict(kind, "False", "Paused", "spec.paused is true: nothing is changed until it is false.")
    if facts.blocker is not None:
        return Verdict(kind, "False", facts.blocker.reason, facts.blocker.message)
    if facts.leaving:
        text = f"{facts.leaving} transceivers drain until {facts.wanted} are left."
        if facts.silent:
            text += f" {some(facts.silent)} did not answer: does a NetworkPolicy block the operator?"
        return Verdict(kind, "True", "ScalingDown", text)
    if is_stuck(facts.deployment):
        text = trouble[1] if trouble else "The Deployment makes no progress."
        return Verdict(kind, "False", "Stalled", f"{text} The pods of the last good template go on.")
    if facts.is_rolling:
        text = f"{counts.updated(facts.revision)} of {facts.wanted} transceivers have the newest template."
        return Verdict(kind, "True", "RollingOut", text)
    if counts.ready < facts.wanted:
        return Verdict(kind, "True", "Scaling", f"{counts.ready} of {facts.wanted} transceivers are ready.")
    return Verdict(kind, "False", "Complete", "The pool is as it shall be.")


def _ready(facts: Facts, trouble: tuple[str, str] | None) -> Verdict:
    if facts.pool.metadata.deletion_timestamp is not None:
        return Verdict("Ready", "False", "Deleting", "The pool is being deleted.")
    if facts.blocker is not None:
        return Verdict("Ready", "False", facts.blocker.reason, facts.blocker.message)
    counts = facts.counts
    if counts.ready < facts.wanted:
        return Verdict("Ready", "False", *_lack(facts, trouble))
    if facts.is_rolling:
        text = f"{counts.updated(facts.revision)} of {facts.wanted} transceivers have the newest template."
        if trouble:
            return Verdict("Ready", "False", trouble[0], f"{text} {trouble[1]}")
        return Verdict("Ready", "False", "RollingOut", text)
    return Verdict("Ready", "True", "Ready", f"All {facts.wanted} wanted transceivers are ready.")


def _lack(facts: Facts, trouble: tuple[str, str] | None) -> tuple[str, str]:
    """Return reason and message of why ready transceivers are missing."""
    if facts.blocker is not None:
        return facts.blocker.reason, facts.blocker.message
    if trouble is not None and trouble[0] != "NotReady":
        return trouble
    if facts.counts.waiting:
        return "WaitingForPodID", f"{len(facts.counts.waiting)} pods wait for a pod id."
    return trouble or ("Scaling", f"{facts.counts.ready} of {facts.wanted} transceivers are ready.")


def status(
    facts: Facts,
    seen: TransceiverPoolSeen,
    verdicts: Sequence[Verdict],
    cluster: int | None,
    last_pod_id: int,
    now: float,
) -> dict[str, Any]:
    """Return the status. `cluster`: the id that the pool holds for sure; `last_pod_id`: 0 for none."""
    pool, counts = facts.pool, facts.counts
    found = TransceiverPoolStatus(
        observed_generation=pool.metadata.generation,
        cluster_id=cluster,
        replicas=len(counts.active),
        ready_replicas=counts.ready,
        updated_replicas=counts.updated(facts.revision),
        draining_replicas=len(counts.draining) + sum(_may_have_calls(pod, seen.loads) for pod in counts.terminating),
        waiting_replicas=len(counts.waiting),
        sessions=rounded_up(sum(load.sessions for load in seen.loads.values())),
        terminating=_terminating(counts.terminating, seen.loads),
        last_pod_id=last_pod_id or None,
        selector=active_selector(pool.metadata.name),
        key_ids=list(seen.key_ids[:64]),
    )
    values = found.model_dump(by_alias=True, exclude_none=True)
    values["conditions"] = merge(verdicts, pool.status.conditions, pool.metadata.generation, now)
    return values


def active_selector(pool: str) -> str:
    """Return the label selector of pods that an HPA counts."""
    return selector_of({**pool_labels(TRANSCEIVER, pool), STATE_LABEL: ACTIVE})


def rounded_up(sessions: int) -> int:
    """Return sessions rounded up to a step of about a twentieth, so that a status is not written at every call."""
    step = max(1, 5 * 10 ** (len(str(sessions)) - 2))
    return -(-sessions // step) * step if sessions >= 10 else sessions


def _may_have_calls(pod: PodSeen, loads: Mapping[str, Load]) -> bool:
    load = loads.get(pod.uid)
    return pod.may_carry if load is None else load.sessions > 0


def _terminating(pods: Sequence[PodSeen], loads: Mapping[str, Load]) -> list[TerminatingPod]:
    listed = []
    for pod in sorted(pods, key=lambda pod: (pod.deleted_at or 0, pod.name))[:MAX_TERMINATING]:
        load = loads.get(pod.uid)
        listed.append(TerminatingPod(name=pod.name, sessions=None if load is None else rounded_up(load.sessions)))
    return listed
