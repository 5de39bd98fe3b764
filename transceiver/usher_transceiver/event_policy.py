"""A key's policy at work on events: what its holder may not send, and what it does not get to see.

Rules:
* A private field is one in the `session`, `response` or `item` of an event, at any depth. In what is sent it is also a
  member of an event of the protocol itself: there are servers that take a model there.
* Some servers read names without regard to case, so names are compared so; and what is sent with a `Type`, `Session` or
  the like, which such a server could take for the one that is judged here, is refused.
* Instructions come by other ways, too: as a message of the system, and within the `input` of a `response.create`. Where
  `instructions` are private, an event with either is refused, and the content of such a message is cut.
* What is refused is refused as a whole: half of an event would be something that nobody has asked for.
* Where nothing is to be cut the event itself comes back, so that it need not be written again.
"""

from __future__ import annotations

from typing import Any

from usher_core.event_policy import CLIENT_EVENTS, OPEN, EventPolicy
from usher_core.json_values import write_json
from usher_core.private_fields import INSTRUCTIONS, MAX_WHERE, find_private, without_private

Event = dict[str, Any]

HOLDERS = ("session", "response", "item")
"""Members of an event in which fields can be private. Deltas, of which there are many, have none of them."""

_JUDGED = ("type", *HOLDERS)
_NOT_ALLOWED = "Your key does not allow this field."


def refusal(policy: EventPolicy, event: Event) -> tuple[str, str] | None:
    """Return why the holder may not send an event, as message and `param`; None when it may."""
    kind: str = event["type"]
    if not policy.allows(kind):
        return "Your key does not allow events of this type.", "type"
    if policy == OPEN:
        return None
    for name in event:
        folded = name.casefold()
        if folded in policy.private and kind in CLIENT_EVENTS:
            return _NOT_ALLOWED, name[:MAX_WHERE]
        if folded in _JUDGED and name != folded:
            return f"Your key does not allow this spelling of `{folded}`.", name[:MAX_WHERE]
    response = event.get("response")
    if INSTRUCTIONS in policy.private and isinstance(response, dict):
        for name in response:
            if name.casefold() == "input":
                return "Your key does not allow `input`: it may hold instructions.", f"response.{name}"
    for holder in HOLDERS:
        where = find_private(event.get(holder), policy.private)
        if where is not None:
            return _NOT_ALLOWED, (holder + where)[:MAX_WHERE]
    return None


def shown(policy: EventPolicy, event: Event, text: str) -> str:
    """Return the text of an event for the holder: `text`, which holds all of it, unless something is to be cut."""
    seen = visible(policy, event)
    return text if seen is event else write_json(seen)


def visible(policy: EventPolicy, event: Event) -> Event:
    """Return the event as the holder may see it: without private fields."""
    if not policy.private:
        return event
    cut = {}
    for name, value in event.items():
        if not isinstance(value, dict | list) or name.casefold() not in HOLDERS:
            continue
        if (kept := without_private(value, policy.private)) is not value:
            cut[name] = kept
    return {**event, **cut} if cut else event
