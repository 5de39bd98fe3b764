"""Why pods are not ready, in words that say what to change."""

from __future__ import annotations

from collections.abc import Sequence

from usher_operator.seen import Json, PodSeen

_IMAGE = frozenset(("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"))
_CONFIG = frozenset(("CreateContainerConfigError", "CreateContainerError", "RunContainerError"))


def why_not_ready(pods: Sequence[PodSeen], workload: Json | None, image: str) -> tuple[str, str] | None:
    """Return reason and message of what keeps these pods from being ready, the gravest first; None when nothing does.

    Args:
        pods: pods that should be ready, beside gated ones.
        workload: their Deployment or DaemonSet, which says when it may make no pods.
        image: the image they shall run.
    """
    failure = _condition(workload, "ReplicaFailure")
    if failure and failure.get("status") == "True":
        return failure.get("reason") or "ReplicaFailure", f"No pod can be made: {failure.get('message', '')}"
    for names, reason, text in (
        (_IMAGE, "ImagePullFailed", "can't pull the image {image}: check spec.image and spec.imagePullSecrets"),
        (_CONFIG, "ContainerNotCreated", "can't make its container: a Secret or a setting of podTemplate is wrong"),
        (
            frozenset(("CrashLoopBackOff",)),
            "CrashLoop",
            "ended {restarts} times: see `kubectl logs -n {namespace} {pod} --previous`",
        ),
    ):
        bad = [pod for pod in pods if pod.waiting_reason in names]
        if bad:
            first = bad[0]
            more = text.format(image=image, restarts=first.restarts, namespace=first.namespace, pod=first.name)
            return reason, f"{_count(bad)}: pod {first.name} ({first.waiting_reason}) {more}."
    homeless = [pod for pod in pods if not pod.node and pod.phase == "Pending" and not pod.gates]
    if homeless:
        first = homeless[0]
        return "Unschedulable", (
            f"{_count(homeless)} without a node: see `kubectl describe pod -n {first.namespace} {first.name}`, then "
            "add nodes or change spec.resources or spec.placement."
        )
    unready = [pod for pod in pods if not pod.ready and not pod.gates]
    return ("NotReady", f"{_count(unready)} not ready yet.") if unready else None


def is_stuck(workload: Json | None) -> bool:
    """Return whether a rollout made no progress for its deadline."""
    progressing = _condition(workload, "Progressing")
    return bool(progressing and progressing.get("reason") == "ProgressDeadlineExceeded")


def _condition(workload: Json | None, kind: str) -> Json | None:
    conditions = ((workload or {}).get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def _count(pods: Sequence[PodSeen]) -> str:
    return "1 pod" if len(pods) == 1 else f"{len(pods)} pods"
