"""A policy at work on single events."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from usher_core.event_policy import BROWSER, OPEN, EventPolicy
from usher_core.private_fields import MAX_LEVELS, MAX_WHERE
from usher_transceiver.event_policy import refusal, visible

NO_PROMPT = EventPolicy(private=("instructions", "tools", "prompt"))


def nested(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {"x": leaf}
    return leaf


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "session.update", "session": {"instructions": ""}}, "session.instructions"),
        ({"type": "session.update", "session": {"tools": []}}, "session.tools"),
        (
            {"type": "session.update", "session": {"audio": {"input": [{}, {"prompt": "p"}]}}},
            "session.audio.input[1].prompt",
        ),
        ({"type": "response.create", "response": {"instructions": "Swear."}}, "response.instructions"),
        ({"type": "response.create", "response": {"input": []}}, "response.input"),
        (
            {"type": "conversation.item.create", "item": {"type": "message", "role": "system", "content": []}},
            "item.role",
        ),
        ({"type": "conversation.item.create", "item": {"role": "developer"}}, "item.role"),
        ({"type": "session.update", "session": [[{"tools": 1}]]}, "session[0][0].tools"),
        ({"type": "response.create", "response": [{"input": [{"role": "system"}]}]}, "response[0].input[0].role"),
        ({"type": "session.update", "tools": []}, "tools"),
    ],
)
def test_private_fields_can_not_be_set_by_any_event(event: dict[str, Any], param: str) -> None:
    found = refusal(NO_PROMPT, event)
    assert found is not None
    assert found[1] == param
    assert refusal(OPEN, event) is None


LONG_S = "\u017f"


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "response.create", "Type": "session.update"}, "Type"),
        ({"type": "response.create", "TYPE": "response.create"}, "TYPE"),
        ({"type": "response.create", f"{LONG_S}ession": {}}, f"{LONG_S}ession"),
        ({"type": "response.create", "Response": {"Instructions": "x"}}, "Response"),
        ({"type": "conversation.item.create", "ITEM": {"role": "system"}}, "ITEM"),
        ({"type": "session.update", "session": {"Instructions": "x"}}, "session.Instructions"),
        ({"type": "session.update", "session": {f"in{LONG_S}tructions": "x"}}, f"session.in{LONG_S}tructions"),
        ({"type": "session.update", "session": {"a": [{"TOOLS": []}]}}, "session.a[0].TOOLS"),
        ({"type": "session.update", "Tools": []}, "Tools"),
        ({"type": "response.create", "response": {"Input": []}}, "response.Input"),
        ({"type": "conversation.item.create", "item": {"Role": "system"}}, "item.role"),
        ({"type": "conversation.item.create", "item": {"role": f"{LONG_S}ystem"}}, "item.role"),
        ({"type": "conversation.item.create", "item": {"role": "Developer"}}, "item.role"),
    ],
)
def test_no_other_spelling_gets_by_that_some_server_takes_for_the_name(event: dict[str, Any], param: str) -> None:
    found = refusal(NO_PROMPT, event)
    assert found is not None
    assert found[1] == param
    assert refusal(OPEN, event) is None


def test_a_second_type_gets_by_no_policy_that_names_types() -> None:
    event = {"type": "response.create", "Type": "session.update", "session": {}}
    for policy in (EventPolicy(deny=("session.update",)), EventPolicy(allow=("response.create",))):
        found = refusal(policy, event)
        assert found is not None
        assert found[1] == "Type"


def test_private_fields_are_cut_however_they_are_spelt() -> None:
    event = {"type": "x", "Session": {"Tools": 1, "voice": "v"}, "item": {"ROLE": "System", "Content": ["secret"]}}
    assert visible(NO_PROMPT, event) == {
        "type": "x",
        "Session": {"voice": "v"},
        "item": {"ROLE": "System", "Content": []},
    }


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.create"},
        {"type": "response.create", "response": {"metadata": {"a": "b"}, "conversation": "none"}},
        {"type": "response.create", "response": None},
        {"type": "session.update", "session": {"audio": {"output": {"voice": "v"}}}},
        {"type": "conversation.item.create", "item": {"role": "user", "content": [{"text": "instructions, tools"}]}},
        {"type": "acme.form", "instructions": "of the form"},
    ],
)
def test_what_sets_no_private_field_passes(event: dict[str, Any]) -> None:
    assert refusal(NO_PROMPT, event) is None


def test_a_type_that_is_not_allowed_is_refused_whatever_is_in_it() -> None:
    for kind in ("session.update", "conversation.item.create", "acme.form", ""):
        found = refusal(BROWSER, {"type": kind})
        assert found is not None
        assert found[1] == "type"


def test_private_fields_are_cut_at_any_depth_and_the_event_of_others_is_not_touched() -> None:
    event = {
        "type": "session.updated",
        "event_id": "e",
        "instructions": "of the event itself",
        "session": {
            "model": "m",
            "instructions": "secret",
            "tools": [{"name": "secret"}],
            "audio": {"input": {"transcription": {"model": "t", "prompt": "secret"}}},
        },
        "response": {"id": "r", "output": [{"type": "mcp_list_tools", "tools": ["secret"]}], "instructions": None},
    }
    before = copy.deepcopy(event)
    seen = visible(NO_PROMPT, event)
    assert event == before
    assert seen == {
        "type": "session.updated",
        "event_id": "e",
        "instructions": "of the event itself",
        "session": {"model": "m", "audio": {"input": {"transcription": {"model": "t"}}}},
        "response": {"id": "r", "output": [{"type": "mcp_list_tools"}]},
    }


def test_a_message_of_the_system_is_seen_without_its_content_where_instructions_are_private() -> None:
    item = {"id": "i", "type": "message", "role": "system", "content": [{"type": "input_text", "text": "secret"}]}
    event = {"type": "conversation.item.added", "item": item}
    assert visible(NO_PROMPT, event)["item"] == {**item, "content": []}
    assert visible(EventPolicy(private=("tools",)), event) is event
    said = {"type": "conversation.item.added", "item": {**item, "role": "user"}}
    assert visible(NO_PROMPT, said) is said


def test_an_event_without_private_fields_comes_back_as_it_is() -> None:
    for event in (
        {"type": "response.output_audio_transcript.delta", "delta": "hello"},
        {"type": "session.updated", "session": {"model": "m", "audio": {"output": {"voice": ["v"]}}}},
    ):
        assert visible(NO_PROMPT, event) is event
        assert visible(OPEN, event) is event


def test_what_is_nested_too_deep_to_be_looked_at_neither_passes_nor_is_seen() -> None:
    deep = nested(MAX_LEVELS + 5, {"tools": "secret"})
    assert refusal(NO_PROMPT, {"type": "session.update", "session": deep}) is not None
    seen = visible(NO_PROMPT, {"type": "session.updated", "session": nested(10_000, {"tools": "secret"})})
    assert seen["session"] == nested(MAX_LEVELS, None)


@pytest.mark.parametrize("deepest", [MAX_LEVELS - 2, MAX_LEVELS - 1, MAX_LEVELS, MAX_LEVELS + 1])
def test_what_is_refused_is_what_would_be_cut_at_every_depth(deepest: int) -> None:
    for leaf in ({"tools": 1}, {"role": "system", "content": ["secret"]}, {"role": "user"}, [[{"voice": "v"}]], {}, []):
        session = nested(deepest, [leaf])
        is_refused = refusal(NO_PROMPT, {"type": "session.update", "session": session}) is not None
        event = {"type": "session.updated", "session": session}
        assert (visible(NO_PROMPT, event) is not event) == is_refused, leaf


def test_long_names_make_no_long_error() -> None:
    name = "n" * 5000
    found = refusal(NO_PROMPT, {"type": "session.update", "session": {name: {name: [{"tools": []}]}}})
    assert found is not None
    assert len(found[1]) <= MAX_WHERE
