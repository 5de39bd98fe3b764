"""What to do about a TransceiverPool: ids first, then the Deployment, then drains, and last the smaller Deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from usher_core.decimals import read_decimal
from usher_core.ids import MAX_CLUSTER
from usher_operator.actions import Action, Apply, JsonPatch, Plan, SetDrain
from usher_operator.api.common import seconds
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.conditions import Verdict
from usher_operator.identity.cluster_ids import Claim, claim_cluster_id
from usher_operator.identity.lease import read_leases
from usher_operator.identity.pod_ids import Grants, grant, identity_actions, is_waiting, last_given
from usher_operator.names import CLUSTER_ID_LABEL, REVISION_LABEL, ROUND_ANNOTATION, TRANSCEIVER
from usher_operator.plan import secret_refs
from usher_operator.plan.children import is_ours, key_of, leftovers, name_taken
from usher_operator.plan.defaults import Defaults
from usher_operator.plan.marks import mark_actions
from usher_operator.plan.scale_down import (
    ANSWER_LIMIT_S,
    Drains,
    Split,
    call_back,
    drain_actions,
    has_round,
    is_draining,
    resize,
    split,
)
from usher_operator.plan.transceiver_status import Counts, Facts, count, pod_verdicts, secret_verdicts, status
from usher_operator.pods_aside import tell_left
from usher_operator.render.pod import child_name
from usher_operator.render.revision import is_current
from usher_operator.render.transceiver import END_MARGIN_S, image_of, transceiver_children, transceiver_deployment
from usher_operator.seen import Json, PodSeen, TransceiverPoolSeen, pod_ids
from usher_operator.times import unix

_SOON_S = 1.0
"""Until the next look while something waits for an answer that no watch brings."""
_ENDING_S = 5.0
"""Until the next look while pods end."""
_KEPT = (("spec", "replicas"), ("metadata", "annotations", ROUND_ANNOTATION))
"""Of the Deployment: changed by compare-and-swap alone."""


def plan_transceiver_pool(pool: TransceiverPool, seen: TransceiverPoolSeen, now: float, defaults: Defaults) -> Plan:
    """Return what to do, and the status. Pure; `now` in Unix seconds.

    A paused pool still gives ids: its Deployment goes on replacing pods that nodes lose, and one without an id would
    wait for ever. All else of it stays as it is.
    """
    accepted = _accepted(pool, seen, defaults)
    claim = _claim(pool, seen, accepted, defaults)
    secrets = secret_verdicts(pool, seen)
    counts = count(seen.pods)
    workload = _look_at_workload(pool, seen, claim, accepted, defaults)
    chosen = _choose(pool, seen, workload)
    grants = _grants(pool, seen, claim, secrets, chosen, now)
    allocated = _allocated(claim, grants)
    drains = drain_actions(chosen, seen.loads, pool.spec.media.http_port, workload.deployment, now)
    may_change = _is_deleting(pool) or not pool.spec.paused
    aside = _drain_aside(pool, counts.aside if may_change else (), seen, workload, now)

    actions: list[Action] = []
    if not _is_deleting(pool):
        actions += identity_actions(pool, claim, grants, defaults.identity_namespace, now)
    if may_change:
        actions += _workload_actions(pool, seen, workload, drains)
        actions += mark_actions([*chosen.leaving, *chosen.staying, *counts.aside], seen.loads, now)
        actions += aside.actions
    if _is_deleting(pool):
        actions += tell_left(counts.aside)

    blockers = (verdict for verdict in (accepted, allocated, *secrets) if secret_refs.holds_up(verdict))
    facts = Facts(
        pool=pool,
        counts=counts,
        wanted=workload.wanted,
        revision=workload.revision,
        image=image_of(pool, defaults),
        deployment=workload.deployment,
        leaving=len(chosen.leaving),
        silent=drains.unanswered,
        is_rolling=workload.is_rolling,
        blocker=next(blockers, None),
    )
    verdicts = [accepted, allocated, *secrets, *pod_verdicts(facts)]
    cluster = claim.cluster if claim.is_held else pool.status.cluster_id
    return Plan(
        tuple(actions),
        status(facts, seen, verdicts, cluster, grants.last, now),
        look_again=_look_again(pool, claim, grants, counts, are_told=bool(chosen.leaving or aside.awaited)),
        done=_is_deleting(pool) and _is_done(pool, seen, workload, now),
    )


def plan_pod_ids(
    pool: TransceiverPool, seen: TransceiverPoolSeen, now: float, defaults: Defaults
) -> tuple[Action, ...]:
    """Return what gives ids to pods that wait, as `plan_transceiver_pool` would, but loads need not be known.

    A pod that waits has no node, so none that has a load comes between it and the pods that go.
    """
    if _is_deleting(pool):
        return ()
    accepted = _accepted(pool, seen, defaults)
    claim = _claim(pool, seen, accepted, defaults)
    workload = _look_at_workload(pool, seen, claim, accepted, defaults)
    chosen = _choose(pool, seen, workload)
    grants = _grants(pool, seen, claim, secret_verdicts(pool, seen), chosen, now)
    return identity_actions(pool, claim, grants, defaults.identity_namespace, now) if grants.pairs else ()


def _claim(pool: TransceiverPool, seen: TransceiverPoolSeen, accepted: Verdict, defaults: Defaults) -> Claim:
    templates = [seen.deployment] if seen.deployment is not None and is_ours(seen.deployment, pool) else []
    labels = [pod.labels for pod in seen.pods]
    labels += [template["spec"]["template"]["metadata"].get("labels") or {} for template in templates]
    found = (read_decimal(each.get(CLUSTER_ID_LABEL, ""), MAX_CLUSTER, 1) for each in labels)
    used = frozenset(each for each in found if each is not None)
    is_accepted = accepted.status == "True"
    return claim_cluster_id(pool, read_leases(seen.leases), seen.holders, defaults, used, is_accepted=is_accepted)


@dataclass(frozen=True, slots=True)
class _Workload:
    """The Deployment as it is and as it shall be.

    Attributes:
        deployment: the one there is, if it is this pool's.
        manifest: the one there shall be, without replicas; None when it is to stay as it is.
        replicas: those of the one there is.
        wanted: those there shall be in the end.
        live: its pods that have not begun to end.
        revision: of the template that pods shall have.
        is_rolling: whether some have another.
    """

    deployment: Json | None
    manifest: dict[str, Any] | None
    replicas: int
    wanted: int
    live: tuple[PodSeen, ...]
    revision: str
    is_rolling: bool

    @property
    def may_resize(self) -> bool:
        """Whether there is a Deployment whose size is ours to set: a pool that is wrong keeps what it has."""
        return self.deployment is not None and (self.manifest is not None or not self.wanted)

    @property
    def is_observed(self) -> bool:
        """Whether the Deployment's controller has seen the newest replicas and template."""
        metadata, observed = (self.deployment or {}).get("metadata", {}), (self.deployment or {}).get("status") or {}
        return bool(observed.get("observedGeneration", 0) >= metadata.get("generation", 0))


