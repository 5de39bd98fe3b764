"""The rules at the top of bridge.py, one after the other, in virtual time. The openai package knows what we say."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from tests.realtime_rig import GA_ULAW, PCM, SPEECH_STARTED, Rig, silence
from usher_transceiver.backends.realtime import faults
from usher_transceiver.backends.realtime.bridge import (
    LOOK_S,
    MAX_EVENTS_WAITING,
    MAX_ID,
    PLAY_OUT_S,
)
from usher_transceiver.backends.realtime.budget import MAX_BYTES, Share
from usher_transceiver.backends.realtime.counters import DIRECTIONS, DROPS, OUTCOMES, TRUNCATIONS, RealtimeCounters
from usher_transceiver.backends.realtime.metrics import RealtimeCollector
from usher_transceiver.backends.realtime.session_audio import MAX_CODED
from usher_transceiver.events import MAX_MESSAGE_PARTS
from usher_transceiver.media.frame import FRAME_BYTES


def test_the_given_session_is_the_first_message_without_what_only_servers_say() -> None:
    given = {"type": "realtime", "id": "x", "object": "y", "model": "gpt", "instructions": "Be brief."}
    rig = Rig(given=given)
    rig.hear()
    assert [event["type"] for event in rig.sent()] == ["session.update", "input_audio_buffer.append"]
    rig = Rig(given=given)
    assert rig.sent() == [{"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}}]


@pytest.mark.parametrize("given", [{}, {"model": "gpt"}, {"type": "realtime", "model": "gpt"}])
def test_a_session_that_asks_for_nothing_is_not_sent(given: dict[str, Any]) -> None:
    assert Rig(given=given).sent() == []


def test_events_pass_both_ways_as_they_are_written_and_in_order() -> None:
    rig = Rig()
    texts = ['{ "type" : "new.kind", "n": 1.0, "text": "\\u00e9" }', '{"type":"rate_limits.updated","rate_limits":[]}']
    for text in texts:
        rig.bridge.on_upstream(rig.now, text)
    assert rig.call.texts == texts
    up = '{ "type": "input_audio_buffer.append", "audio": "AAAA", "event_id": "mine" }'
    rig.bridge.on_client_event(rig.now, json.loads(up), up)
    assert rig.outbox.take() == up


NO_NUMBERS = ['{"type":"session.updated","session":{"temperature":%s}}' % number for number in ("NaN", "1e999")]


@pytest.mark.parametrize("text", ["no json", "[]", '"text"', "{}", '{"type": 1}', "[" * 100_000, *NO_NUMBERS])
def test_what_is_no_event_of_the_server_is_dropped_and_counted(text: str) -> None:
    rig = Rig()
    rig.bridge.on_upstream(rig.now, text)
    assert rig.call.events == []
    assert rig.counters.dropped_bytes["bad_event"] == len(text)


def test_the_session_is_the_servers_and_kept_for_later_observers() -> None:
    rig = Rig()
    rig.server(type="session.created", session={"model": "up"})
    assert rig.call.session == {"model": "up"}
    rig.server(type="session.updated", session={"model": "up", "voice": "v"})
    assert rig.call.session == {"model": "up", "voice": "v"}
    assert rig.kinds == ["session.created", "session.updated"]


@pytest.mark.parametrize("name", ["output_audio", "audio"])
def test_an_answer_is_played_and_framed_by_started_and_stopped(name: str) -> None:
    rig = Rig()
    rig.speak("resp_1", "item_1", 1000, name=name)
    assert rig.kinds == ["response.created", f"response.{name}.done", "response.done"]
    rig.wait(40)
    assert rig.kinds[3:] == ["started"]
    rig.wait(900)
    assert rig.kinds[3:] == ["started"]
    rig.wait(60 + round(LOOK_S * 1000))
    assert rig.kinds[3:] == ["started", "stopped"]
    assert {event["response_id"] for event in rig.call.events[3:]} == {"resp_1"}
    assert bytes(rig.call.played) == silence(1000)
    assert rig.bridge.look_in is None, "nothing to look for while nobody speaks"


def test_speech_interrupts_drops_late_audio_and_truncates_each_item_at_what_was_played_of_it() -> None:
    rig = Rig()
    rig.speak("resp_1", "item_1", 300)
    rig.speak("resp_2", "item_2", 500, ends=False)
    rig.server(type="response.output_item.added", response_id="resp_2", item={"id": "item_3"})
    rig.wait(500)
    rig.server(**SPEECH_STARTED)
    assert rig.call.queued_ms == 0
    assert rig.kinds[-2:] == ["input_audio_buffer.speech_started", "cleared"]
    assert rig.call.events[-1]["response_id"] == "resp_2"
    assert rig.cuts() == [("item_2", 0, 200)]
    assert +rig.counters.truncations == {"partly_heard": 1}
    late = {"response_id": "resp_2", "item_id": "item_3", "content_index": 0, "delta": "AAAA"}
    rig.server(type="response.output_audio.delta", **late)
    rig.server(type="response.done", response={"id": "resp_2", "status": "cancelled"})
    rig.wait(100)
    assert rig.counters.dropped_bytes["cancelled_audio"] == 3
    assert rig.kinds.count("cleared") == 1
    assert rig.cuts() == []
    rig.speak("resp_3", "item_4", 100)
    rig.wait(300)
    assert rig.kinds[-2:] == ["started", "stopped"]


def test_an_answer_that_only_waited_is_truncated_at_nothing() -> None:
    rig = Rig()
    rig.speak("resp_1", "item_1", 300)
    rig.speak("resp_2", "item_2", 300)
    rig.wait(100)
    rig.server(**SPEECH_STARTED)
    assert rig.cuts() == [("item_1", 0, 100), ("item_2", 0, 0)]
    assert +rig.counters.truncations == {"partly_heard": 1, "unheard": 1}
    assert rig.kinds[-2:] == ["cleared", "cleared"]


def test_speech_before_the_first_audio_of_an_answer_silences_it_and_truncates_nothing() -> None:
    rig = Rig()
    rig.server(type="response.created", response={"id": "resp_1"})
    rig.server(**SPEECH_STARTED)
    rig.server(type="response.output_audio.delta", response_id="resp_1", item_id="i", content_index=0, delta="AAAA")
    rig.wait(100)
    assert rig.kinds == ["response.created", "input_audio_buffer.speech_started"]
    assert rig.cuts() == []
    assert not rig.call.played


@pytest.mark.parametrize(
    "session",
    [
        {"audio": {"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}}},
        {"turn_detection": {"type": "server_vad", "interrupt_response": False}},
    ],
)
def test_speech_does_not_interrupt_where_the_session_says_so(session: dict[str, Any]) -> None:
    rig = Rig()
    rig.server(type="session.updated", session=session)
    rig.speak("resp_1", "item_1", 500)
    rig.wait(100)
    rig.server(**SPEECH_STARTED)
    rig.wait(1000)
    assert rig.kinds[-1] == "stopped"
    assert "cleared" not in rig.kinds
    assert len(rig.call.played) == 500 * 48
    rig.server(type="session.updated", session={"turn_detection": {"type": "server_vad"}})
    rig.speak("resp_2", "item_2", 500)
    rig.server(**SPEECH_STARTED)
    assert rig.kinds[-1] == "cleared"


def test_clear_of_the_client_interrupts_and_stays_with_us() -> None:
    rig = Rig()
    rig.speak("resp_1", "item_1", 500, ends=False)
    rig.wait(200)
    rig.client(type="response.cancel")
    rig.client(type="output_audio_buffer.clear")
    sent = rig.sent()
    assert [event["type"] for event in sent] == ["response.cancel", "conversation.item.truncate"]
    assert sent[1]["audio_end_ms"] == 200
    assert rig.kinds[-1] == "cleared"
    rig.client(type="output_audio_buffer.clear")
    assert rig.kinds.count("cleared") == 1, "nothing was left to clear"


@pytest.mark.parametrize(
    "over",
    [
        {"type": "response.done", "response": {"id": "resp_2", "status": "cancelled"}},
        {"type": "response.cancelled", "response_id": "resp_2"},
    ],
)
def test_a_cancelled_response_loses_its_own_audio_and_no_other(over: dict[str, Any]) -> None:
    rig = Rig()
    rig.speak("resp_1", "item_1", 200)
    rig.speak("resp_2", "item_2", 200, ends=False)
    rig.wait(40)
    rig.server(**over)
    assert rig.call.events[-1] == {"type": "output_audio_buffer.cleared", "response_id": "resp_2"}
    assert rig.cuts() == [("item_2", 0, 0)]
    rig.wait(600)
    assert len(rig.call.played) == 200 * 48
    assert rig.kinds[-1] == "stopped"


def test_a_cancelled_response_without_audio_leaves_what_is_played_as_it_is() -> None:
    rig = Rig()
    for sample in range(10):
        delta = base64.b64encode(bytes((sample, 0)) * 2_400).decode()
        ids = {"response_id": "resp_1", "item_id": "item_1", "content_index": 0}
        rig.server(type="response.output_audio.delta", delta=delta, **ids)
    rig.server(type="response.done", response={"id": "resp_1", "status": "completed"})
    rig.wait(40)
    rig.server(type="response.created", response={"id": "resp_2"})
    rig.server(type="response.done", response={"id": "resp_2", "status": "cancelled"})
    rig.wait(1_500)
    assert bytes(rig.call.played) == b"".join(bytes((sample, 0)) * 2_400 for sample in range(10)), "once, in order"
    assert rig.kinds[-1] == "stopped"
    assert "cleared" not in rig.kinds


def test_a_server_that_truncates_by_itself_is_not_told() -> None:
    rig = Rig(truncates=False)
    rig.speak("resp_1", "item_1", 300)
    rig.wait(100)
    rig.server(**SPEECH_STARTED)
    assert rig.kinds[-1] == "cleared"
    assert rig.cuts() == []


def test_the_servers_error_about_a_truncation_of_ours_is_counted_and_not_shown() -> None:
    rig = Rig()
    rig.speak("resp_1", "item_1", 300)
    rig.server(**SPEECH_STARTED)
    [truncate] = rig.sent("conversation.item.truncate")
    shown = len(rig.call.events)
    rig.server(type="error", error={"event_id": truncate["event_id"], "code": "x"})
    assert len(rig.call.events) == shown
    assert rig.counters.truncations["refused"] == 1
    rig.server(type="error", error={"event_id": "event_of_the_client", "code": "x"})
    assert rig.kinds[-1] == "error"


def test_the_server_is_not_read_while_five_minutes_wait_and_nothing_is_lost() -> None:
    rig = Rig()
    minute = base64.b64encode(silence(60_000)).decode()
    ids = {"response_id": "resp_1", "item_id": "item_1", "content_index": 0}
    for wants in (True, True, True, True, True, False):
        rig.server(type="response.output_audio.delta", delta=minute, **ids)
        assert rig.bridge.wants_more is wants
    rig.wait(61_000)
    assert rig.bridge.wants_more
    rig.wait(301_000)
    assert len(rig.call.played) == 360_000 * 48


def test_the_server_is_not_read_while_the_client_takes_no_events() -> None:
    rig = Rig()
    assert rig.bridge.look_in is None
    rig.call.events_waiting_bytes = MAX_EVENTS_WAITING + 1
    assert not rig.bridge.wants_more
    assert rig.bridge.look_in == LOOK_S, "nobody tells when the channel has room"
    rig.call.events_waiting_bytes = MAX_EVENTS_WAITING
    assert rig.bridge.wants_more


def test_audio_beyond_its_bound_drops_the_oldest_and_events_beyond_theirs_are_refused_to_their_sender() -> None:
    rig = Rig()
    for number in range(300):
        rig.hear(bytes((number % 251,)) * FRAME_BYTES)
    assert rig.counters.dropped_bytes["audio_overflow"] == 50 * FRAME_BYTES
    first = json.loads(rig.outbox.take() or "")
    assert base64.b64decode(first["audio"]) == bytes((50,)) * FRAME_BYTES
    for number in range(257):
        rig.client(type="response.create", event_id=f"client_{number}")
    error = rig.call.events[-1]["error"]
    assert (error["code"], error["event_id"]) == ("too_many_events", "client_256")
    rig.outbox.clear()
    assert rig.counters.queued_bytes == 0


def test_a_lost_server_is_told_once_all_is_played_and_then_the_call_ends() -> None:
    rig = Rig()
    rig.speak("resp_1", "item_1", 700, ends=False)
    rig.wait(100)
    rig.bridge.on_upstream_lost(rig.now, faults.closed(1011))
    rig.hear()
    rig.client(type="response.create")
    assert rig.sent() == []
    rig.wait(500)
    assert rig.call.ended == ""
    rig.wait(300)
    assert rig.kinds[-2:] == ["stopped", "error"]
    assert rig.call.events[-1]["error"]["code"] == "upstream_closed"
    assert rig.call.ended == "upstream_closed"
    assert len(rig.call.played) == 700 * 48
    assert rig.bridge.look_in is None


def test_what_a_lost_server_had_said_is_played_for_a_bounded_time() -> None:
    rig = Rig()
    rig.speak("resp_1", "item_1", 60_000, ends=False)
    rig.bridge.on_upstream_lost(rig.now, faults.STALLED)
    rig.wait(round(PLAY_OUT_S * 1000) + 200)
    assert rig.kinds[-2:] == ["cleared", "error"]
    assert rig.call.ended == "upstream_closed"
    assert rig.call.queued_ms == 0


def test_a_server_that_can_not_be_had_is_told_at_once_with_its_own_code() -> None:
    rig = Rig()
    rig.bridge.on_upstream_lost(rig.now, faults.refused(429, "insufficient_quota"))
    rig.bridge.on_upstream_lost(rig.now, faults.TIMEOUT)
    assert [event["error"]["code"] for event in rig.call.events] == ["insufficient_quota"]
    assert rig.call.ended == "upstream_failed"


def test_names_of_any_length_fill_no_memory_and_the_audio_is_played_all_the_same() -> None:
    rig = Rig()
    long = "x" * (MAX_ID + 1)
    delta = base64.b64encode(silence(100)).decode()
    for index in (0, -1, 10**30, "0", None):
        rig.server(type="response.created", response={"id": long})
        ids = {"response_id": long, "item_id": long, "content_index": index}
        rig.server(type="response.output_audio.delta", delta=delta, **ids)
    rig.wait(400)
    assert len(rig.call.played) >= len(silence(300))
    rig.server(type="input_audio_buffer.speech_started")
    (cut,) = rig.cuts()
    assert cut[:2] == ("", 0)


def test_base64_that_is_none_is_dropped_and_the_answer_goes_on() -> None:
    rig = Rig()
    rig.server(type="response.output_audio.delta", response_id="r", item_id="i", content_index=0, delta="A")
    rig.server(type="response.output_audio.delta", response_id="r", item_id="i", content_index=0, delta=None)
    assert rig.counters.dropped_bytes["bad_audio"] > 0
    rig.speak("r", "i", 100)
    rig.wait(300)
    assert bytes(rig.call.played) == silence(100), "None is no base64 of noise"
    assert rig.kinds[-1] == "stopped"


def test_a_sample_that_two_deltas_share_is_put_together_and_a_rest_is_no_noise() -> None:
    rig = Rig()
    samples = np.arange(-2400, 2400, dtype="<i2").tobytes()
    ids = {"response_id": "r", "item_id": "i", "content_index": 0}
    for piece in (samples[:1001], samples[1001:2000], samples[2000:] + b"\x7f"):
        rig.server(type="response.output_audio.delta", delta=base64.b64encode(piece).decode(), **ids)
    other = {**ids, "item_id": "j"}
    rig.server(type="response.output_audio.delta", delta=base64.b64encode(samples).decode(), **other)
    rig.wait(500)
    assert bytes(rig.call.played) == samples + samples


def loudness(pcm: bytes) -> float:
    return float(np.sqrt(np.mean(np.frombuffer(pcm, "<i2").astype(float) ** 2)))


TONE = (np.sin(2 * np.pi * 440 * np.arange(12_000) / 24_000) * 10_000).astype("<i2").tobytes()


@pytest.mark.parametrize(
    ("session", "code"),
    [
        (GA_ULAW, 0xFF),
        ({"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcma"}}}}, 0xD5),
        ({"input_audio_format": "g711_ulaw"}, 0xFF),
        ({"input_audio_format": "g711_alaw"}, 0xD5),
    ],
)
def test_audio_goes_up_in_the_format_that_a_session_update_asks_for(session: dict[str, Any], code: int) -> None:
    rig = Rig()
    rig.hear()
    rig.client(type="session.update", session=session)
    rig.hear()
    # On its way when the update was written, so it says nothing about it.
    rig.server(type="session.created", session=PCM)
    rig.hear()
    rig.server(type="session.updated", session=PCM)
    rig.hear()
    pcm, coded = bytes(FRAME_BYTES), bytes((code,)) * 160
    assert rig.appended() == [pcm, coded, coded, pcm]


def test_the_last_of_several_updates_decides_and_a_refused_one_counts_for_nothing() -> None:
    rig = Rig(given=GA_ULAW)
    rig.client(type="session.update", session=PCM, event_id="mine")
    rig.hear()
    rig.server(type="session.updated", session=GA_ULAW)  # of the first one
    rig.hear()
    rig.server(type="error", error={"type": "invalid_request_error", "message": "no", "event_id": "mine"})
    rig.hear()
    pcm, coded = bytes(FRAME_BYTES), b"\xff" * 160
    assert rig.appended() == [pcm, pcm, coded]
    rig.client(type="session.update", session={"type": "realtime", "instructions": "Be brief."})
    rig.hear()
    assert rig.appended() == [coded]


@pytest.mark.parametrize(
    ("session", "law"),
    [
        ({"audio": {"output": {"format": {"type": "audio/pcmu"}}}}, "pcmu"),
        ({"output_audio_format": "g711_alaw"}, "pcma"),
    ],
)
def test_audio_comes_down_in_the_format_of_the_session_at_its_own_length_and_level(
    session: dict[str, Any], law: Any
) -> None:
    from usher_transceiver.media.codec import EncoderSettings
    from usher_transceiver.media.g711 import G711

    rig = Rig()
    rig.server(type="session.updated", session=session)
    coded = G711(law).encoder(EncoderSettings()).encode(TONE)
    assert len(coded) == 4_000
    ids = {"response_id": "r", "item_id": "i", "content_index": 0}
    for start in range(0, len(coded), 333):
        delta = base64.b64encode(coded[start : start + 333]).decode()
        rig.server(type="response.output_audio.delta", delta=delta, **ids)
    rig.wait(700)
    assert len(rig.call.played) == len(TONE)
    assert loudness(bytes(rig.call.played[9_600:])) == pytest.approx(loudness(TONE), rel=0.1)
    rig.speak("r", "i", 100, ends=False)
    rig.wait(100)
    rig.server(**SPEECH_STARTED)
    [(item, _, end)] = rig.cuts()
    assert (item, end) == ("i", 500 + 100)


def g711_answer(rig: Rig, seconds: int) -> None:
    rig.server(type="session.updated", session={"output_audio_format": "g711_ulaw"})
    rig.server(type="response.created", response={"id": "r"})
    delta = base64.b64encode(b"\xff" * 8_000 * seconds).decode()
    rig.server(type="response.output_audio.delta", response_id="r", item_id="i", content_index=0, delta=delta)


def test_minutes_of_g711_in_one_piece_are_decoded_a_little_at_a_time_and_all_played() -> None:
    rig = Rig()
    g711_answer(rig, 60)
    looks = 0
    while not rig.bridge.wants_more:
        assert rig.bridge.look_in == 0, "nothing is read until it is done, which is soon"
        rig.bridge.look(rig.now)
        looks += 1
    assert looks == 60 * 8_000 // MAX_CODED - 1
    rig.wait(61_000)
    assert len(rig.call.played) == len(silence(60_000))


def test_g711_that_is_not_decoded_yet_comes_before_the_next_message_and_is_dropped_by_an_interruption() -> None:
    rig = Rig()
    g711_answer(rig, 20)
    rig.server(type="response.output_audio.done", response_id="r", item_id="i", content_index=0)
    assert rig.bridge.waiting_bytes == len(silence(20_000 - 400))
    g711_answer(rig, 20)
    rig.client(type="output_audio_buffer.clear")
    assert rig.counters.dropped_bytes["cancelled_audio"] == 20 * 8_000 - MAX_CODED
    assert rig.bridge.wants_more
    rig.wait(1_000)
    assert rig.bridge.waiting_bytes == 0
    assert rig.counters.held_bytes == 0


def test_a_message_of_too_many_parts_is_not_read_and_one_of_much_text_is() -> None:
    rig = Rig()
    rig.bridge.on_upstream(rig.now, '{"type":"many","parts":[%s]}' % ",".join("0" * MAX_MESSAGE_PARTS))
    assert rig.counters.dropped_bytes["bad_event"] == 2 * MAX_MESSAGE_PARTS + 25
    rig.server(type="much", text="word " * 50_000)
    assert rig.kinds == ["much"]


def test_a_call_that_holds_much_audio_is_not_read_while_all_calls_hold_too_much() -> None:
    rig = Rig()
    others = Share(rig.counters)
    others.set(MAX_BYTES)
    rig.speak("r", "i", 20_000, ends=False)
    assert rig.bridge.wants_more, "a call may always hold a little"
    rig.speak("r", "i", 5_000)
    assert not rig.bridge.wants_more
    assert rig.bridge.look_in is not None
    assert rig.counters.held_back == 1
    rig.wait(5_000)
    assert rig.bridge.wants_more, "it was played"
    rig.speak("s", "j", 5_000)
    assert not rig.bridge.wants_more
    others.set(0)
    assert rig.bridge.wants_more, "others hold less"
    rig.bridge.forget()
    assert rig.counters.held_bytes == 0


def test_an_error_that_quotes_a_secret_is_passed_without_it_and_any_other_as_it_is_written() -> None:
    rig = Rig(secrets=("sk-upstream-1",))
    rig.server(
        type="error", error={"code": "invalid_api_key", "message": "Incorrect key: sk-upstream-1.", "param": None}
    )
    [error] = [event["error"] for event in rig.call.events]
    assert error == {"code": "invalid_api_key", "message": "not shown", "param": None}
    assert "sk-upstream-1" not in "".join(rig.call.texts)
    plain = '{ "type": "error", "error": {"code": "x", "message": "y"} }'
    rig.bridge.on_upstream(rig.now, plain)
    assert rig.call.texts[-1] == plain


@pytest.mark.parametrize(
    "own", [{"audio": {"output": {"format": {"type": "audio/pcmu"}}}}, {"output_audio_format": "g711_ulaw"}]
)
def test_a_response_with_a_format_of_its_own_is_played_in_it_and_the_next_in_that_of_the_session(
    own: dict[str, Any],
) -> None:
    rig = Rig()
    rig.server(type="session.created", session={"output_audio_format": "pcm16"})
    rig.server(type="response.created", response={"id": "r", **own})
    delta = base64.b64encode(b"\xff" * 4_000).decode()
    rig.server(type="response.output_audio.delta", response_id="r", item_id="i", content_index=0, delta=delta)
    rig.server(type="response.done", response={"id": "r", "status": "completed"})
    rig.wait(700)
    assert bytes(rig.call.played) == silence(500)
    rig.speak("s", "j", 100)
    rig.wait(300)
    assert bytes(rig.call.played) == silence(600)


def test_a_session_of_the_beta_that_only_transcribes_has_its_own_format_too() -> None:
    rig = Rig()
    rig.client(type="transcription_session.update", session={"input_audio_format": "g711_ulaw"})
    rig.hear()
    rig.server(type="transcription_session.updated", session={"input_audio_format": "g711_ulaw"})
    rig.hear()
    assert rig.appended() == [b"\xff" * 160] * 2


def test_all_that_may_be_counted_is_shown_before_it_happens_so_that_the_first_of_a_kind_has_a_rate() -> None:
    shown = {
        (metric.name.removeprefix("usher_transceiver_realtime_"), *sample.labels.values())
        for metric in RealtimeCollector(RealtimeCounters()).collect()
        for sample in metric.samples
        if sample.value == 0.0
    }
    assert {("calls", outcome) for outcome in OUTCOMES} <= shown
    assert {("dropped_bytes", reason) for reason in DROPS} <= shown
    assert {("truncations", kind) for kind in TRUNCATIONS} <= shown
    assert {("events", direction) for direction in DIRECTIONS} <= shown
