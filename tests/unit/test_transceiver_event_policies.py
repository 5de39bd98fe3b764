"""The events of a call in which client and observers have policies."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from usher_core.event_policy import BROWSER, OPEN, EventPolicy
from usher_transceiver.events import WRITTEN_AT_ONCE, EventHub

NO_PROMPT = EventPolicy(private=("instructions", "tools"))
SESSION = {"id": "sess_1", "object": "realtime.session", "type": "realtime", "model": "m", "instructions": "secret"}
SEEN = {name: value for name, value in SESSION.items() if name != "instructions"}


class Call:
    """A hub with everything around it recorded; `to_server` has a server of the Realtime protocol behind it."""

    def __init__(self, policy: EventPolicy, *, is_forwarding: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.to_backend: list[dict[str, Any]] = []
        self.to_server: list[str] = []
        numbers = itertools.count(1)
        self.hub = EventHub(
            dict(SESSION),
            lambda: f"event_{next(numbers)}",
            self._send,
            self._backend,
            to_server=self._server if is_forwarding else None,
            policy=policy,
        )
        self.hub.on_backend_ready()
        self.hub.on_open()

    def _send(self, text: str) -> bool:
        self.texts.append(text)
        self.sent.append(json.loads(text))
        return True

    def _backend(self, event: dict[str, Any]) -> bool:
        self.to_backend.append(event)
        return True

    def _server(self, event: dict[str, Any], text: str) -> None:
        assert json.loads(text) == event
        self.to_server.append(text)

    def say(self, event: Mapping[str, Any] | str, policy: EventPolicy | None = None) -> None:
        assert self.hub.on_message(0.0, event if isinstance(event, str) else json.dumps(event), policy)


class Watcher:
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.why = ""

    def offer(self, text: str) -> bool:
        self.seen.append(json.loads(text))
        return True

    def dropped(self, reason: str) -> None:
        self.why = reason


@pytest.mark.parametrize("is_forwarding", [False, True])
def test_an_event_that_the_policy_does_not_allow_gets_one_error_with_its_id_and_goes_nowhere(
    is_forwarding: bool,
) -> None:
    call = Call(BROWSER, is_forwarding=is_forwarding)
    del call.sent[:]
    refused: list[dict[str, Any]] = [
        {"type": "session.update", "session": {"instructions": "Swear."}},
        {"type": "conversation.item.create", "item": {"role": "user"}},
        {"type": "response.create", "response": {"instructions": "Swear."}},
        {"type": "response.create", "response": {"input": []}},
        {"type": "nobody.knows"},
    ]
    for number, event in enumerate(refused):
        call.say({**event, "event_id": f"mine_{number}"})
    assert call.to_backend == []
    assert call.to_server == []
    assert call.hub.session == SESSION
    errors = [event["error"] for event in call.sent if event["type"] == "error"]
    assert len(errors) == 5
    assert [error["code"] for error in errors] == ["event_not_allowed"] * 5
    assert [error["event_id"] for error in errors] == [f"mine_{number}" for number in range(5)]
    assert [error["param"] for error in errors] == ["type", "type", "response.instructions", "response.input", "type"]
    assert call.hub.not_allowed == 5
    call.say({"type": "response.create"})
    assert len(call.to_backend) + len(call.to_server) == 1


def test_a_refused_update_is_followed_by_the_session_as_it_is_since_sdks_wait_for_that() -> None:
    update = {"type": "session.update", "session": {"instructions": "Swear."}}
    call = Call(BROWSER)
    call.say(update)
    assert [event["type"] for event in call.sent] == ["session.created", "error", "session.updated"]
    assert call.sent[-1]["session"] == SEEN
    bridged = Call(BROWSER, is_forwarding=True)
    bridged.say(update)
    assert [event["type"] for event in bridged.sent] == ["error"]
    bridged.hub.adopt_session(dict(SESSION))
    bridged.say(update)
    assert [event["type"] for event in bridged.sent] == ["error", "error", "session.updated"]
    assert bridged.sent[-1]["session"] == SEEN


def test_refused_updates_of_a_large_session_are_answered_by_errors_alone_in_the_end() -> None:
    call = Call(BROWSER)
    call.say({"type": "session.update", "session": {"x": "x" * 100_000}}, OPEN)
    for _ in range(50):
        call.say({"type": "session.update", "session": {}})
    kinds = [event["type"] for event in call.sent]
    assert kinds.count("error") == 50
    assert 3 <= kinds.count("session.updated") <= 6


def test_private_fields_are_in_no_event_to_the_client() -> None:
    call = Call(NO_PROMPT)
    assert call.sent[0]["session"] == SEEN
    call.say({"type": "session.update", "session": {"audio": {"output": {"voice": "v"}}}})
    assert call.sent[1]["session"] == {**SEEN, "audio": {"output": {"voice": "v"}}}
    assert call.hub.session["instructions"] == "secret"
    call.hub.emit({"type": "response.created", "response": {"id": "r", "instructions": "secret"}})
    assert call.sent[2]["response"] == {"id": "r"}
    call.hub.emit({"type": "conversation.item.added", "item": {"role": "system", "content": ["secret"]}})
    assert call.sent[3]["item"] == {"role": "system", "content": []}
    assert not any("secret" in text for text in call.texts)


def test_what_waited_for_the_channel_is_cut_as_well() -> None:
    call = Call(NO_PROMPT)
    hub = EventHub(dict(SESSION), lambda: "event_1", call._send, lambda _event: True, policy=NO_PROMPT)
    hub.emit({"type": "response.created", "response": {"tools": ["secret"]}})
    hub.on_open()
    assert call.sent[-1]["response"] == {}


def test_events_of_a_server_are_cut_for_the_client_and_left_as_they_are_written_where_nothing_is_private() -> None:
    call = Call(NO_PROMPT, is_forwarding=True)
    for event in (
        {"type": "session.updated", "session": SESSION, "event_id": "s"},
        {"type": "response.done", "response": {"id": "r", "output": [], "tools": ["secret"]}},
    ):
        call.hub.forward(event, json.dumps(event))
    assert call.sent == [
        {"type": "session.updated", "session": SEEN, "event_id": "s"},
        {"type": "response.done", "response": {"id": "r", "output": []}},
    ]
    written = '{ "type": "response.output_text.delta", "delta": "a",  "response_id": "r" }'
    call.hub.forward(json.loads(written), written)
    assert call.texts[-1] == written


def test_an_event_that_two_readers_could_read_in_two_ways_is_passed_on_as_it_was_read() -> None:
    twice = '{"type":"session.update","session":{"instructions":"Swear."},"type":"response.cancel"}'
    bound = Call(EventPolicy(allow=("response.cancel",)), is_forwarding=True)
    bound.say(twice)
    assert bound.to_server == ['{"type":"response.cancel","session":{"instructions":"Swear."}}']
    free = Call(OPEN, is_forwarding=True)
    free.say(twice)
    assert free.to_server == [twice]


def test_an_observer_is_bound_by_its_own_policy_and_not_by_that_of_the_client() -> None:
    call = Call(BROWSER)
    server, reader = Watcher(), Watcher()
    assert call.hub.observe(server)
    assert call.hub.observe(reader, policy=NO_PROMPT)
    assert (server.seen[0]["session"], reader.seen[0]["session"]) == (SESSION, SEEN)
    update = {"type": "session.update", "session": {"instructions": "also secret"}}
    call.say(update, OPEN)
    assert server.seen[1:] == [update, {**call.sent[-1], "session": {**SESSION, "instructions": "also secret"}}]
    assert reader.seen[1:] == [{"type": "session.update", "session": {}}, call.sent[-1]]
    assert call.sent[-1]["session"] == SEEN
    assert call.hub.session["instructions"] == "also secret"
    call.say({**update, "event_id": "theirs"}, NO_PROMPT)
    for seen in (call.sent, server.seen, reader.seen):
        assert seen[-2]["error"]["code"] == "event_not_allowed"
        assert seen[-2]["error"]["event_id"] == "theirs"
    assert call.hub.not_allowed == 1


def test_a_session_that_is_written_twice_costs_its_sender_twice() -> None:
    def updates(policy: EventPolicy) -> int:
        call = Call(policy)
        call.say({"type": "session.update", "session": {"x": "x" * 50_000}})
        count = 0
        while call.sent[-1]["type"] == "session.updated":
            call.say({"type": "session.update", "session": {}})
            count += 1
        assert call.sent[-1]["error"]["code"] == "rate_limit_exceeded"
        return count

    once, twice = updates(OPEN), updates(NO_PROMPT)
    assert once == pytest.approx(WRITTEN_AT_ONCE / 50_000, rel=0.1)
    assert twice == pytest.approx(once / 2, rel=0.15)


def test_the_end_is_the_last_event_for_all_who_still_hear() -> None:
    call = Call(BROWSER)
    watcher = Watcher()
    call.hub.observe(watcher)
    call.hub.close("max_age")
    assert call.sent[-1] == watcher.seen[-1]
    assert {**call.sent[-1], "event_id": ""} == {"type": "usher.call.ended", "reason": "max_age", "event_id": ""}
    assert watcher.why == "max_age"
    count = len(call.sent)
    call.hub.emit({"type": "later"})
    assert len(call.sent) == count


def test_a_channel_that_is_not_there_hears_of_no_end_and_loses_nothing() -> None:
    sent: list[str] = []

    def send(text: str) -> bool:
        sent.append(text)
        return False

    hub = EventHub(dict(SESSION), lambda: "event_1", send, lambda _event: True)
    hub.close("no_first_check")
    assert sent == []
    gone = EventHub(dict(SESSION), lambda: "event_1", send, lambda _event: True)
    gone.on_open()
    before = gone.dropped
    gone.close("client_closed")
    assert gone.dropped == before
