"""Kubernetes Events: told when a condition changes, never while it stays."""

from __future__ import annotations

from collections.abc import Iterable

from usher_operator.actions import Tell
from usher_operator.api.common import Condition
from usher_operator.conditions import Verdict

_QUIET = frozenset(("Deleting", "NotReady", "Paused", "RollingOut", "Scaling", "WaitingForPodID"))
"""Reasons that come and go in the normal course of things: the condition says them, no Event does."""


def tell_changes(verdicts: Iterable[Verdict], previous: Iterable[Condition]) -> tuple[Tell, ...]:
    """Return an Event for each condition that has another status or reason than before; one per reason."""
    before = {condition.type: (condition.status, condition.reason) for condition in previous}
    events: dict[str, Tell] = {}
    for verdict in verdicts:
        is_new = before.get(verdict.type) != (verdict.status, verdict.reason)
        if is_new and verdict.status != "Unknown" and verdict.reason not in _QUIET:
            is_good = verdict.status == "True" or verdict.reason == "Complete"
            tell = Tell("Normal" if is_good else "Warning", verdict.reason, verdict.message)
            events.setdefault(verdict.reason, tell)
    return tuple(events.values())
