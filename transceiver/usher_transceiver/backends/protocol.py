"""What a backend is and what it is given: the two seams for code that talks with a caller (see docs/backends.md)."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from usher_transceiver.media.frame import AudioFrame

__all__ = [
    "AudioFrame",
    "AudioKind",
    "Backend",
    "BackendCall",
    "BackendConfig",
    "BackendFactory",
    "Event",
    "ForwardingBackend",
    "ForwardingCall",
]

AudioKind = Literal["pcm", "opus"]
"""``pcm``: 20 ms frames of s16le mono 24 kHz. ``opus``: the packets as they are on the wire, never decoded."""

Event = dict[str, Any]
"""One JSON object of the data channel, with at least a string under ``type``."""

BackendConfig = Mapping[str, Any]
"""The configuration of the pool or process for this backend; its keys are the backend's own affair."""


class BackendCall(Protocol):
    """One call, as its backend sees it. All methods return at once and belong to the event loop's thread."""

    @property
    def id(self) -> str:
        """The session id; safe for logs."""

    @property
    def session(self) -> Mapping[str, Any]:
        """The client's session object (model, voice, instructions, ...), with every ``session.update`` merged in."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the creator of the call attached to it; never interpreted by usher."""

    @property
    def queued_ms(self) -> int:
        """Audio accepted by `play` or `play_opus` and not yet sent."""

    @property
    def played_ms(self) -> int:
        """Audio sent to the client since the call began; silence between does not count."""

    def play(self, pcm: bytes) -> int:
        """Queue s16le mono 24 kHz PCM of any length; return the milliseconds that were accepted.

        The queue is bounded by duration. What does not fit is dropped, newest first, and counted.
        Only for backends of kind ``pcm``.
        """

    def play_opus(self, packet: bytes) -> int:
        """Queue one Opus packet (2.5 to 120 ms); return the milliseconds accepted, 0 when it was dropped.

        Only for backends of kind ``opus``.
        """

    def clear(self) -> int:
        """Drop what is queued, for an interruption; return the milliseconds dropped."""

    def send_event(self, event: Event) -> None:
        """Send a JSON event to the client's data channel; kept (bounded) until the channel is open."""

    def end(self, reason: str) -> None:
        """Hang up. `reason` is a short word for logs and metrics."""

    def end_when_told(self, reason: str) -> None:
        """Hang up as soon as the client has the events that were sent to it, or after 2 s."""


class Backend(Protocol):
    """One object per call. The session calls `start` once, then the ``on_`` methods, then `close` once."""

    audio: AudioKind

    async def start(self, call: BackendCall) -> None:
        """Get ready (connect, load). Audio and events come only after it returned.

        Raising ends the call. It is cancelled when the call ends before it returned, and has a time limit.
        """

    def on_audio(self, frame: AudioFrame) -> None:
        """Take one frame of the client's audio. Must not block: all calls of the process wait for it."""

    def on_event(self, event: Event) -> bool:
        """Take one JSON event of the client's data channel; return whether its type is known. Must not block.

        The session itself answers ``session.update``, and an event nobody knows with an ``error`` event.
        """

    async def close(self, reason: str) -> None:
        """Free everything. Called exactly once, also after a failed or cancelled `start`; has a time limit."""


@runtime_checkable
class ForwardingCall(BackendCall, Protocol):
    """A call as a `ForwardingBackend` sees it."""

    @property
    def given_session(self) -> Mapping[str, Any]:
        """The session object as the creator of the call gave it, with nothing of ours in it."""

    @property
    def events_waiting_bytes(self) -> int:
        """Of events, what waits for the client to take it; its channel holds 1 MiB, and drops what comes then."""

    def forward(self, event: Event, text: str) -> None:
        """Send an event to the client as it is written; kept (bounded) until the channel is open."""

    def adopt_session(self, session: Mapping[str, Any]) -> None:
        """This is the session object from now on: what observers who come later are greeted with."""


@runtime_checkable
class ForwardingBackend(Backend, Protocol):
    """A backend with another server of the same protocol behind it. The session is that server's: `session.created`,
    `session.updated` and what is wrong with an event come from there, and usher answers none of it.
    """

    forwards_events: Literal[True]

    def on_client_event(self, event: Event, text: str) -> None:
        """Take an event of the client or of an observer, read and as it was written, instead of `on_event`."""


BackendFactory = Callable[[BackendConfig], Backend]
"""What an entry point of the group ``usher.backends`` names, unless it names a coroutine function (`coroutine.Run`).
Called once per call. A class is one.
"""
