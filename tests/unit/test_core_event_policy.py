"""Policies of events as people write them, and what two of them let pass together."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from openai.types.realtime import RealtimeClientEvent

from usher_core.errors import RemoteError
from usher_core.event_policy import (
    BROWSER,
    CLIENT_EVENTS,
    OPEN,
    EventPolicy,
    parse_event_policy,
)

KINDS = (*CLIENT_EVENTS, "acme.form", "acme.form.sent", "session", "response.created")


def test_the_events_of_clients_are_those_of_the_openai_package_and_two_more() -> None:
    of_openai = {get_args(event.model_fields["type"].annotation)[0] for event in _members(RealtimeClientEvent)}
    assert set(CLIENT_EVENTS) - of_openai == {"transcription_session.update"}
    assert of_openai <= set(CLIENT_EVENTS)


def _members(union: Any) -> list[Any]:
    return list(get_args(get_args(union)[0]))


def test_an_empty_list_of_what_may_pass_lets_nothing_pass() -> None:
    policy = parse_event_policy({"allow": []})
    assert not any(policy.allows(kind) for kind in KINDS)
    assert policy != OPEN
    assert policy.as_json() == {"allow": []}


def test_what_is_denied_goes_before_what_is_allowed_and_a_star_stands_for_all_that_begin_so() -> None:
    policy = parse_event_policy({"allow": ["conversation.item.*", "acme.*"], "deny": ["conversation.item.create"]})
    assert policy.allows("conversation.item.retrieve")
    assert policy.allows("acme.form.sent")
    assert not policy.allows("conversation.item.create")
    assert not policy.allows("session.update")
    assert not policy.allows("acmes")


def test_the_policy_for_browsers_lets_them_talk_and_not_change_or_see_the_prompt() -> None:
    assert parse_event_policy("browser") == BROWSER
    allowed = {kind for kind in CLIENT_EVENTS if BROWSER.allows(kind)}
    assert set(CLIENT_EVENTS) - allowed == {
        "conversation.item.create",
        "conversation.item.delete",
        "session.update",
        "transcription_session.update",
    }
    assert set(BROWSER.private) == {"instructions", "prompt", "tool_choice", "tools"}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("firefox", "the only one with a name is browser"),
        (["session.update"], "an object with the lists allow, deny and private"),
        (7, "an object with the lists"),
        ({"alow": ["session.update"]}, "there is no list 'alow'"),
        ({"allow": "session.update"}, "allow is a list of up to 32 texts"),
        ({"allow": ["acme.x"] * 33}, "allow is a list of up to 32 texts"),
        ({"deny": [["session.update"]]}, "deny is a list of up to 32 texts"),
        ({"allow": ["session.updated"]}, "no client sends 'session.updated'"),
        ({"allow": ["session.updates.*"]}, "no client sends 'session.updates"),
        ({"allow": ["*"]}, "is no type of an event"),
        ({"allow": ["Acme"]}, "is no type of an event"),
        ({"allow": ["acme\n"]}, "is no type of an event"),
        ({"allow": ["a" * 65]}, "is no type of an event"),
        ({"deny": ["acme.form"]}, "it would deny nothing"),
        ({"deny": ["sesion.update"]}, "it would deny nothing"),
        ({"private": ["instruction"]}, "can't be private; fields that can be: instructions,"),
    ],
)
def test_a_wrong_policy_is_refused_and_the_message_says_what_is_expected(value: Any, complaint: str) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_event_policy(value)
    assert caught.value.reason == "invalid_event_policy"
    assert complaint in caught.value.message
    assert len(caught.value.message) < 600


def test_a_session_at_the_begin_of_a_call_is_cut_to_what_the_holder_may_set() -> None:
    session = {"type": "realtime", "model": "m", "instructions": "Swear.", "audio": {"output": {"voice": "v"}}}
    assert OPEN.settable(session) == session
    assert BROWSER.settable(session) == {"type": "realtime", "model": "m"}
    no_prompt = EventPolicy(private=("instructions", "model"))
    assert no_prompt.settable(session) == {"type": "realtime", "audio": {"output": {"voice": "v"}}}
