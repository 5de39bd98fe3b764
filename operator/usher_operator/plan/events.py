"""Kubernetes Events: told when a condition changes, never while it stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from usher_operator.actions import Tell
from usher_operator.api.common import Condition

_QUIET = frozenset(("Deleting", "NotReady", "Paused", "RollingOut", "Scaling", "WaitingForPodID"))
"""Reasons that come and go in the normal course of things: the condition says them, no Event does."""


def tell_changes(conditions: Iterable[Mapping[str, Any]], previous: Iterable[Condition]) -> tuple[Tell, ...]:
    """Return an Event for each condition that has another status or reason than before; one per reason.

    What is good from the first moment on is no news.

    Args:
        conditions: of the status as it is written, with what the API server refused.
        previous: of the status before.
    """
    before = {condition.type: (condition.status, condition.reason) for condition in previous}
    events: dict[str, Tell] = {}
    for condition in conditions:
        kind, status, reason = condition["type"], condition["status"], condition["reason"]
        is_good = status == "True" or reason == "Complete"
        is_news = before.get(kind) != (status, reason) and not (is_good and kind not in before)
        if is_news and status != "Unknown" and reason not in _QUIET:
            events.setdefault(reason, Tell("Normal" if is_good else "Warning", reason, condition["message"]))
    return tuple(events.values())