def _look_at_workload(
    pool: TransceiverPool, seen: TransceiverPoolSeen, claim: Claim, accepted: Verdict, defaults: Defaults
) -> _Workload:
    deployment = seen.deployment if is_ours(seen.deployment, pool) else None
    is_allowed = claim.cluster is not None and accepted.status == "True" and not _is_deleting(pool)
    manifest = transceiver_deployment(pool, claim.cluster, defaults) if is_allowed and claim.cluster else None
    template = (manifest or deployment or {}).get("spec", {}).get("template", {})
    revision = template.get("metadata", {}).get("labels", {}).get(REVISION_LABEL, "")
    live = tuple(pod for pod in seen.pods if pod.is_live)
    replicas = (deployment or {}).get("spec", {}).get("replicas")
    return _Workload(
        deployment,
        manifest,
        replicas=1 if replicas is None else replicas,
        wanted=0 if _is_deleting(pool) else pool.spec.replicas,
        live=live,
        revision=revision,
        is_rolling=any(pod.labels.get(REVISION_LABEL) != revision for pod in live),
    )


def _choose(pool: TransceiverPool, seen: TransceiverPoolSeen, workload: _Workload) -> Split:
    """Choose the pods that shall go. Where the Deployment can't shrink, none goes but with the pool."""
    surplus = _surplus(workload) if workload.may_resize or _is_deleting(pool) else 0
    return split(
        workload.live,
        seen.loads,
        surplus,
        is_old=lambda pod: workload.is_rolling and pod.labels.get(REVISION_LABEL) != workload.revision,
    )


def _surplus(workload: _Workload) -> int:
    """Return how many of the live pods shall go."""
    if not workload.wanted or not workload.is_rolling:
        return len(workload.live) - workload.wanted
    # A rollout has more pods than are wanted, and takes the old ones itself.
    if workload.replicas > workload.wanted:
        return workload.replicas - workload.wanted
    return 0 if workload.is_observed else sum(is_draining(pod) for pod in workload.live)


@dataclass(frozen=True, slots=True)
class _Aside:
    """What to do about pods that were taken out of their ReplicaSet. `awaited`: whether some may yet answer."""

    actions: tuple[Action, ...] = ()
    awaited: bool = False


def _drain_aside(
    pool: TransceiverPool, aside: tuple[PodSeen, ...], seen: TransceiverPoolSeen, workload: _Workload, now: float
) -> _Aside:
    """Let pods that were taken out take no more calls, and nothing wait for them: people may have stopped them."""
    if not aside:
        return _Aside()
    drains = drain_actions(Split(aside, ()), seen.loads, pool.spec.media.http_port, workload.deployment, now)
    # One that is silent for long is told again when it answers: until somebody deletes it, that may be never.
    given_up = {pod.name for pod in aside if pod.uid not in seen.loads} & set(drains.unanswered)
    actions = (action for action in drains.away if not (isinstance(action, SetDrain) and action.pod in given_up))
    alone = (replace(each, stands_alone=True) if isinstance(each, JsonPatch) else each for each in actions)
    return _Aside(tuple(alone), awaited=bool(drains.awaited))


