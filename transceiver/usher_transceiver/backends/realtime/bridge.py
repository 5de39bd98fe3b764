"""Between one client and its server of the Realtime protocol, without I/O.

Rules:
* The client's audio goes up as `input_audio_buffer.append`, a frame at a time, in the format of the session. The
  model's audio comes as deltas and is played; deltas never reach the client's channel.
* All other events pass both ways as they are written, in order, known or not. `input_audio_buffer.append` of a client
  passes too. Not passed: `output_audio_buffer.clear`, which is for us; what is no JSON object with a type; and the
  server's errors about truncations, which nobody but us asked for. An error that quotes our key is passed without it.
* The session is the server's: its `session.created` and `session.updated` are what client and observers get. The
  session object that the call was made with is the first `session.update`, without its model, which is in the address.
* What WebRTC adds is ours: `output_audio_buffer.started` when the first audio of a response is played, `stopped` when
  all of a finished one was, `cleared` for one that lost audio.
* Barge-in: speech (unless the session says that it does not interrupt) and the client's `clear` drop what waits of all
  responses, and what still comes for those that are being made; a cancelled response drops its own. Each part that lost
  audio is truncated at what was played of it, unless the server does that itself.
* While too much waits, audio to be played or events for the client, `wants_more` is False and the server is not read;
  what a call may hold of audio also depends on all others (budget.py). Much G.711 in one piece is decoded a little at a
  time, for the sake of other calls' audio, and nothing is read meanwhile.
* A message of more than `MAX_MESSAGE_PARTS` parts is dropped unread: to read it would hold up other calls as well.
* A lost server: what waits is played, 30 s at most; then one `error` event, and the call ends.

What the session's input format is to be is known when a `session.update` goes up, since the server takes what it gets
in order (`InputFormat`); the output format when the server's session object comes down, or that of a response which has
one of its own.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeGuard

from usher_core.errors import RemoteError
from usher_core.json_values import has_more_parts, is_deeper, read_json, write_json
from usher_transceiver.backends.protocol import AudioFrame, Event
from usher_transceiver.backends.realtime.budget import Share
from usher_transceiver.backends.realtime.counters import RealtimeCounters
from usher_transceiver.backends.realtime.faults import Fault
from usher_transceiver.backends.realtime.masking import without_secrets
from usher_transceiver.backends.realtime.outbox import Outbox
from usher_transceiver.backends.realtime.playout import Change, Part, Playout
from usher_transceiver.backends.realtime.session_audio import (
    PCM_BYTES_PER_CODED,
    Format,
    FromUpstream,
    InputFormat,
    ToUpstream,
    audio_format,
    interrupts,
)
from usher_transceiver.error_event import error_event
from usher_transceiver.events import MAX_MESSAGE_PARTS, UPDATED, UPDATES
from usher_transceiver.media.frame import FRAME_MS

DELTAS = frozenset({"response.output_audio.delta", "response.audio.delta"})
PART_DONE = frozenset({"response.output_audio.done", "response.audio.done"})
SESSION_EVENTS = UPDATED | {"session.created", "transcription_session.created"}
CLEAR = "output_audio_buffer.clear"
PLAY_OUT_S = 30.0
"""Of what a lost server had said; enough for a long sentence."""
BEGIN_LOOK_S, LOOK_S = 0.02, 0.1
MAX_EVENTS_WAITING = 524_288
"""Bytes of events on their way to the client; the largest one still fits into its channel beside them."""
MAX_ACTIVE = 16
"""Responses that are being made at once; servers make one, and some beside the conversation."""
MAX_NESTING = 128
"""Levels of a session object, which is written again for observers; a deeper one is passed and not kept."""
MAX_ID = 512
"""Characters of the server's names for responses and items, many of which are remembered; longer ones are none."""
MAX_INDEX = 65_535
"""Of an item's parts."""
OUR_EVENT_IDS = "usher_truncate_"
SERVERS_OWN_FIELDS = ("id", "object", "model")
"""Of a session object: given out by servers, and the model, which no update may change."""


class BridgeCall(Protocol):
    """What the bridge needs of its call; see `protocol.ForwardingCall`."""

    @property
    def queued_ms(self) -> int: ...

    @property
    def events_waiting_bytes(self) -> int: ...

    def play(self, pcm: bytes) -> int: ...

    def clear(self) -> int: ...

    def send_event(self, event: Event) -> None: ...

    def forward(self, event: Event, text: str) -> None: ...

    def adopt_session(self, session: Mapping[str, Any]) -> None: ...

    def end_when_told(self, reason: str) -> None: ...


