"""A key's policy at work on events: what its holder may not send, and what it does not get to see.

Rules:
* A private field is one in the `session`, `response` or `item` of an event, at any depth.
* Instructions come by other ways, too: as a message of the system, and within the `input` of a `response.create`. Where
  `instructions` are private, an event with either is refused, and the content of such a message is cut.
* What is refused is refused as a whole: half of an event would be something that nobody has asked for.
* Where nothing is to be cut the event itself comes back, so that it need not be written again.
"""

from __future__ import annotations

from typing import Any

from usher_core.event_policy import EventPolicy
from usher_core.private_fields import INSTRUCTIONS, MAX_WHERE, find_private, without_private

Event = dict[str, Any]

HOLDERS = ("session", "response", "item")
"""Members of an event in which fields can be private. Deltas, of which there are many, have none of them."""


def refusal(policy: EventPolicy, event: Event) -> tuple[str, str] | None:
    """Return why the holder may not send an event, as message and `param`; None when it may."""
    kind: str = event["type"]
    if not policy.allows(kind):
        return "Your key does not allow events of this type.", "type"
    if not policy.private:
        return None
    if INSTRUCTIONS in policy.private:
        response = event.get("response")
        if isinstance(response, dict) and "input" in response:
            return "Your key does not allow `input`: it may hold instructions.", "response.input"
    for holder in HOLDERS:
        where = find_private(event.get(holder), policy.private)
        if where is not None:
            return "Your key does not allow this field.", (holder + where)[:MAX_WHERE]
    return None


def visible(policy: EventPolicy, event: Event) -> Event:
    """Return the event as the holder may see it: without private fields."""
    if not policy.private:
        return event
    cut = {}
    for holder in HOLDERS:
        value = event.get(holder)
        if isinstance(value, dict | list) and (kept := without_private(value, policy.private)) is not value:
            cut[holder] = kept
    return {**event, **cut} if cut else event
