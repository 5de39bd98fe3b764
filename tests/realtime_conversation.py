"""One conversation of the Realtime protocol as a server leads it, without I/O: events in, events out.

Rules, as the real service has them over WebSocket:
* `session.created` comes first; `session.update` merges and is answered with `session.updated`.
* Appended audio goes through server VAD: `speech_started`, then `speech_stopped`, `committed`, the user's item, and,
  unless `create_response` is false, a response. With `turn_detection` null the client commits and asks by itself.
* A response is a sequence of items: messages of audio with a transcript, and function calls. There is one at a time.
* Audio is sent as fast as one likes: the server does not know what has been played. `speech_started` cancels a
  response that is still being sent (unless `interrupt_response` is false); what was heard of it, only the client can
  tell, by `conversation.item.truncate`.
* An item can't be truncated beyond the audio that was sent of it. Nothing that a client sends ends the session.

The GA names and those of the beta differ: `Dialect` has the differences.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from tests.realtime_audio import FORMATS, PCM, AudioFormat, EnergyVad
from tests.realtime_response import DEFAULT_REPLIES, Dialect, Event, Reply, Response


@dataclass(slots=True)
class Item:
    """An item of the conversation, and how much audio of it was sent."""

    body: Event
    audio_ms: float = 0.0
    truncated_ms: int | None = None


class Conversation:
    """The state of one connection.

    Args:
        replies: what responses say, one after another, and then from the beginning again.
        dialect: names of events.
        model: as the client asked for it.
        late_deltas: audio that still comes after what cancels a response, as where a model is slow to stop.
    """

    def __init__(
        self,
        replies: Sequence[Reply] = DEFAULT_REPLIES,
        dialect: Dialect = Dialect.GA,
        model: str = "gpt-realtime",
        late_deltas: int = 0,
    ) -> None:
        self.dialect = dialect
        self.late_deltas = late_deltas
        self.items: dict[str, Item] = {}
        self.response: Response | None = None
        """The one that is being sent."""
        self._replies = itertools.cycle(replies)
        self._name = token_hex(4)  # ids of two conversations differ
        self._numbers = itertools.count(1)
        self._vad = EnergyVad()
        self._speech_item = ""
        self._uncommitted_ms = 0.0
        self.session = _ga_session(model) if dialect is Dialect.GA else _beta_session(model)
        self.session["id"] = self.new_id("sess")

    # What every part needs

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{self._name}{next(self._numbers):05}"

    def event(self, event_type: str, **fields: Any) -> Event:
        return {"type": self.dialect.name_of(event_type), "event_id": self.new_id("event"), **fields}

    def greeting(self) -> Event:
        return self.event("session.created", session=deepcopy(self.session))

    def audio_format(self, way: str) -> AudioFormat:
        """The format of `input` or `output` as the session has it now."""
        if self.dialect is Dialect.BETA:
            return next(known for known in FORMATS if known.beta == self.session[f"{way}_audio_format"])
        wanted = self.session["audio"][way]["format"]["type"]
        return next(known for known in FORMATS if known.name == wanted)

    @property
    def turn_detection(self) -> Event | None:
        place = self.session if self.dialect is Dialect.BETA else self.session["audio"]["input"]
        found: Event | None = place["turn_detection"]
        return found

    # Events in

    def on_event(self, event: Event) -> list[Event]:
        """What to send at once. A response that this begins is in `response`, and yet to be sent."""
        handlers = {
            "session.update": self._update,
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.commit": self._commit_by_hand,
            "input_audio_buffer.clear": self._clear,
            "conversation.item.create": self._create,
            "conversation.item.truncate": self._truncate,
            "conversation.item.delete": self._delete_or_retrieve,
            "conversation.item.retrieve": self._delete_or_retrieve,
            "response.create": self._respond,
            "response.cancel": self._cancel_by_client,
        }
        return handlers.get(str(event.get("type")), self._refuse)(event)

    def _refuse(self, event: Event) -> list[Event]:
        return [self.error("invalid_value", f"Invalid value: {event.get('type')!r}.", event, param="type")]

    def error(self, code: str, message: str, event: Event | None = None, param: str | None = None) -> Event:
        details = {
            "type": "invalid_request_error",
            "code": code,
            "message": message,
            "param": param,
            "event_id": event.get("event_id") if event else None,
        }
        return self.event("error", error=details)

    def _update(self, event: Event) -> list[Event]:
        wanted = event.get("session")
        if not isinstance(wanted, dict):
            return [self.error("missing_required_parameter", "Missing required parameter: 'session'.", event)]
        if self.dialect is Dialect.GA and wanted.get("type") != "realtime":
            return [self.error("missing_required_parameter", "Missing required parameter: 'session.type'.", event)]
        merge(self.session, wanted)
        self._vad.silence_ms = (self.turn_detection or {}).get("silence_duration_ms") or 500
        return [self.event("session.updated", session=deepcopy(self.session))]

    def _append(self, event: Event) -> list[Event]:
        audio_format = self.audio_format("input")
        try:
            data = base64.b64decode(event["audio"], validate=True)
            samples = audio_format.decode(data)
        except (KeyError, TypeError, ValueError, binascii.Error):
            return [self.error("invalid_value", "Invalid audio.", event, param="audio")]
        self._uncommitted_ms += audio_format.milliseconds(data)
        if self.turn_detection is None:
            return []
        out: list[Event] = []
        for change, at in self._vad.hear(samples, audio_format.rate):
            out += self._speech_started(at) if change == "started" else self._speech_stopped(at)
        return out

    def _clear(self, event: Event) -> list[Event]:
        self._uncommitted_ms = 0.0
        return [self.event("input_audio_buffer.cleared")]

    # Turns

    def _speech_started(self, at: int) -> list[Event]:
        self._speech_item = self.new_id("item")
        padding = (self.turn_detection or {}).get("prefix_padding_ms") or 0
        started = self.event(
            "input_audio_buffer.speech_started", audio_start_ms=max(0, at - padding), item_id=self._speech_item
        )
        interrupts = (self.turn_detection or {}).get("interrupt_response", True)
        return [started, *(self.cancel("turn_detected") if interrupts and self.response else [])]

    def _speech_stopped(self, at: int) -> list[Event]:
        stopped = self.event("input_audio_buffer.speech_stopped", audio_end_ms=at, item_id=self._speech_item)
        out = [stopped, *self._commit(self._speech_item)]
        if (self.turn_detection or {}).get("create_response", True) and self.response is None:
            out += self._respond({})
        return out

    def _commit_by_hand(self, event: Event) -> list[Event]:
        if self._uncommitted_ms < 100:
            message = f"Error committing input audio buffer: buffer too small ({self._uncommitted_ms:.2f}ms of audio)."
            return [self.error("input_audio_buffer_commit_empty", message, event)]
        return self._commit(self.new_id("item"))

    def _commit(self, item_id: str) -> list[Event]:
        self._uncommitted_ms = 0.0
        part = {"type": "input_audio", "transcript": None}
        committed = self.event("input_audio_buffer.committed", item_id=item_id, previous_item_id=self._last_item())
        item = {"id": item_id, "object": "realtime.item", "type": "message", "status": "completed", "role": "user"}
        return [committed, *self.add_item({**item, "content": [part]}), *self.item_done(item_id)]

    # Items

    def _last_item(self) -> str | None:
        return next(reversed(self.items), None)

    def add_item(self, body: Event) -> list[Event]:
        previous = self._last_item()
        self.items[body["id"]] = Item(body)
        kind = "conversation.item.added" if self.dialect is Dialect.GA else "conversation.item.created"
        # A copy: the item goes on changing.
        return [self.event(kind, previous_item_id=previous, item=dict(body))]

    def item_done(self, item_id: str) -> list[Event]:
        if self.dialect is Dialect.BETA:
            return []
        before = list(self.items)
        position = before.index(item_id)
        previous = before[position - 1] if position else None
        body = dict(self.items[item_id].body)
        return [self.event("conversation.item.done", previous_item_id=previous, item=body)]

    def _create(self, event: Event) -> list[Event]:
        body = event.get("item")
        if not isinstance(body, dict) or "type" not in body:
            return [self.error("missing_required_parameter", "Missing required parameter: 'item'.", event, "item")]
        complete = {"id": self.new_id("item"), "object": "realtime.item", "status": "completed", **body}
        return [*self.add_item(complete), *self.item_done(complete["id"])]

    def _truncate(self, event: Event) -> list[Event]:
        item = self.items.get(str(event.get("item_id")))
        end = event.get("audio_end_ms")
        if item is None or item.body.get("role") != "assistant":
            message = f"Error truncating item: no assistant message {event.get('item_id')!r}."
            return [self.error("item_truncate_invalid_item_id", message, event, "item_id")]
        if not isinstance(end, int) or not 0 <= end <= item.audio_ms:
            message = f"Audio content of {item.audio_ms:.0f}ms is already shorter than {end}ms"
            return [self.error("invalid_value", message, event, "audio_end_ms")]
        item.truncated_ms = end
        place = {"item_id": event["item_id"], "content_index": event["content_index"]}
        return [self.event("conversation.item.truncated", **place, audio_end_ms=end)]

    def _delete_or_retrieve(self, event: Event) -> list[Event]:
        verb = event["type"].rpartition(".")[2]
        item_id = str(event.get("item_id"))
        item = self.items.get(item_id)
        if item is None:
            message = f"Item with item_id {item_id!r} not found."
            return [self.error(f"item_{verb}_invalid_item_id", message, event, "item_id")]
        if verb == "retrieve":
            return [self.event("conversation.item.retrieved", item=dict(item.body))]
        del self.items[item_id]
        return [self.event("conversation.item.deleted", item_id=item_id)]

    # Responses

    def _respond(self, event: Event) -> list[Event]:
        if self.response is not None:
            message = f"Conversation already has an active response in progress: {self.response.id}."
            return [self.error("conversation_already_has_active_response", message, event)]
        self.response = Response(self, next(self._replies))
        return []

    def _cancel_by_client(self, event: Event) -> list[Event]:
        if self.response is None:
            return [self.error("response_cancel_not_active", "Cancellation failed: no active response found", event)]
        return self.cancel("client_cancelled")

    def cancel(self, reason: str) -> list[Event]:
        """End the response that is being sent: `turn_detected` or `client_cancelled`."""
        assert self.response is not None
        response, self.response = self.response, None
        return [*response.late_deltas(self.late_deltas), *response.cancelled(reason)]


def merge(session: Event, update: Event) -> None:
    """As `session.update` means it: what an object leaves out stays."""
    for key, value in update.items():
        if isinstance(value, dict) and isinstance(session.get(key), dict):
            merge(session[key], value)
        else:
            session[key] = value


def _turn_detection() -> Event:
    found = {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}
    return {**found, "create_response": True, "interrupt_response": True}


def _ga_session(model: str) -> Event:
    audio_format = {"type": PCM.name, "rate": PCM.rate}
    return {
        "type": "realtime",
        "object": "realtime.session",
        "model": model,
        "output_modalities": ["audio"],
        "instructions": "You are a helpful fake.",
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "tracing": None,
        "audio": {
            "input": {
                "format": dict(audio_format),
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": _turn_detection(),
            },
            "output": {"format": dict(audio_format), "voice": "marin", "speed": 1.0},
        },
    }


def _beta_session(model: str) -> Event:
    return {
        "object": "realtime.session",
        "model": model,
        "modalities": ["audio", "text"],
        "instructions": "You are a helpful fake.",
        "voice": "alloy",
        "input_audio_format": PCM.beta,
        "output_audio_format": PCM.beta,
        "input_audio_transcription": None,
        "turn_detection": _turn_detection(),
        "tools": [],
        "tool_choice": "auto",
        "temperature": 0.8,
        "max_response_output_tokens": "inf",
    }