class Bridge:
    """See the module.

    Args:
        call: the client's side.
        outbox: what goes to the server.
        counters: of the process.
        truncates: whether we tell the server what was heard.
        secrets: what no client may see, wherever the server's errors quote it.
    """

    def __init__(
        self,
        call: BridgeCall,
        outbox: Outbox,
        counters: RealtimeCounters,
        *,
        truncates: bool,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._call = call
        self._outbox = outbox
        self._counters = counters
        self._truncates = truncates
        self._secrets = secrets
        self._playout = Playout()
        self._held = Share(counters)
        self._undecoded: tuple[Part, memoryview] | None = None
        self._input = InputFormat()
        self._to_upstream = ToUpstream()
        self._from_upstream = FromUpstream()
        self._output: Format = "pcm"
        self._interrupts = True
        self._active: dict[str, None] = {}
        self._last_response = ""
        self._truncated = 0
        self._fault: Fault | None = None
        self._play_until = 0.0
        self._over = False

    @property
    def wants_more(self) -> bool:
        """Whether the server should be read."""
        if self._undecoded is not None or self._playout.is_full or not self._held.has_room():
            return False
        return self._call.events_waiting_bytes <= MAX_EVENTS_WAITING

    @property
    def waiting_bytes(self) -> int:
        """What came of the server and was neither played nor taken by the client."""
        return self._audio_bytes + self._call.events_waiting_bytes

    @property
    def _audio_bytes(self) -> int:
        undecoded = 0 if self._undecoded is None else len(self._undecoded[1])
        return self._playout.waiting_bytes + undecoded * PCM_BYTES_PER_CODED

    @property
    def look_in(self) -> float | None:
        """Seconds until `look` has something to do at the latest; None: no earlier than something happens."""
        if self._over or (self._playout.is_idle and self._fault is None and self.wants_more):
            return None
        if self._undecoded is not None and not self._playout.is_full:
            return 0.0
        return BEGIN_LOOK_S if self._playout.is_about_to_begin else LOOK_S

    # The client

    def begin(self, given: Mapping[str, Any]) -> None:
        """Ask the server for the session that the call was made with."""
        session = {name: value for name, value in given.items() if name not in SERVERS_OWN_FIELDS}
        if session.keys() - {"type"}:
            event: Event = {"type": "session.update", "session": session}
            self._outbox.put_event(write_json(event))
            self._expect(event)

    def on_frame(self, now: float, frame: AudioFrame) -> None:
        """Take 20 ms of the client's audio."""
        if self._fault is None:
            self._outbox.put_audio(self._to_upstream(frame.data), FRAME_MS)
        if self.look_in is not None:
            self.look(now)

    def on_client_event(self, now: float, event: Event, text: str) -> None:
        """Take an event of the client or of an observer, read and as it was written."""
        if event["type"] == CLEAR:
            self._settle()
            self._interrupt(None)
            self.look(now)
        elif self._fault is not None:
            return
        elif self._outbox.put_event(text):
            if event["type"] in UPDATES:
                self._expect(event)
        else:
            self._call.send_event(error_event("too_many_events", "Too many events wait for the model's server.", event))

    def _expect(self, update: Event) -> None:
        self._input.ask(update)
        self._to_upstream.use(self._input.now)

    # The server

    def on_upstream(self, now: float, text: str) -> None:
        """Take a message of the server."""
        self._counters.events["from_upstream"] += 1
        while self._undecoded is not None:
            self._decode_some()
        try:
            event = _parse(text)
        except RemoteError:
            self._counters.dropped_bytes["bad_event"] += len(text)
            return
        kind = event["type"]
        if kind in DELTAS:
            self._on_delta(event)
        elif kind == "error" and self._is_ours(event):
            self._counters.truncations["refused"] += 1
        else:
            self._on_event(kind, event, text)
        self.look(now)

    def _on_event(self, kind: str, event: Event, text: str) -> None:
        session = event.get("session") if kind in SESSION_EVENTS else None
        if isinstance(session, dict) and not is_deeper(session, MAX_NESTING):
            self._on_session(session, answers=kind in UPDATED)
        elif kind == "error":
            event, text = without_secrets(event, text, self._secrets)
            self._input.refuse(_refused_id(event))
            self._to_upstream.use(self._input.now)
        self._call.forward(event, text)
        self._settle()
        if kind == "input_audio_buffer.speech_started":
            if self._interrupts:
                self._interrupt(None)
        elif kind == "response.created":
            self._on_response(event)
        elif kind in ("response.done", "response.cancelled"):
            self._on_response_over(kind, event)
        elif kind in PART_DONE:
            self._playout.complete(self._part(event))

    def _on_session(self, session: Event, *, answers: bool) -> None:
        self._call.adopt_session(session)
        self._input.tell(session, answers=answers)
        self._to_upstream.use(self._input.now)
        if (said := audio_format(session, "output")) is not None:
            self._output = said
            self._from_upstream.use(said)
        if (interrupting := interrupts(session)) is not None:
            self._interrupts = interrupting

    def _on_response(self, event: Event) -> None:
        response = event.get("response")
        said = audio_format(response, "output") if isinstance(response, dict) else None
        self._from_upstream.use(said or self._output)
        self._note_active(_response_id(event))

    def _note_active(self, response_id: str) -> None:
        self._last_response = response_id
        self._active[response_id] = None
        while len(self._active) > MAX_ACTIVE:
            del self._active[next(iter(self._active))]

    def _on_response_over(self, kind: str, event: Event) -> None:
        response_id = _response_id(event)
        self._active.pop(response_id, None)
        response = event.get("response")
        status = response.get("status") if isinstance(response, dict) else None
        if kind == "response.cancelled" or status == "cancelled":
            self._interrupt((response_id,))
        else:
            self._tell(self._playout.finish(response_id))

    def _on_delta(self, event: Event) -> None:
        delta, part = event.get("delta"), self._part(event)
        if not isinstance(delta, str):
            delta = ""
        try:
            data = a2b_base64(delta)
        except ValueError:
            self._counters.dropped_bytes["bad_audio"] += len(delta)
            return
        self._undecoded = part, memoryview(data)

    def _decode_some(self) -> None:
        assert self._undecoded is not None
        part, coded = self._undecoded
        most = self._from_upstream.most_at_once or len(coded)
        piece, rest = bytes(coded[:most]), coded[most:]
        self._undecoded = (part, rest) if rest else None
        if not self._playout.add(part, self._from_upstream(part, piece)):
            self._counters.dropped_bytes["cancelled_audio"] += len(coded)
            self._undecoded = None

    def _part(self, event: Event) -> Part:
        response_id, item_id, index = event.get("response_id"), event.get("item_id"), event.get("content_index")
        return Part(
            response_id if _is_id(response_id) else self._last_response,
            item_id if _is_id(item_id) else "",
            index if isinstance(index, int) and 0 <= index <= MAX_INDEX else 0,
        )

    def _is_ours(self, event: Event) -> bool:
        event_id = _refused_id(event)
        return isinstance(event_id, str) and event_id.startswith(OUR_EVENT_IDS)

    def on_upstream_lost(self, now: float, fault: Fault) -> None:
        """The server can't be reached, or is gone; there is nobody to send to any more."""
        if self._fault is not None:
            return
        self._fault = fault
        self._play_until = now + PLAY_OUT_S
        self._outbox.clear()
        self._drop_undecoded()
        self._settle()
        self._tell(self._playout.finish_all())
        self.look(now)

    # Playing

    def look(self, now: float) -> None:
        """Note what was played, and hand over what is to be played next."""
        if self._over:
            return
        if self._undecoded is not None and not self._playout.is_full:
            self._decode_some()
        self._settle()
        self._hand_over()
        if self._fault is not None and (now >= self._play_until or self._is_quiet):
            self._interrupt(None)
            self._over = True
            self._call.send_event(error_event(self._fault.code, self._fault.message, fault="server_error"))
            self._call.end_when_told(self._fault.end)

    @property
    def _is_quiet(self) -> bool:
        return self._playout.is_idle and self._call.queued_ms == 0

    def _settle(self) -> None:
        self._tell(self._playout.advance(self._call.queued_ms))

    def _hand_over(self) -> None:
        pcm = self._playout.take(self._call.queued_ms)
        if pcm:
            self._call.play(pcm)
        self._held.set(self._audio_bytes)

    def forget(self) -> None:
        """The call is over: nothing is held any more."""
        self._held.set(0)

    def _drop_undecoded(self) -> None:
        if self._undecoded is not None:
            self._counters.dropped_bytes["cancelled_audio"] += len(self._undecoded[1])
            self._undecoded = None

    def _tell(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._say(change.kind, change.response_id)

    def _say(self, what: str, response_id: str) -> None:
        self._call.send_event({"type": f"output_audio_buffer.{what}", "response_id": response_id})

    def _interrupt(self, responses: tuple[str, ...] | None) -> None:
        """Drop audio of these responses, None: of all, those being made too. What was played has been settled."""
        if self._undecoded is not None and (responses is None or self._undecoded[0].response_id in responses):
            self._drop_undecoded()
        stopped = self._playout.interrupt(responses)
        self._playout.cancel(tuple(self._active) if responses is None else responses)
        if not stopped.responses:
            return
        self._call.clear()
        self._hand_over()
        for response_id in stopped.responses:
            self._say("cleared", response_id)
        for item_id, content_index, audio_end_ms in stopped.truncations if self._truncates else ():
            self._truncated += 1
            self._counters.truncations["partly_heard" if audio_end_ms else "unheard"] += 1
            self._outbox.put_event(
                write_json(
                    {
                        "type": "conversation.item.truncate",
                        "event_id": f"{OUR_EVENT_IDS}{self._truncated}",
                        "item_id": item_id,
                        "content_index": content_index,
                        "audio_end_ms": audio_end_ms,
                    }
                )
            )


def _parse(text: str) -> Event:
    if has_more_parts(text, MAX_MESSAGE_PARTS):
        raise RemoteError("bad_event", "the server's message has too many parts")
    try:
        event = read_json(text)
    except (ValueError, RecursionError):
        raise RemoteError("bad_event", "the server's message is no JSON") from None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise RemoteError("bad_event", "the server's message is no event")
    return event


def _refused_id(event: Event) -> object:
    """Return the id of the event that an error is about, None where it names none."""
    error = event.get("error")
    return error.get("event_id") if isinstance(error, dict) else None


def _response_id(event: Event) -> str:
    response = event.get("response")
    found = response.get("id") if isinstance(response, dict) else event.get("response_id")
    return found if _is_id(found) else ""


def _is_id(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MAX_ID
