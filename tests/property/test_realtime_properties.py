"""Whatever a Realtime server or a client sends, the bridge goes on, keeps its bounds, and passes what is not for it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from usher_transceiver.backends.realtime.bridge import (
    CLEAR,
    DELTAS,
    MAX_ACTIVE,
    PART_DONE,
    SESSION_EVENTS,
    Bridge,
)
from usher_transceiver.backends.realtime.counters import RealtimeCounters
from usher_transceiver.backends.realtime.outbox import MAX_EVENT_BYTES, MAX_EVENTS, Outbox
from usher_transceiver.backends.realtime.playout import AHEAD_MS, MAX_CANCELLED

IDS = st.sampled_from(["a", "b", "", None, 7, ["a"], {"id": "a"}])
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=5,
)
FORMATS: st.SearchStrategy[Any] = st.sampled_from(
    ["audio/pcm", "audio/pcmu", "audio/pcma", "g711_ulaw", "pcm16", "new", None, 1, {}]
)
DETECTIONS = st.one_of(ANYTHING, st.fixed_dictionaries({"interrupt_response": ANYTHING}))
SIDES = st.fixed_dictionaries(
    {}, optional={"format": st.fixed_dictionaries({"type": FORMATS}), "turn_detection": DETECTIONS}
)
SESSIONS = st.one_of(
    ANYTHING,
    st.fixed_dictionaries(
        {},
        optional={
            "input_audio_format": FORMATS,
            "output_audio_format": FORMATS,
            "turn_detection": DETECTIONS,
            "audio": st.one_of(ANYTHING, st.fixed_dictionaries({}, optional={"input": SIDES, "output": SIDES})),
        },
    ),
)
RESPONSES = st.one_of(
    ANYTHING, st.fixed_dictionaries({"id": IDS}, optional={"status": st.sampled_from(["cancelled", "completed", 1])})
)
KINDS = sorted(
    DELTAS
    | PART_DONE
    | SESSION_EVENTS
    | {"response.created", "response.done", "response.cancelled", "error", "other", CLEAR, "session.update"}
    | {"input_audio_buffer.speech_started"}
)
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "response_id": IDS,
        "item_id": IDS,
        "content_index": st.one_of(st.integers(-1, 2), ANYTHING),
        "delta": st.one_of(st.sampled_from(["AAAA" * 2_000, "AAAAAA==", "A", "é", "*"]), ANYTHING),
        "response": RESPONSES,
        "session": SESSIONS,
        "error": st.one_of(ANYTHING, st.fixed_dictionaries({"event_id": st.sampled_from(["usher_truncate_1", 1])})),
    },
)


class Call:
    """A play queue that plays when it is told to."""

    events_waiting_bytes = 0

    def __init__(self) -> None:
        self.queue = 0
        self.forwarded: list[str] = []

    @property
    def queued_ms(self) -> int:
        return self.queue // 48

    def play(self, pcm: bytes) -> int:
        assert len(pcm) % 2 == 0
        self.queue += len(pcm)
        return len(pcm) // 48

    def clear(self) -> int:
        self.queue = 0
        return 0

    def send_event(self, event: dict[str, Any]) -> None:
        json.dumps(event)

    def forward(self, event: dict[str, Any], text: str) -> None:
        self.forwarded.append(text)

    def adopt_session(self, session: Any) -> None:
        json.dumps(session)

    def end_when_told(self, reason: str) -> None:
        raise AssertionError("nobody has lost the server")


STEPS = st.lists(st.tuples(st.sampled_from(["server", "client", "play"]), EVENTS), max_size=30)


ULAW = {"type": "session.created", "session": {"output_audio_format": "g711_ulaw"}}


@example([("server", ULAW), ("server", {"type": "response.audio.delta"})])
@given(STEPS)
def test_no_event_of_either_side_stops_the_bridge_or_breaks_a_bound(steps: list[tuple[str, dict[str, Any]]]) -> None:
    call, counters = Call(), RealtimeCounters()
    outbox = Outbox(counters)
    bridge = Bridge(call, outbox, counters, truncates=True)
    for who, event in steps:
        text = json.dumps(event)
        before = len(call.forwarded)
        if who == "server":
            bridge.on_upstream(0.0, text)
            is_ours = event["type"] in DELTAS or event["type"] == "error"
            assert call.forwarded[before:] == [text] or is_ours
        elif who == "client":
            bridge.on_client_event(0.0, event, text)
        else:
            call.queue = max(0, call.queue - 9_600)
            bridge.look(0.0)
        assert call.queued_ms <= AHEAD_MS
        assert len(bridge._active) <= MAX_ACTIVE
        assert len(bridge._playout._cancelled) <= MAX_CANCELLED
        assert len(outbox._events) <= MAX_EVENTS
        assert outbox._event_bytes <= MAX_EVENT_BYTES
    while (text := outbox.take() or "") != "":
        event = json.loads(text)
        if str(event.get("event_id", "")).startswith("usher_"):
            assert event["audio_end_ms"] >= 0
    assert counters.queued_bytes == 0
