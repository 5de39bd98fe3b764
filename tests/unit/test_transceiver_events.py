"""The Realtime events of a call without a channel, a backend or a clock."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from usher_core.json_values import merge
from usher_transceiver.events import (
    EVENTS_AT_ONCE,
    MAX_MESSAGE_PARTS,
    MAX_SESSION_BYTES,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    REFUSALS_AT_ONCE,
    WRITTEN_AT_ONCE,
    WRITTEN_PER_SECOND,
    EventHub,
)


class Call:
    """A hub with everything around it recorded."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.to_backend: list[dict[str, Any]] = []
        self.known = {"response.create"}
        self.accepts = True
        numbers = itertools.count(1)
        session = {"id": "sess_1", "object": "realtime.session", "type": "realtime", "model": "echo"}
        self.hub = EventHub(session, lambda: f"event_{next(numbers)}", self._send, self._backend, max_observers=3)

    def _send(self, text: str) -> bool:
        if self.accepts:
            self.sent.append(json.loads(text))
        return self.accepts

    def _backend(self, event: dict[str, Any]) -> bool:
        self.to_backend.append(event)
        return event["type"] in self.known

    def say(self, **event: Any) -> None:
        self.hub.on_message(0.0, json.dumps(event))

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.sent]


class Watcher:
    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.seen: list[dict[str, Any]] = []
        self.why = ""

    def offer(self, text: str) -> bool:
        if len(self.seen) >= self.room:
            return False
        self.seen.append(json.loads(text))
        return True

    def dropped(self, reason: str) -> None:
        self.why = reason


@pytest.fixture
def call() -> Call:
    made = Call()
    made.hub.on_backend_ready()
    return made


def test_session_created_is_first_whatever_the_backend_said_before(call: Call) -> None:
    call.hub.emit({"type": "response.created"})
    assert call.sent == []
    call.hub.on_open()
    assert call.types == ["session.created", "response.created"]
    assert call.sent[0] == {
        "type": "session.created",
        "event_id": "event_2",
        "session": {"id": "sess_1", "object": "realtime.session", "type": "realtime", "model": "echo"},
    }


def test_every_event_has_an_id_of_its_own_and_a_backends_id_is_kept(call: Call) -> None:
    call.hub.on_open()
    call.hub.emit({"type": "a"})
    call.hub.emit({"type": "b", "event_id": "mine"})
    assert [event["event_id"] for event in call.sent] == ["event_1", "event_2", "mine"]


def test_session_update_merges_answers_and_tells_the_backend(call: Call) -> None:
    call.hub.on_open()
    call.say(type="session.update", session={"instructions": "be brief", "audio": {"output": {"voice": "a"}}})
    call.say(type="session.update", session={"audio": {"input": {"rate": 1}}, "id": "stolen", "type": "x"})
    assert call.types == ["session.created", "session.updated", "session.updated"]
    session = call.sent[-1]["session"]
    assert session == {
        "id": "sess_1",
        "object": "realtime.session",
        "type": "realtime",
        "model": "echo",
        "instructions": "be brief",
        "audio": {"output": {"voice": "a"}, "input": {"rate": 1}},
    }
    assert call.hub.session == session
    assert [event["type"] for event in call.to_backend] == ["session.update"] * 2


@pytest.mark.parametrize(
    "message,code",
    [
        ("{", "invalid_json"),
        ("", "invalid_json"),
        ("[" * 5000, "invalid_json"),
        pytest.param('{"type": "a", "x": [%s]}' % ("0," * MAX_MESSAGE_PARTS + "0"), "invalid_json", id="parts"),
        ('{"type": NaN}', "invalid_json"),
        (b"\xff\xfe\x00", "invalid_json"),
        ("[]", "invalid_event"),
        ('"text"', "invalid_event"),
        ('{"no": "type"}', "invalid_event"),
        ('{"type": 5}', "invalid_event"),
        ('{"type": "session.update"}', "invalid_session"),
        ('{"type": "session.update", "session": []}', "invalid_session"),
        ('{"type": "no.such.event"}', "unknown_event"),
    ],
)
def test_a_bad_message_gets_an_error_event_and_the_call_goes_on(call: Call, message: str | bytes, code: str) -> None:
    call.hub.on_open()
    call.hub.on_message(0.0, message)
    error = call.sent[-1]
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["code"] == code
    call.say(type="session.update", session={})
    assert call.types[-1] == "session.updated"


