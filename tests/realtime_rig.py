"""A Realtime bridge in virtual time, with the play queue of a call and a server that says what a test wants."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from openai.types.realtime import RealtimeClientEvent, RealtimeServerEvent
from pydantic import TypeAdapter

from usher_transceiver.backends.realtime.bridge import (
    Bridge,
)
from usher_transceiver.backends.realtime.counters import RealtimeCounters
from usher_transceiver.backends.realtime.outbox import Outbox
from usher_transceiver.media.frame import FRAME_BYTES, AudioFrame, Origin

OURS_TO_CLIENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
OURS_TO_SERVER: TypeAdapter[Any] = TypeAdapter(RealtimeClientEvent)
SPEECH_STARTED = {"type": "input_audio_buffer.speech_started", "audio_start_ms": 0, "item_id": "item_u"}
GA_ULAW = {"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcmu"}}}}


PCM = {"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcm", "rate": 24_000}}}}


def silence(ms: int) -> bytes:
    return bytes(ms * 48)


class FakeCall:
    """A play queue in virtual time, and what the client is told."""

    def __init__(self) -> None:
        self.queue = bytearray()
        self.played = bytearray()
        self.events: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.session: Mapping[str, Any] | None = None
        self.ended = ""
        self.events_waiting_bytes = 0

    @property
    def queued_ms(self) -> int:
        return len(self.queue) // 48

    def play(self, pcm: bytes) -> int:
        self.queue += pcm
        return len(pcm) // 48

    def clear(self) -> int:
        dropped = self.queued_ms
        self.queue.clear()
        return dropped

    def send_event(self, event: dict[str, Any]) -> None:
        OURS_TO_CLIENT.validate_python({"event_id": "event_1", **event}, strict=True)
        assert not self.ended
        self.events.append(event)

    def forward(self, event: dict[str, Any], text: str) -> None:
        assert json.loads(text) == event
        self.events.append(event)
        self.texts.append(text)

    def adopt_session(self, session: Mapping[str, Any]) -> None:
        self.session = session

    def end_when_told(self, reason: str) -> None:
        self.ended = reason


class Rig:
    def __init__(
        self, *, truncates: bool = True, given: Mapping[str, Any] | None = None, secrets: tuple[str, ...] = ()
    ) -> None:
        self.now = 100.0
        self.call = FakeCall()
        self.counters = RealtimeCounters()
        self.outbox = Outbox(self.counters)
        self.bridge = Bridge(self.call, self.outbox, self.counters, truncates=truncates, secrets=secrets)
        self.bridge.begin(given or {})

    def server(self, **event: Any) -> None:
        self.bridge.on_upstream(self.now, json.dumps(event))

    def client(self, **event: Any) -> None:
        self.bridge.on_client_event(self.now, event, json.dumps(event))

    def hear(self, pcm: bytes = bytes(FRAME_BYTES)) -> None:
        self.bridge.on_frame(self.now, AudioFrame(pcm, 0, Origin.RECEIVED))

    def speak(self, response: str, item: str, ms: int, *, ends: bool = True, name: str = "output_audio") -> None:
        self.server(type="response.created", response={"id": response})
        ids = {"response_id": response, "item_id": item, "content_index": 0}
        for _ in range(0, ms, 100):
            self.server(type=f"response.{name}.delta", delta=base64.b64encode(silence(100)).decode(), **ids)
        if ends:
            self.server(type=f"response.{name}.done", **ids)
            self.server(type="response.done", response={"id": response, "status": "completed"})

    def wait(self, ms: int) -> None:
        """Let time pass: every 20 ms the call plays a frame, and the bridge looks when it said it would."""
        look_at = self.now + (self.bridge.look_in or 0)
        for _ in range(0, ms, 20):
            self.now += 0.02
            self.call.played += self.call.queue[:FRAME_BYTES]
            del self.call.queue[:FRAME_BYTES]
            if self.bridge.look_in is not None and self.now >= look_at - 0.001:
                self.bridge.look(self.now)
                look_at = self.now + (self.bridge.look_in or 0)

    def sent(self, *kinds: str) -> list[dict[str, Any]]:
        """What goes to the server, except audio."""
        events = []
        while (text := self.outbox.take()) is not None:
            event = json.loads(text)
            OURS_TO_SERVER.validate_python(event)
            events.append(event)
        return [event for event in events if event["type"] in kinds or not kinds]

    def appended(self) -> list[bytes]:
        """The audio that goes to the server."""
        events = map(json.loads, iter(self.outbox.take, None))
        return [base64.b64decode(event["audio"]) for event in events if event["type"] == "input_audio_buffer.append"]

    @property
    def kinds(self) -> list[str]:
        return [event["type"].removeprefix("output_audio_buffer.") for event in self.call.events]

    def cuts(self) -> list[tuple[str, int, int]]:
        return [
            (event["item_id"], event["content_index"], event["audio_end_ms"])
            for event in self.sent("conversation.item.truncate")
        ]
