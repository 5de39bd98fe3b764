"""What a Realtime server for tests answers: a response of tones and function calls, as a sequence of events."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from tests.realtime_audio import tone

if TYPE_CHECKING:
    from tests.realtime_conversation import Conversation

Event = dict[str, Any]

CHUNK_S = 0.1
"""Of audio in one delta."""


class Dialect(Enum):
    GA = "ga"
    BETA = "beta"

    def name_of(self, event_type: str) -> str:
        """The name of a GA event in this dialect."""
        if self is Dialect.GA:
            return event_type
        return event_type.replace("response.output_audio", "response.audio").replace(
            "response.output_text", "response.text"
        )


@dataclass(frozen=True, slots=True)
class Speech:
    """An item of audio: a tone, so that who listens can tell items apart."""

    hertz: float
    seconds: float = 2.0
    transcript: str = "A tone, as asked for."


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """An item that asks the client to do something."""

    name: str
    arguments: str = "{}"


Reply = Sequence[Speech | FunctionCall]

DEFAULT_REPLIES: Sequence[Reply] = tuple((Speech(hertz),) for hertz in (600.0, 800.0, 1000.0, 1200.0))


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a response, and the seconds of audio in it: at the pace of play the next one follows after them."""

    event: Event
    audio_s: float = 0.0


class Response:
    """One response. `steps` is taken step by step, and no further once it is cancelled."""

    def __init__(self, conversation: Conversation, reply: Reply) -> None:
        self.id = conversation.new_id("resp")
        self.is_taken = False
        """Whether somebody sends it."""
        self.is_cancelled = False
        self._conversation = conversation
        self._reply = reply
        self._output: list[Event] = []
        self._open: Event | None = None  # the item that is being sent
        self._began = False

    def steps(self) -> Iterator[Step]:
        """Whatever is sent, until it is complete or cancelled."""
        if self.is_cancelled:
            return
        for step in self._steps():
            yield step
            if self.is_cancelled:
                return

    def cancelled(self, reason: str) -> list[Event]:
        self.is_cancelled = True
        if not self._began:
            return []
        out: list[Event] = []
        if self._open is not None:
            item, index = self._open, len(self._output) - 1
            item["status"] = "incomplete"
            if item["type"] == "message":
                out += self._close_part(index, item, "")
            out += self._close_item(index, item)
        details = {"type": "cancelled", "reason": reason}
        return [*out, self._conversation.event("response.done", response=self._body("cancelled", details))]

    def late_deltas(self, count: int) -> list[Event]:
        """More audio of the item that is being sent, none where it is not of audio."""
        index = len(self._output) - 1
        speech = self._reply[index] if self._open is not None else None
        if self._open is None or not isinstance(speech, Speech):
            return []
        return [self._delta(index, self._open, self._audio(speech, CHUNK_S)) for _ in range(count)]

    def _steps(self) -> Iterator[Step]:
        self._began = True
        yield Step(self._conversation.event("response.created", response=self._body("in_progress")))
        yield Step(self._conversation.event("rate_limits.updated", rate_limits=[_RATE_LIMIT]))
        for index, part in enumerate(self._reply):
            yield from self._message(index, part) if isinstance(part, Speech) else self._function_call(index, part)
        self._conversation.response = None
        details = {"type": "completed"}
        yield Step(self._conversation.event("response.done", response=self._body("completed", details)))

    # Items

    def _message(self, index: int, speech: Speech) -> Iterator[Step]:
        item: Event = {"id": self._conversation.new_id("item"), "object": "realtime.item", "type": "message"}
        item |= {"status": "in_progress", "role": "assistant", "content": []}
        yield from self._open_item(index, item)
        kind = "response.content_part.added"
        yield Step(self._event(kind, index, item, content_index=0, part={"type": "audio", "transcript": ""}))
        kind = "response.output_audio_transcript.delta"
        yield Step(self._event(kind, index, item, content_index=0, delta=speech.transcript))
        audio = self._audio(speech, speech.seconds)
        audio_format = self._conversation.audio_format("output")
        size = len(self._audio(speech, CHUNK_S))
        for start in range(0, len(audio), size):
            chunk = audio[start : start + size]
            yield Step(self._delta(index, item, chunk), audio_format.milliseconds(chunk) / 1000)
        item["status"] = "completed"
        for event in (*self._close_part(index, item, speech.transcript), *self._close_item(index, item)):
            yield Step(event)

    def _function_call(self, index: int, call: FunctionCall) -> Iterator[Step]:
        ids = {"id": self._conversation.new_id("item"), "call_id": self._conversation.new_id("call")}
        item = {**ids, "object": "realtime.item", "type": "function_call", "status": "in_progress"}
        item |= {"name": call.name, "arguments": ""}
        yield from self._open_item(index, item)
        same = {"call_id": ids["call_id"]}
        for start in range(0, len(call.arguments), 8):
            piece = call.arguments[start : start + 8]
            yield Step(self._event("response.function_call_arguments.delta", index, item, **same, delta=piece))
        item |= {"status": "completed", "arguments": call.arguments}
        kind = "response.function_call_arguments.done"
        yield Step(self._event(kind, index, item, **same, name=call.name, arguments=call.arguments))
        for event in self._close_item(index, item):
            yield Step(event)

    def _open_item(self, index: int, item: Event) -> Iterator[Step]:
        self._open = item
        self._output.append(item)
        added = self._whole("response.output_item.added", index, item)
        for event in (added, *self._conversation.add_item(item)):
            yield Step(event)

    def _close_part(self, index: int, item: Event, transcript: str) -> list[Event]:
        ga = self._conversation.dialect is Dialect.GA
        item["content"] = [{"type": "output_audio" if ga else "audio", "transcript": transcript}]
        part = {"type": "audio", "transcript": transcript}
        return [
            self._event("response.output_audio.done", index, item, content_index=0),
            self._event("response.output_audio_transcript.done", index, item, content_index=0, transcript=transcript),
            self._event("response.content_part.done", index, item, content_index=0, part=part),
        ]

    def _close_item(self, index: int, item: Event) -> list[Event]:
        self._open = None
        return [*self._conversation.item_done(item["id"]), self._whole("response.output_item.done", index, item)]

    def _delta(self, index: int, item: Event, audio: bytes) -> Event:
        milliseconds = self._conversation.audio_format("output").milliseconds(audio)
        self._conversation.items[item["id"]].audio_ms += milliseconds
        text = base64.b64encode(audio).decode()
        return self._event("response.output_audio.delta", index, item, content_index=0, delta=text)

    def _audio(self, speech: Speech, seconds: float) -> bytes:
        audio_format = self._conversation.audio_format("output")
        return audio_format.encode(tone(speech.hertz, seconds, audio_format.rate))

    # Events

    def _event(self, kind: str, index: int, item: Event, **fields: Any) -> Event:
        place = {"response_id": self.id, "output_index": index, "item_id": item["id"]}
        return self._conversation.event(kind, **place, **fields)

    def _whole(self, kind: str, index: int, item: Event) -> Event:
        return self._conversation.event(kind, response_id=self.id, output_index=index, item=dict(item))

    def _body(self, status: str, details: Event | None = None) -> Event:
        body = {"id": self.id, "object": "realtime.response", "status": status, "status_details": details}
        usage = {"total_tokens": 3, "input_tokens": 1, "output_tokens": 2} if details else None
        return {**body, "output": [dict(item) for item in self._output], "metadata": None, "usage": usage}


_RATE_LIMIT = {"name": "tokens", "limit": 40_000, "remaining": 39_000, "reset_seconds": 1.5}