def test_an_error_names_the_event_at_fault(call: Call) -> None:
    call.hub.on_open()
    call.say(type="nonsense", event_id="client-7")
    assert call.sent[-1]["error"]["event_id"] == "client-7"
    assert call.sent[-1]["error"]["param"] == "type"


def test_a_session_does_not_grow_without_bound(call: Call) -> None:
    call.hub.on_open()
    for number in range(3):
        call.say(type="session.update", session={f"field{number}": "x" * 100_000})
    assert call.sent[-1]["error"]["code"] == "session_too_large"
    assert len(call.hub.session) == 6


def test_merging_stops_at_a_depth() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep}
    assert merge(deep, deep) == deep


def test_events_wait_for_a_backend_that_is_not_ready() -> None:
    call = Call()
    call.hub.on_open()
    call.say(type="response.create")
    call.say(type="session.update", session={"voice": "a"})
    assert call.to_backend == []
    assert call.types[-1] == "session.updated"
    call.hub.on_backend_ready()
    assert [event["type"] for event in call.to_backend] == ["response.create", "session.update"]


def test_what_waits_is_bounded_both_ways() -> None:
    call = Call()
    for _ in range(2 * MAX_WAITING):
        call.hub.emit({"type": "early"})
    assert call.hub.dropped == MAX_WAITING
    call.hub.on_open()
    assert len(call.sent) == 1 + MAX_WAITING
    for _ in range(2 * MAX_WAITING):
        call.say(type="response.create")
    assert call.sent[-1]["error"]["code"] == "too_many_events"
    call.hub.on_backend_ready()
    assert len(call.to_backend) == MAX_WAITING


def test_events_that_the_channel_does_not_take_are_counted(call: Call) -> None:
    call.hub.on_open()
    call.accepts = False
    call.hub.emit({"type": "lost"})
    assert call.hub.dropped == 1


def test_observers_see_both_directions_and_may_speak(call: Call) -> None:
    watcher = Watcher()
    assert call.hub.observe(watcher)
    call.hub.on_open()
    call.say(type="response.create")
    call.hub.emit({"type": "response.created"})
    assert [event["type"] for event in watcher.seen] == ["session.created", "response.create", "response.created"]
    call.hub.leave(watcher)
    call.hub.emit({"type": "later"})
    assert len(watcher.seen) == 3


def test_an_observer_is_greeted_with_the_session_as_it_is_and_nothing_is_repeated_for_it(call: Call) -> None:
    call.hub.on_open()
    call.say(type="session.update", session={"instructions": "be brief"})
    watcher = Watcher()
    call.hub.observe(watcher)
    call.hub.emit({"type": "later"})
    assert [event["type"] for event in watcher.seen] == ["session.created", "later"]
    assert watcher.seen[0]["session"]["instructions"] == "be brief"
    ids = [event["event_id"] for event in call.sent] + [watcher.seen[0]["event_id"]]
    assert len(set(ids)) == len(ids)
    assert watcher.seen[1] == call.sent[-1]


def test_an_observer_may_leave_out_what_clients_send(call: Call) -> None:
    watcher = Watcher()
    call.hub.observe(watcher, client_events=False)
    call.say(type="response.create")
    call.say(type="session.update", session={})
    assert [event["type"] for event in watcher.seen] == ["session.created", "session.updated"]


def test_observers_see_events_of_a_call_that_has_no_channel(call: Call) -> None:
    watcher = Watcher()
    call.hub.observe(watcher)
    for _ in range(MAX_WAITING + 5):
        call.hub.emit({"type": "news"})
    assert call.sent == []
    assert len(watcher.seen) == MAX_WAITING + 6


def test_a_slow_observer_is_dropped_and_the_call_goes_on(call: Call) -> None:
    watcher = Watcher(room=2)
    call.hub.observe(watcher)
    call.hub.on_open()
    for _ in range(5):
        call.hub.emit({"type": "news"})
    assert watcher.why == "too_slow"
    assert len(call.sent) == 6


def test_the_number_of_observers_is_bounded_and_all_are_told_of_the_end(call: Call) -> None:
    watchers = [Watcher() for _ in range(3)]
    assert all(call.hub.observe(watcher) for watcher in watchers)
    assert not call.hub.observe(Watcher())
    call.hub.close("hangup")
    assert {watcher.why for watcher in watchers} == {"hangup"}


