"""A call as its backend sees it: audio and events of one session, and the way to hang up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from usher_transceiver.backends.protocol import Event
from usher_transceiver.events import EventHub
from usher_transceiver.media.stream import AudioStream


class LiveCall:
    """The `BackendCall` of a session. After the call has ended its methods do nothing."""

    def __init__(
        self,
        session_id: str,
        metadata: Mapping[str, str],
        stream: AudioStream,
        events: EventHub,
        hang_up: Callable[[str], None],
        hang_up_when_told: Callable[[str], None],
        given_session: Mapping[str, Any],
        events_waiting_bytes: Callable[[], int],
    ) -> None:
        self._id = session_id
        self._metadata = metadata
        self._stream = stream
        self._events = events
        self._hang_up = hang_up
        self._hang_up_when_told = hang_up_when_told
        self._given_session = given_session
        self._events_waiting_bytes = events_waiting_bytes
        self._ended = False

    @property
    def id(self) -> str:
        """The session id."""
        return self._id

    @property
    def session(self) -> Mapping[str, Any]:
        """The session object with all updates merged in."""
        return self._events.session

    @property
    def given_session(self) -> Mapping[str, Any]:
        """The session object as it came with the call."""
        return self._given_session

    @property
    def events_waiting_bytes(self) -> int:
        """Of events, what waits for the client to take it."""
        return self._events_waiting_bytes()

    @property
    def metadata(self) -> Mapping[str, str]:
        """As the creator of the call gave it."""
        return self._metadata

    @property
    def queued_ms(self) -> int:
        """Audio accepted and not yet sent."""
        return self._stream.queued_ms

    @property
    def played_ms(self) -> int:
        """Audio sent since the call began."""
        return self._stream.played_ms

    def play(self, pcm: bytes) -> int:
        """Queue PCM; return the milliseconds accepted."""
        return 0 if self._ended else self._stream.play(pcm)

    def play_opus(self, packet: bytes) -> int:
        """Queue an Opus packet; return the milliseconds accepted."""
        return 0 if self._ended else self._stream.play_opus(packet)

    def clear(self) -> int:
        """Drop what is queued; return the milliseconds dropped."""
        return self._stream.clear()

    def send_event(self, event: Event) -> None:
        """Send an event to the client and to observers."""
        if not self._ended:
            self._events.emit(event)

    def forward(self, event: Event, text: str) -> None:
        """Send an event as it is written to the client and to observers."""
        if not self._ended:
            self._events.forward(event, text)

    def adopt_session(self, session: Mapping[str, Any]) -> None:
        """Take over the session object of another server."""
        self._events.adopt_session(dict(session))

    def end_when_told(self, reason: str) -> None:
        """Hang up when the client has what was sent to it, or after a short while."""
        if not self._ended:
            self._hang_up_when_told(reason)

    def end(self, reason: str) -> None:
        """Hang up."""
        if not self._ended:
            self._hang_up(reason)

    def detach(self) -> None:
        """The call has ended: whatever the backend still does has no effect."""
        self._ended = True
