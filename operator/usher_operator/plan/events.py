"""Kubernetes Events: told when a condition changes, never while it stays.

What went well is told at once, what went wrong only once it has lasted: nearly all that a condition calls missing comes
by itself while a pool starts, and a Warning is for what a person has to do something about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from usher_operator.actions import Tell
from usher_operator.api.common import Condition
from usher_operator.times import unix

SETTLE_S = 60.0
"""Seconds after which what is wrong is told; one that comes back within that time has not been away."""
_SLOW_S = {"AddressPending": 300.0, "NameUnresolved": 300.0}
"""A cloud takes minutes for a load balancer and its name."""
_QUIET = frozenset(("Deleting", "NotReady", "Paused", "RollingOut", "Scaling", "WaitingForPodID"))
"""Reasons that come and go in the normal course of things: the condition says them, no Event does."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A reason for which some condition is not good. `since`, `last`: when it was seen, Unix seconds."""

    since: float
    last: float
    is_told: bool


@dataclass(frozen=True, slots=True)
class News:
    """What to tell, the troubles to remember by their reason, and the seconds until one has to be told, None for none.

    `troubles` is bounded by the reasons that conditions have within SETTLE_S.
    """

    events: tuple[Tell, ...]
    troubles: Mapping[str, Trouble]
    look_again: float | None


def tell_changes(
    conditions: Iterable[Mapping[str, Any]],
    previous: Iterable[Condition],
    troubles: Mapping[str, Trouble] | None,
    now: float,
) -> News:
    """Return what to tell of conditions; one Event per reason. What is good from the first moment on is no news.

    Args:
        conditions: of the status as it is written, with what the API server refused.
        previous: of the status before.
        troubles: of the look before; None: nobody remembers, and the status before has to tell what is old.
        now: Unix seconds.
    """
    before = {condition.type: condition for condition in previous}
    known = dict(_old_troubles(before.values(), now) if troubles is None else troubles)
    events: dict[str, Tell] = {}
    for condition in conditions:
        kind, status, reason, message = (condition[name] for name in ("type", "status", "reason", "message"))
        if status == "Unknown" or reason in _QUIET:
            continue
        if status == "True" or reason == "Complete":
            old = before.get(kind)
            if old is not None and (old.status, old.reason) != (status, reason):
                events.setdefault(reason, Tell("Normal", reason, message))
            continue
        trouble = known.get(reason, Trouble(now, now, is_told=False))
        is_due = not trouble.is_told and now - trouble.since >= _settle(reason)
        known[reason] = Trouble(trouble.since, now, is_told=trouble.is_told or is_due)
        if is_due:
            events.setdefault(reason, Tell("Warning", reason, message))
    left = {reason: trouble for reason, trouble in known.items() if now - trouble.last < SETTLE_S}
    dues = [
        trouble.since + _settle(reason) - now
        for reason, trouble in left.items()
        if trouble.last == now and not trouble.is_told
    ]
    return News(tuple(events.values()), left, min(dues, default=None))


def _old_troubles(conditions: Iterable[Condition], now: float) -> Mapping[str, Trouble]:
    """Return the troubles of a status that another operator wrote; it has told those that are old."""
    found: dict[str, Trouble] = {}
    for condition in conditions:
        if condition.status == "False":
            since = unix(condition.last_transition_time)
            found[condition.reason] = Trouble(since, now, is_told=now - since >= _settle(condition.reason))
    return found


def _settle(reason: str) -> float:
    return _SLOW_S.get(reason, SETTLE_S)