SMALLEST_UPDATE = json.dumps({"type": "session.update", "session": {}})
FLOODS = {
    "events": "{}",
    "bytes": json.dumps({"type": "response.create", "text": "x" * 200_000}),
    "what is no JSON": "x" * 200_000,
    "updates": SMALLEST_UPDATE,
}


def grow(call: Call, size: int = MAX_SESSION_BYTES - 1000) -> None:
    call.hub.on_open()
    call.hub.on_message(0.0, json.dumps({"type": "session.update", "session": {"instructions": "x" * size}}))
    call.sent.clear()


@pytest.mark.parametrize("message", FLOODS.values(), ids=FLOODS)
def test_whoever_floods_is_told_so_and_then_loses_the_call(call: Call, message: str) -> None:
    grow(call)
    went_on = 0
    while call.hub.on_message(0.0, message):
        went_on += 1
        assert went_on < EVENTS_AT_ONCE + REFUSALS_AT_ONCE
    refused = [event for event in call.sent if event.get("error", {}).get("code") == "rate_limit_exceeded"]
    assert len(refused) == REFUSALS_AT_ONCE
    assert sum(len(json.dumps(event)) for event in call.sent) < WRITTEN_AT_ONCE + 1_000_000


def test_a_few_bytes_that_ask_for_many_are_bounded_per_second(call: Call) -> None:
    grow(call)
    seconds = 60
    for tick in range(seconds * 2):
        assert call.hub.on_message(100 + tick / 2, SMALLEST_UPDATE)
    written = call.types.count("session.updated") * MAX_SESSION_BYTES
    assert 0 < written <= WRITTEN_AT_ONCE + seconds * WRITTEN_PER_SECOND + MAX_SESSION_BYTES


def test_after_a_pause_all_is_well_again(call: Call) -> None:
    grow(call)
    for _ in range(10):
        call.hub.on_message(0.0, SMALLEST_UPDATE)
    assert call.types[-1] == "error"
    call.hub.on_message(60.0, SMALLEST_UPDATE)
    assert call.types[-1] == "session.updated"


def test_ordinary_clients_meet_no_bound(call: Call) -> None:
    call.hub.on_open()
    for _ in range(900):  # a conversation's history at once
        call.say(type="response.create", item="x" * 1000)
    for tick in range(50 * 60):  # audio over the channel: 50 events/s of 1.3 KB for a minute, an update each second
        now = 10 + tick / 50
        assert call.hub.on_message(now, json.dumps({"type": "response.create", "audio": "x" * 1280}))
        if tick % 50 == 0:
            session = {"instructions": "y" * 2000, "number": tick}
            call.hub.on_message(now, json.dumps({"type": "session.update", "session": session}))
    assert "error" not in call.types
    assert call.types.count("session.updated") == 60


def test_an_update_that_changes_nothing_is_answered_with_the_same_session(call: Call) -> None:
    grow(call)
    before = call.hub.session
    call.hub.on_message(0.0, SMALLEST_UPDATE)
    assert call.hub.session is before
    assert call.sent[-1]["type"] == "session.updated"
    assert call.sent[-1]["session"] == before


def test_an_update_from_one_to_true_is_a_change(call: Call) -> None:
    call.hub.on_open()
    call.say(type="session.update", session={"flag": 1})
    call.say(type="session.update", session={"flag": True})
    assert call.sent[-1]["session"]["flag"] is True


def test_what_waits_for_the_channel_is_bounded_in_bytes(call: Call) -> None:
    for _ in range(20):
        call.hub.emit({"type": "response.created", "text": "x" * 200_000})
    assert call.hub.dropped == 20 - MAX_WAITING_BYTES // 200_100
    call.hub.on_open()
    assert len(call.sent) == 1 + MAX_WAITING_BYTES // 200_100


def test_a_session_never_outgrows_what_the_client_takes() -> None:
    sent: list[str] = []
    numbers = itertools.count()
    hub = EventHub(
        {"id": "sess_1", "object": "realtime.session", "type": "realtime"},
        lambda: f"event_{next(numbers)}",
        lambda text: not sent.append(text),  # type: ignore[func-returns-value]
        lambda _event: True,
        max_session_bytes=1000,
    )
    hub.on_open()
    hub.on_message(0.0, json.dumps({"type": "session.update", "session": {"instructions": "x" * 990}}))
    assert json.loads(sent[-1])["error"]["code"] == "session_too_large"
    assert "instructions" not in hub.session
