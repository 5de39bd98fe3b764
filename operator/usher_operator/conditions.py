"""Conditions: how a pool says in words that programs and people understand how it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from usher_operator.api.common import Condition
from usher_operator.times import timestamp

MAX_NAMED = 5

Status = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition without its times: what a plan decides."""

    type: str
    status: Status
    reason: str
    message: str


def merge(
    verdicts: Iterable[Verdict], previous: Iterable[Condition], generation: int, now: float
) -> list[dict[str, Any]]:
    """Return the conditions for a status.

    Args:
        verdicts: what holds now, in the order they shall stand.
        previous: the conditions of the status as it is; one whose status did not change keeps its time.
        generation: generation of the spec that was looked at.
        now: Unix seconds.
    """
    before = {condition.type: condition for condition in previous}
    conditions = []
    for verdict in verdicts:
        old = before.get(verdict.type)
        same = old is not None and old.status == verdict.status
        conditions.append(
            {
                "type": verdict.type,
                "status": verdict.status,
                "reason": verdict.reason,
                "message": verdict.message,
                "lastTransitionTime": old.last_transition_time if same and old else timestamp(now),
                "observedGeneration": generation,
            }
        )
    return conditions


def with_verdict(
    conditions: Iterable[Mapping[str, Any]],
    verdict: Verdict,
    previous: Iterable[Condition],
    generation: int,
    now: float,
) -> list[Mapping[str, Any]]:
    """Return conditions of which one says something else; the rest as in `merge`."""
    others = [condition for condition in conditions if condition["type"] != verdict.type]
    return [*others, *merge([verdict], previous, generation, now)]


def some(names: Sequence[str]) -> str:
    """Return names for a message, at most MAX_NAMED of them."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def sentence(text: str) -> str:
    """Return a fault or note as a sentence of a message."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
