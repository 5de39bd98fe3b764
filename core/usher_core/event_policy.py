"""What a key lets its holder do with the events of a call: signaling carries it, the transceiver enforces it.

A policy has three lists:

* `allow`: types of events that may be sent; None stands for all. A name that ends in `.*` stands for all that begin so.
* `deny`: types that may not be sent, also where `allow` names them.
* `private`: fields of sessions and responses that the holder neither sees nor sets.

Policies only narrow: what two of them let pass together is what each of them lets pass.

A misspelt name must leave no hole. So what `deny` and `private` name has to be known here, and so has what `allow`
names within the Realtime protocol. Other names in `allow` are events of a backend's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from usher_core.errors import RemoteError
from usher_core.private_fields import without_private

CLIENT_EVENTS = (
    "conversation.item.create",
    "conversation.item.delete",
    "conversation.item.retrieve",
    "conversation.item.truncate",
    "input_audio_buffer.append",
    "input_audio_buffer.clear",
    "input_audio_buffer.commit",
    "output_audio_buffer.clear",
    "response.cancel",
    "response.create",
    "session.update",
    "transcription_session.update",
)
"""What a client of the Realtime protocol may send, in its GA form and the beta one."""
PRIVATE_FIELDS = ("instructions", "metadata", "model", "prompt", "tool_choice", "tools", "tracing")
SESSION_UPDATE = "session.update"
MAX_NAMES = 32
"""Names of one list, as somebody writes it."""
MAX_NARROWED_NAMES = 128
"""Names of one list of a policy that several others made."""
MAX_NAME_LENGTH = 64

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*(\.\*)?")
_PROTOCOL = frozenset(kind.partition(".")[0] for kind in CLIENT_EVENTS)


def _is_known(name: str) -> bool:
    return any(_covers(name, kind) for kind in CLIENT_EVENTS)


def _is_named(kind: str, names: Iterable[str]) -> bool:
    return any(_covers(name, kind) for name in names)


def _covers(name: str, other: str) -> bool:
    """Whether all that `other` stands for is also what `name` stands for."""
    return name == other or (name.endswith("*") and other.startswith(name[:-1]))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


class EventPolicy(BaseModel):
    """See the module. Without a list it lets everything pass and hides nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allow: tuple[str, ...] | None = Field(default=None, max_length=MAX_NARROWED_NAMES)
    deny: tuple[str, ...] = Field(default=(), max_length=MAX_NARROWED_NAMES)
    private: tuple[str, ...] = Field(default=(), max_length=MAX_NARROWED_NAMES)

    @model_validator(mode="after")
    def _check_names(self) -> EventPolicy:
        for name in (*(self.allow or ()), *self.deny):
            if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name[:MAX_NAME_LENGTH]!r} is no type of an event: up to {MAX_NAME_LENGTH} of a-z 0-9 . _, and "
                    "at the end .* for all that begin so"
                )
        for name in self.allow or ():
            if name.partition(".")[0] in _PROTOCOL and not _is_known(name):
                raise ValueError(f"no client sends {name!r}; what they send: {_listed(CLIENT_EVENTS)}")
        for name in self.deny:
            if not _is_known(name):
                raise ValueError(
                    f"{name!r} in deny is not known, so it would deny nothing; known are {_listed(CLIENT_EVENTS)}. To "
                    "keep out events of a backend's own, name in allow what may pass"
                )
        for name in self.private:
            if name not in PRIVATE_FIELDS:
                known = _listed(PRIVATE_FIELDS)
                raise ValueError(f"{name[:MAX_NAME_LENGTH]!r} can't be private; fields that can be: {known}")
        return self

    def allows(self, kind: str) -> bool:
        """Return whether an event of this type may be sent."""
        return (self.allow is None or _is_named(kind, self.allow)) and not _is_named(kind, self.deny)

    def narrowed(self, other: EventPolicy) -> EventPolicy:
        """Return the policy that lets pass what both do, and hides what either does.

        Raises RemoteError `invalid_event_policy` when it has more names than a policy may.
        """
        if other == OPEN:
            return self
        lists = {
            "allow": _common(self.allow, other.allow),
            "deny": _once((*self.deny, *other.deny)),
            "private": _once((*self.private, *other.private)),
        }
        return _validated(lists)

    def settable(self, session: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of a session the holder may set when it places a call; the model is its own choice to make."""
        if not self.allows(SESSION_UPDATE):
            session = {name: value for name, value in session.items() if name in ("model", "type")}
        settable: dict[str, Any] = without_private(dict(session), self.private)
        return settable

    def as_json(self) -> dict[str, Any]:
        """Return the lists that are there, as somebody would write them."""
        return self.model_dump(mode="json", exclude_defaults=True)


OPEN = EventPolicy()
BROWSER = EventPolicy(
    allow=(
        "conversation.item.retrieve",
        "conversation.item.truncate",
        "input_audio_buffer.*",
        "output_audio_buffer.clear",
        "response.cancel",
        "response.create",
    ),
    private=("instructions", "prompt", "tool_choice", "tools"),
)
"""For pages: whoever holds the key may talk, interrupt and ask for an answer, and knows and changes nothing else."""
PRESETS: Mapping[str, EventPolicy] = {"browser": BROWSER}


def parse_event_policy(value: Any) -> EventPolicy:
    """Return the policy in a JSON value: None, the name of a preset, or an object with the lists.

    Raises RemoteError `invalid_event_policy` that says what is wrong.
    """
    if value is None:
        return OPEN
    if isinstance(value, str):
        if value not in PRESETS:
            raise _invalid(f"the only one with a name is {_listed(PRESETS)}")
        return PRESETS[value]
    if not isinstance(value, dict):
        raise _invalid(f"it is {_listed(PRESETS)}, or an object with the lists allow, deny and private")
    for name, names in value.items():
        if name not in EventPolicy.model_fields:
            raise _invalid(f"there is no list {name[:MAX_NAME_LENGTH]!r}; there are allow, deny and private")
        if not isinstance(names, list) or len(names) > MAX_NAMES or not all(isinstance(each, str) for each in names):
            raise _invalid(f"{name} is a list of up to {MAX_NAMES} texts")
    return _validated(value)


def parse_event_policy_text(text: str) -> EventPolicy:
    """Return the policy in a line such as `browser` or `allow=response.*,acme.form private=instructions`.

    `allow=none` lets nothing pass. Raises RemoteError `invalid_event_policy`.
    """
    policy, lists = OPEN, {}
    for word in text.split():
        name, is_list, names = word.partition("=")
        if name in lists:
            raise _invalid(f"{name[:MAX_NAME_LENGTH]} stands twice")
        if is_list:
            lists[name] = [] if names == "none" else names.split(",")
        else:
            policy = policy.narrowed(parse_event_policy(name))
    return policy.narrowed(parse_event_policy(lists))


def _validated(lists: Mapping[str, Any]) -> EventPolicy:
    try:
        return EventPolicy.model_validate(lists)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        raise _invalid(f"{where[:MAX_NAME_LENGTH]}: {message}" if where else message) from None


def _invalid(message: str) -> RemoteError:
    return RemoteError("invalid_event_policy", f"event_policy: {message}")


def _common(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    # Two names have nothing in common, or one covers the other.
    return _once((*(name for name in one if _is_named(name, other)), *(name for name in other if _is_named(name, one))))


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
