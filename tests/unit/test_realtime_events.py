"""The events of a call whose session is another server's: passed on as they are written, and not answered here."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from usher_transceiver.events import MAX_WAITING, WRITTEN_AT_ONCE, EventHub


class Call:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.to_server: list[str] = []
        numbers = itertools.count(1)
        self.hub = EventHub(
            {"id": "sess_1", "model": "realtime"},
            lambda: f"event_{next(numbers)}",
            self._send,
            self._not_asked,
            to_server=self._to_server,
        )
        self.hub.on_backend_ready()

    def _send(self, text: str) -> bool:
        self.sent.append(text)
        return True

    def _to_server(self, event: dict[str, Any], text: str) -> None:
        assert json.loads(text) == event
        self.to_server.append(text)

    def _not_asked(self, event: dict[str, Any]) -> bool:
        raise AssertionError("events go to the server")

    def from_server(self, text: str) -> None:
        self.hub.forward(json.loads(text), text)


class Watcher:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def offer(self, text: str) -> bool:
        self.seen.append(text)
        return True

    def dropped(self, reason: str) -> None:
        self.seen.append(reason)


def test_nothing_is_said_that_the_server_did_not_say() -> None:
    call = Call()
    call.hub.on_open()
    update = '{ "type": "session.update", "session": {"voice": "x"} }'
    call.hub.on_message(0.0, update)
    unknown = '{"type":"nobody.knows","number":1.0}'
    call.hub.on_message(0.0, unknown)
    assert call.sent == []
    assert call.to_server == [update, unknown]


def test_what_the_server_says_before_the_channel_is_open_comes_first_and_in_order() -> None:
    call = Call()
    texts = [f'{{"type": "number.{number}"}}' for number in range(MAX_WAITING)]
    for text in texts:
        call.from_server(text)
    assert call.hub.is_waiting
    call.hub.on_open()
    call.from_server('{"type":"last"}')
    assert call.sent == [*texts, '{"type":"last"}']
    assert not call.hub.is_waiting


def test_observers_see_both_directions_and_a_late_one_is_greeted_with_the_servers_session() -> None:
    call, early, late = Call(), Watcher(), Watcher()
    assert call.hub.observe(early)
    created = '{ "type": "session.created", "session": {"model": "up"} }'
    call.hub.adopt_session({"model": "up"})
    call.from_server(created)
    call.hub.on_message(0.0, '{ "type": "response.create" }')
    assert early.seen == [created, '{ "type": "response.create" }']
    assert call.hub.observe(late)
    [greeting] = late.seen
    assert json.loads(greeting) == {"type": "session.created", "session": {"model": "up"}, "event_id": "event_1"}


def test_a_channel_that_is_opened_again_is_greeted_with_the_servers_session() -> None:
    call = Call()
    call.hub.on_open()
    call.hub.on_open()
    assert call.sent == []
    call.hub.adopt_session({"model": "up"})
    call.hub.on_open()
    assert [json.loads(text)["session"] for text in call.sent] == [{"model": "up"}]


def test_what_is_no_event_goes_no_further_and_is_answered_here() -> None:
    call = Call()
    call.hub.on_open()
    for message in ("no json", '{"type": 1}', b"\xff"):
        call.hub.on_message(0.0, message)
    assert [json.loads(text)["error"]["code"] for text in call.sent] == [
        "invalid_json",
        "invalid_event",
        "invalid_json",
    ]
    assert call.to_server == []


@pytest.mark.parametrize("kind", ["session.update", "transcription_session.update"])
def test_a_few_bytes_that_make_the_server_say_a_large_session_again_are_asked_for_a_bounded_number_of_times(
    kind: str,
) -> None:
    call = Call()
    call.hub.on_open()
    large = json.dumps({"type": f"{kind}d", "session": {"instructions": "x" * 100_000}})
    for _ in range(100):
        asked = len(call.to_server)
        assert call.hub.on_message(0.0, f'{{"type":"{kind}","session":{{}}}}')
        if len(call.to_server) > asked:
            call.from_server(large)
    assert 8 <= len(call.to_server) <= WRITTEN_AT_ONCE / 100_000 + 1
    refused = [json.loads(text) for text in call.sent if '"error"' in text]
    assert {event["error"]["code"] for event in refused} == {"rate_limit_exceeded"}
    assert len(refused) == 100 - len(call.to_server)
