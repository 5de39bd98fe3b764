"""Keeps autoscalers of nodes off pods with calls: marks of cluster-autoscaler and Karpenter (design D14)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from usher_core.internal_api import Load
from usher_operator.actions import JsonPatch
from usher_operator.names import AUTOSCALER_SAFE_ANNOTATION, GROUP, KARPENTER_ANNOTATION
from usher_operator.plan.scale_down import annotation_operations, pod_patch
from usher_operator.seen import PodSeen

MARKED_AT_ANNOTATION = f"{GROUP}/busy-since"
"""On a marked pod: Unix seconds of the mark."""
HOLD_S = 600.0
"""Seconds a mark stays at least: a pod between two calls costs no two writes a minute."""
BATCH = 50
"""Marks that one look writes; marking all of a large fleet is not urgent."""


def mark_actions(pods: Sequence[PodSeen], loads: Mapping[str, Load], now: float) -> tuple[JsonPatch, ...]:
    """Return the patches that mark pods with calls, and take the mark off those that have none."""
    return tuple(itertools.islice(_marks(pods, loads, now), BATCH))


def _marks(pods: Sequence[PodSeen], loads: Mapping[str, Load], now: float) -> Iterator[JsonPatch]:
    for pod in pods:
        load = loads.get(pod.uid)
        marked_at = pod.annotations.get(MARKED_AT_ANNOTATION)
        if load is None or (load.sessions > 0) == (marked_at is not None):
            continue
        if load.sessions:
            marks = {
                AUTOSCALER_SAFE_ANNOTATION: "false",
                KARPENTER_ANNOTATION: "true",
                MARKED_AT_ANNOTATION: str(int(now)),
            }
            yield pod_patch(pod, *annotation_operations(pod, marks), stands_alone=True)
        elif now - _seconds(marked_at or "") >= HOLD_S:
            names = (AUTOSCALER_SAFE_ANNOTATION, KARPENTER_ANNOTATION, MARKED_AT_ANNOTATION)
            yield pod_patch(pod, *annotation_operations(pod, dict.fromkeys(names)), stands_alone=True)


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else 0.0