def _grants(
    pool: TransceiverPool,
    seen: TransceiverPoolSeen,
    claim: Claim,
    secrets: Sequence[Verdict],
    chosen: Split,
    now: float,
) -> Grants:
    last = last_given(pool, claim)
    # A Secret that only we may not read burns no id.
    are_lacking = any(each.status == "False" and each.reason != secret_refs.FORBIDDEN for each in secrets)
    if claim.cluster is None or are_lacking or _is_deleting(pool):
        return Grants((), last, left=0, exhausted=0)
    cluster = claim.cluster
    waiting = [pod for pod in chosen.staying if is_waiting(pod, cluster)]
    own = pod_ids(pod for pod in seen.pods if pod.labels.get(CLUSTER_ID_LABEL) == str(cluster))
    return grant(waiting, last, (*seen.cluster_pod_ids, *own), now)


def _allocated(claim: Claim, grants: Grants) -> Verdict:
    if not grants.exhausted:
        return claim.verdict
    return Verdict(
        claim.verdict.type,
        "False",
        "PodIDsExhausted",
        f"Cluster id {claim.cluster} has no pod ids left, {grants.exhausted} pods wait: make a pool with another "
        "clusterID. Pods that run are not touched.",
    )


def _workload_actions(
    pool: TransceiverPool, seen: TransceiverPoolSeen, workload: _Workload, drains: Drains
) -> list[Action]:
    actions: list[Action] = []
    if workload.manifest is not None:
        children = transceiver_children(pool)
        actions += [
            Apply(child) for child in children if seen.resend or not is_current(child, seen.children.get(key_of(child)))
        ]
        is_right = is_current(workload.manifest, workload.deployment) and has_round(workload.deployment)
        if seen.resend or not is_right:
            # Where the Deployment was lost, the new one takes over the pods that are there.
            replicas = max(workload.wanted, len(workload.live))
            # A round that somebody has spoilt is not kept.
            kept = _KEPT if has_round(workload.deployment) else _KEPT[:1]
            actions.append(Apply(_with_replicas(workload.manifest, replicas), kept))
        elif not workload.is_rolling:
            actions += leftovers(pool, seen.children, children)
    return [*actions, *_size_actions(workload, drains)]


def _size_actions(workload: _Workload, drains: Drains) -> list[Action]:
    """Return what brings about the wanted number of pods: more at once, fewer once those that go have answered."""
    deployment, replicas = workload.deployment, workload.replicas
    if deployment is None:
        return [*drains.back, *drains.away]
    actions: list[Action] = []
    wanted = workload.wanted if workload.may_resize else replicas
    larger = max(replicas, wanted)
    if drains.calls_back:
        actions.append(call_back(deployment, replicas, larger))
    elif larger > replicas:
        actions.append(resize(deployment, replicas, larger, drains.round))
    actions += [*drains.back, *drains.away]
    if larger > wanted and drains.is_last:
        actions.append(resize(deployment, larger, wanted, drains.round, drains.awaited))
    return actions


def _with_replicas(manifest: dict[str, Any], replicas: int) -> dict[str, Any]:
    return {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}


def _accepted(pool: TransceiverPool, seen: TransceiverPoolSeen, defaults: Defaults) -> Verdict:
    if not image_of(pool, defaults):
        text = "No image: set spec.image, or the operator's setting for the image of transceivers."
        return Verdict("Accepted", "False", "NoImage", text)
    children = {f"Deployment/{child_name(TRANSCEIVER, pool.metadata.name)}": seen.deployment, **seen.children}
    return name_taken(children, pool) or Verdict("Accepted", "True", "Accepted", "The spec can be carried out.")


def _is_deleting(pool: TransceiverPool) -> bool:
    return pool.metadata.deletion_timestamp is not None


def _is_done(pool: TransceiverPool, seen: TransceiverPoolSeen, workload: _Workload, now: float) -> bool:
    """Return whether all calls of a deleted pool have ended, or have had their time. Kubernetes removes the children.

    Pods that were taken out of their ReplicaSet outlive it. The Lease stays, since ids are never used again; its holder
    counts until the last pod is gone.
    """
    grace = seconds(pool.spec.drain.grace_period) + END_MARGIN_S + ANSWER_LIMIT_S
    if now >= unix(pool.metadata.deletion_timestamp or "") + grace:
        return True
    is_empty = all(pod.phase in ("Succeeded", "Failed") for pod in seen.pods if pod.has_controller)
    return is_empty and (workload.deployment is None or workload.replicas == 0)


def _look_again(pool: TransceiverPool, claim: Claim, grants: Grants, counts: Counts, *, are_told: bool) -> float | None:
    if grants.left and not grants.exhausted:
        return 0.0
    is_claiming = claim.cluster is not None and not claim.is_held and not _is_deleting(pool)
    if are_told or counts.waiting or is_claiming:
        return _SOON_S
    return _ENDING_S if counts.terminating or _is_deleting(pool) else None
