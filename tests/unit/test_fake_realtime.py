"""The Realtime server of our tests follows the protocol: the models of the `openai` package, and its own rules."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.realtime_audio import FORMATS, PCM, PCMA, PCMU, AudioFormat, EnergyVad, strongest_hertz, tone
from tests.realtime_conversation import Conversation
from tests.realtime_events import SERVER, faults
from tests.realtime_response import Dialect, Event, FunctionCall, Reply, Speech

RATE = PCM.rate
TOOL = FunctionCall("weather", '{"city": "Paris"}')


def append(samples: Any, audio_format: AudioFormat = PCM) -> Event:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(audio_format.encode(samples)).decode()}


def silence(seconds: float, rate: int = RATE) -> Any:
    return np.zeros(round(rate * seconds), np.int16)


def say(conversation: Conversation, seconds: float = 1.0, *, pause: float = 0.6) -> list[Event]:
    """A sentence of a caller in frames of 20 ms, and the pause that ends it."""
    samples = np.concatenate([tone(300, seconds, RATE), silence(pause)])
    return [event for frame in samples.reshape(-1, 480) for event in conversation.on_event(append(frame))]


def finish(conversation: Conversation) -> list[Event]:
    assert conversation.response is not None
    return [step.event for step in conversation.response.steps()]


def types(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def interrupted(reply: Reply, after: str, **options: Any) -> tuple[Conversation, list[Event], list[Event]]:
    """A conversation whose first response is interrupted by speech after an event; what was sent before and then."""
    conversation = Conversation([reply], **options)
    say(conversation)
    assert conversation.response is not None
    before: list[Event] = []
    for step in conversation.response.steps():
        before.append(step.event)
        if step.event["type"] == after:
            break
    return conversation, before, say(conversation, 0.2, pause=0.0)


def everything_that_is_sent() -> list[Event]:
    conversation, events, cancelled = interrupted((Speech(600),), "response.output_audio.delta", late_deltas=2)
    item_id = events[-1]["item_id"]
    events = [conversation.greeting(), *events, *cancelled]
    update = {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"turn_detection": None}}}}
    speech = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    asked: list[Event] = [
        update,
        append(silence(0.2)),
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear"},
        {"type": "conversation.item.create", "item": speech},
        {"type": "conversation.item.truncate", "item_id": item_id, "content_index": 0, "audio_end_ms": 40},
        {"type": "conversation.item.retrieve", "item_id": item_id},
        {"type": "conversation.item.delete", "item_id": item_id},
        {"type": "response.cancel", "event_id": "mine"},
        {"type": "no.such.event"},
    ]
    for event in asked:
        events += conversation.on_event(event)
    tools = Conversation([(TOOL, Speech(700, 0.2))])
    return [*events, *say(tools), *finish(tools)]


def test_every_event_fits_the_models_of_the_openai_package() -> None:
    sent = everything_that_is_sent()
    assert [(event["type"], fault) for event in sent for fault in faults(event, SERVER)] == []
    assert len({event["event_id"] for event in sent}) == len(sent)
    spoken = {"response.output_audio.delta", "response.function_call_arguments.done", "conversation.item.truncated"}
    assert spoken | {"error", "conversation.item.retrieved"} <= set(types(sent))


def test_a_turn_has_its_events_in_order() -> None:
    conversation = Conversation([(Speech(600, 0.2),)])
    assert types(say(conversation)) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    reply = finish(conversation)
    assert types(reply) == [
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert reply[-1]["response"]["status"] == "completed"
    assert conversation.response is None


def test_the_beta_has_its_own_names() -> None:
    conversation = Conversation([(Speech(600, 0.1),)], Dialect.BETA)
    sent = types(say(conversation) + finish(conversation))
    assert "conversation.item.created" in sent
    assert {"response.audio.delta", "response.audio.done", "response.audio_transcript.done"} <= set(sent)
    assert not [name for name in sent if "output_audio." in name or name == "conversation.item.added"]
    assert conversation.audio_format("input") is PCM
    conversation.on_event({"type": "session.update", "session": {"output_audio_format": "g711_alaw"}})
    assert conversation.audio_format("output") is PCMA


@pytest.mark.parametrize("audio_format", FORMATS, ids=lambda known: known.beta)
def test_an_item_is_a_tone_of_its_own_in_the_format_of_the_session(audio_format: AudioFormat) -> None:
    conversation = Conversation([(Speech(600, 0.5), Speech(1000, 0.3))])
    output = {"format": {"type": audio_format.name, "rate": audio_format.rate}}
    conversation.on_event({"type": "session.update", "session": {"type": "realtime", "audio": {"output": output}}})
    conversation.on_event({"type": "response.create"})
    deltas: dict[str, bytes] = {}
    for event in finish(conversation):
        if event["type"] == "response.output_audio.delta":
            deltas[event["item_id"]] = deltas.get(event["item_id"], b"") + base64.b64decode(event["delta"])
    assert [audio_format.milliseconds(audio) for audio in deltas.values()] == [500, 300]
    heard = [strongest_hertz(audio_format.decode(audio), audio_format.rate) for audio in deltas.values()]
    assert heard == pytest.approx([600, 1000], abs=4)


def test_speech_ends_a_response_that_is_being_sent_and_later_audio_may_still_come() -> None:
    _, _, events = interrupted((Speech(600), Speech(700)), "response.output_audio.delta", late_deltas=1)
    assert types(events) == [
        "input_audio_buffer.speech_started",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert events[-1]["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["incomplete"]


def test_a_cancelled_response_sends_nothing_more() -> None:
    conversation = Conversation([(Speech(600),)])
    conversation.on_event({"type": "response.create"})
    assert conversation.response is not None
    steps = conversation.response.steps()
    next(steps)
    assert types(conversation.on_event({"type": "response.cancel"}))[-1] == "response.done"
    assert list(steps) == []
    refused = conversation.on_event({"type": "response.cancel", "event_id": "mine"})
    assert refused[0]["error"]["code"] == "response_cancel_not_active"
    assert refused[0]["error"]["event_id"] == "mine"


@pytest.mark.parametrize(("end_ms", "answer"), [(0, "conversation.item.truncated"), (101, "error"), (-1, "error")])
def test_no_more_can_be_cut_than_was_sent(end_ms: int, answer: str) -> None:
    conversation, before, _ = interrupted((Speech(600),), "response.output_audio.delta")
    item_id = before[-1]["item_id"]
    event = {"type": "conversation.item.truncate", "item_id": item_id, "content_index": 0, "audio_end_ms": end_ms}
    assert types(conversation.on_event(event)) == [answer]
    assert conversation.items[item_id].truncated_ms == (end_ms if answer != "error" else None)


def test_only_one_response_at_a_time() -> None:
    conversation = Conversation()
    conversation.on_event({"type": "response.create"})
    assert conversation.on_event({"type": "response.create"})[0]["error"]["code"] == (
        "conversation_already_has_active_response"
    )


def test_without_turn_detection_the_client_says_when() -> None:
    conversation = Conversation()
    off = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    assert types(conversation.on_event({"type": "session.update", "session": off})) == ["session.updated"]
    assert say(conversation) == []
    assert types(conversation.on_event({"type": "input_audio_buffer.commit"}))[0] == "input_audio_buffer.committed"
    assert conversation.response is None
    empty = conversation.on_event({"type": "input_audio_buffer.commit"})
    assert empty[0]["error"]["code"] == "input_audio_buffer_commit_empty"


@pytest.mark.parametrize("audio_format", [PCMU, PCMA], ids=lambda known: known.beta)
def test_g711_is_that_of_itu(audio_format: AudioFormat) -> None:
    # Loudest, quietest and in between, ITU-T G.711 tables 1a to 2b.
    known = {
        PCMU: {0x80: 32124, 0x00: -32124, 0xFF: 0, 0xF0: 120},
        PCMA: {0xAA: 32256, 0x2A: -32256, 0xD5: 8, 0x55: -8},
    }
    codes = bytes(known[audio_format])
    assert audio_format.decode(codes).tolist() == list(known[audio_format].values())
    every = audio_format.decode(bytes(range(256)))
    assert (audio_format.decode(audio_format.encode(every)) == every).all()
    loud = tone(440, 0.1, 8000)
    noise = audio_format.decode(audio_format.encode(loud)).astype(float) - loud
    assert np.std(loud) / np.std(noise) > 10 ** (35 / 20)


def test_speech_begins_and_ends_where_the_sound_does() -> None:
    vad = EnergyVad()
    samples = np.concatenate([silence(0.5), tone(300, 1.0, RATE), silence(1.0)])
    found = [change for piece in np.array_split(samples, 77) for change in vad.hear(piece, RATE)]
    assert found == [("started", 500), ("stopped", 1500)]
