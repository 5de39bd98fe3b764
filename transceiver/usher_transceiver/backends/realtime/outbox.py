"""What waits for the WebSocket of one call, without I/O.

Rules:
* Order is kept: a `commit` finds the audio before it in the model's buffer.
* Audio is bounded by duration: of what does not fit, the oldest is dropped. Old speech is worth less than new.
* Events are bounded in number and bytes: one that does not fit is refused, and its sender told.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections import deque
from typing import NamedTuple

from usher_transceiver.backends.realtime.counters import RealtimeCounters

MAX_AUDIO_MS = 5_000
"""As long as connecting may take by default, so that the first words are not lost."""
MAX_EVENTS = 256
MAX_EVENT_BYTES = 1_048_576
"""Four of the largest that a client can send."""


class _Audio(NamedTuple):
    number: int
    data: bytes
    ms: int


class _Event(NamedTuple):
    number: int
    text: str


class Outbox:
    """See the module. What is put in is numbered, so that the two queues keep one order."""

    def __init__(self, counters: RealtimeCounters) -> None:
        self._counters = counters
        self._audio: deque[_Audio] = deque()
        self._audio_ms = 0
        self._events: deque[_Event] = deque()
        self._event_bytes = 0
        self._number = 0

    def put_audio(self, data: bytes, ms: int) -> None:
        """Queue audio of the client, in the format of the upstream session."""
        self._number += 1
        self._audio.append(_Audio(self._number, data, ms))
        self._audio_ms += ms
        self._counters.queued_bytes += len(data)
        while self._audio_ms > MAX_AUDIO_MS:
            self._counters.dropped_bytes["audio_overflow"] += len(self._take_audio())

    def put_event(self, text: str) -> bool:
        """Queue an event; False when there is no room."""
        if len(self._events) >= MAX_EVENTS or self._event_bytes + len(text) > MAX_EVENT_BYTES:
            self._counters.dropped_bytes["event_overflow"] += len(text)
            return False
        self._number += 1
        self._events.append(_Event(self._number, text))
        self._event_bytes += len(text)
        self._counters.queued_bytes += len(text)
        return True

    def take(self) -> str | None:
        """Return the next message for the WebSocket, or None."""
        if self._events and not (self._audio and self._audio[0].number < self._events[0].number):
            return self._take_event()
        return append_message(self._take_audio()) if self._audio else None

    def clear(self) -> None:
        """Forget everything: the call is over."""
        while self._audio:
            self._take_audio()
        while self._events:
            self._take_event()

    def _take_audio(self) -> bytes:
        _, data, ms = self._audio.popleft()
        self._audio_ms -= ms
        self._counters.queued_bytes -= len(data)
        return data

    def _take_event(self) -> str:
        text = self._events.popleft().text
        self._event_bytes -= len(text)
        self._counters.queued_bytes -= len(text)
        return text


def append_message(audio: bytes) -> str:
    """Return an `input_audio_buffer.append`. Base64 needs no escaping, so nothing has to look at each character."""
    return f'{{"type":"input_audio_buffer.append","audio":"{b2a_base64(audio, newline=False).decode("ascii")}"}}'
