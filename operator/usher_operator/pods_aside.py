"""Pods that were taken out of their ReplicaSet or DaemonSet: what is said of them.

People do so to look at a pod in peace. Another pod is then in its place, and nothing ends this one: not a smaller pool,
not the pool's deletion, nor the operator, which may not delete pods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from usher_operator.actions import Tell
from usher_operator.conditions import Verdict, some
from usher_operator.seen import PodSeen


def with_aside(verdict: Verdict, aside: Sequence[PodSeen]) -> Verdict:
    """Return a verdict that names these pods as well."""
    if not aside:
        return verdict
    text = f"Without a controller, so not counted and ended by nobody but you: {_names(aside)}."
    return dataclasses.replace(verdict, message=f"{verdict.message} {text}")


def tell_left(aside: Sequence[PodSeen]) -> tuple[Tell, ...]:
    """Return the Event of a deleted pool that names the pods which outlive it: its conditions go with it."""
    if not aside:
        return ()
    text = (
        f"These pods have no controller and outlive the pool; delete them once you need them no more: {_names(aside)}"
    )
    return (Tell("Warning", "PodsLeft", text),)


def _names(pods: Sequence[PodSeen]) -> str:
    return some([pod.name for pod in pods])
