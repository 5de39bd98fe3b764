"""The JSON events of one call, without I/O: data channel, backend and observers (the Realtime protocol's shapes).

Rules:
* `session.created` is the first event on the channel. What the backend sends before waits, within bounds.
* Each observer is greeted by a `session.created` of its own, with the session as it is then; from then on it gets each
  event when it happens, whether or not the client has a channel. Nothing is repeated for it.
* `session.update` merges into the session and is answered with `session.updated`; the backend is told too.
* Too many events or bytes, or session objects to write: an `error` event, and nothing is done. Who goes on all the same
  loses the call.
* Bad JSON, an unknown type, an update that is no object: an `error` event, and the call goes on.
* Where another server of the protocol stands behind the backend, the session is that server's: nothing of it is
  answered here, events pass as they are written, and observers are greeted with the session it was last seen to have.
* Observers look on (audience.py), and may send what a client may.
* Client and observers are each bound by a policy of their own (event_policy.py): what it does not allow is answered by
  an `error` event and goes nowhere (an update of the session also by the session as it is), and what is private is cut
  from what they see. What somebody with a policy sends is handed on as it was read here, not as it was written, so
  that no server can read it in another way.
* The end of the call is the last event, `usher.call.ended` with the reason, if the channel is open still.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from usher_core.errors import RemoteError
from usher_core.event_policy import OPEN, EventPolicy
from usher_core.json_values import has_more_parts, is_deeper, merge, read_json, write_json
from usher_transceiver.audience import Audience, Observer
from usher_transceiver.error_event import error_event
from usher_transceiver.event_policy import refusal, shown
from usher_transceiver.rate import TokenBucket

MAX_WAITING = 256
"""Events that wait for the channel to open, or for the backend to be ready."""
MAX_WAITING_BYTES = 1_048_576
"""Of the events that wait for the channel, and of those that wait for the backend; 4 of the largest."""
MAX_SESSION_BYTES = 262_144
"""JSON of the session object; the bound of a message on the channel."""
ENVELOPE_BYTES = 128
"""Of an event around its session object."""
EVENTS_PER_SECOND, EVENTS_AT_ONCE = 100.0, 1000.0
"""What clients and observers of a call may send together; a history of a conversation comes at once."""
BYTES_PER_SECOND, BYTES_AT_ONCE = 1_048_576.0, 4_194_304.0
WRITTEN_PER_SECOND, WRITTEN_AT_ONCE = 65_536.0, 1_048_576.0
"""Bytes of session objects written for `session.update`: a few bytes ask for many, and those cost the loop that carries
everybody's audio some 0.2 ms a KB. An ordinary session of 2 KB may change 32 times a second for ever.
"""
REFUSALS_PER_SECOND, REFUSALS_AT_ONCE = 1.0, 200.0
"""Events refused for their number; who goes on beyond does so on purpose."""
UPDATES = frozenset({"session.update", "transcription_session.update"})
UPDATED = frozenset({"session.updated", "transcription_session.updated"})
_SIZED = UPDATED | {"session.created"}
"""Events of another server by which the size of its session is known."""
_FIXED = ("id", "object", "type")
MAX_NESTING = 128
"""Levels of a message. What the parser can read is not all that can be merged and written again without running out of
stack.
"""
MAX_MESSAGE_PARTS = 16_384
"""Of a message, whoever sent it; reading so many takes half as long as a frame of audio lasts. Texts of any length are
read fast.
"""

Event = dict[str, Any]


class EventHub:
    """The events of one call.

    Args:
        session: the first session object, complete.
        new_id: makes event ids.
        send: hands a text to the data channel; False when it was dropped.
        to_backend: hands an event to the backend; False when it does not know the type.
        max_observers: how many may look on at once.
        to_server: takes events instead of `to_backend`, read and as they were written: the session is another server's.
        max_session_bytes: JSON of the session object; a client may take less than the bound of ours.
        policy: the client's.
    """

    def __init__(
        self,
        session: Event,
        new_id: Callable[[], str],
        send: Callable[[str], bool],
        to_backend: Callable[[Event], bool],
        max_observers: int = 8,
        max_session_bytes: int = MAX_SESSION_BYTES,
        to_server: Callable[[Event, str], None] | None = None,
        policy: EventPolicy = OPEN,
    ) -> None:
        self.session = session
        self._policy = policy
        self.not_allowed = 0
        self._to_server = to_server
        self._is_adopted = False
        self._servers_session_bytes = 0
        # Another server's is not known yet.
        self._session_text = write_json(session) if to_server is None else ""
        self._max_session_bytes = max_session_bytes
        self.dropped = 0
        self._new_id = new_id
        self._send = send
        self._to_backend = to_backend
        self._open = False
        self._was_open = False
        self._backend_ready = False
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0
        self._events = TokenBucket(EVENTS_PER_SECOND, EVENTS_AT_ONCE)
        self._bytes = TokenBucket(BYTES_PER_SECOND, BYTES_AT_ONCE)
        self._written_bytes = TokenBucket(WRITTEN_PER_SECOND, WRITTEN_AT_ONCE)
        self._refusals = TokenBucket(REFUSALS_PER_SECOND, REFUSALS_AT_ONCE)
        self._for_backend: deque[Event] = deque()
        self._for_backend_bytes = 0
        self._audience = Audience(max_observers)

    # The channel

    def on_open(self) -> None:
        """The client's channel is open: greet, then send what waited. A channel opened again is greeted again."""
        self._open = True
        if self._to_server is None or self._was_open:
            self._greet(self._deliver, self._policy)
        self._was_open = True
        while self._waiting:
            self._deliver(self._waiting.popleft())
        self._waiting_bytes = 0

    def on_message(self, now: float, message: str | bytes, policy: EventPolicy | None = None) -> bool:
        """Handle a message of the client, or of an observer by its policy; False when so many came that the call should
        end.
        """
        policy = self._policy if policy is None else policy
        if not (self._events.take(now) and self._bytes.take(now, len(message))):
            return self._refuse(now, "Too many events, or too large ones: send them more slowly.", None)
        try:
            event = parse_event(message)
        except RemoteError as error:
            self._error(error.reason, error.message, None)
            return True
        if (refused := refusal(policy, event)) is not None:
            self.not_allowed += 1
            self._error("event_not_allowed", refused[0], event, refused[1])
            if event["type"] == "session.update":
                self._remind(now)
            return True
        is_update = event["type"] in UPDATES
        if is_update and not self._written_bytes.take(now, self._writings * self._session_bytes + len(message)):
            return self._refuse(now, "Too many updates of so large a session: send fewer.", event)
        if self._to_server is not None:
            text = message if isinstance(message, str) and policy == OPEN else write_json(event)
            self._pass_on(self._to_server, event, text)
            return True
        if self._audience:
            self._audience.show(event, write_json(event), of_client=True)
        if event["type"] == "session.update" and not self._update(event):
            return True
        if self._backend_ready:
            self._hand_over(event)
        else:
            self._keep_for_backend(event, len(message))
        return True

    def _pass_on(self, to_server: Callable[[Event, str], None], event: Event, text: str) -> None:
        self._audience.show(event, text, of_client=True)
        to_server(event, text)

    def _remind(self, now: float) -> None:
        """Show the session that stays as it is: the agents SDK waits 5 s for an answer to the update at its start."""
        is_known = self._to_server is None or self._is_adopted
        if is_known and self._written_bytes.take(now, self._writings * len(self._written_session())):
            self._send_out(*self._with_session("session.updated"))

    def _refuse(self, now: float, message: str, event: Event | None) -> bool:
        if not self._refusals.take(now):
            return False
        self._error("rate_limit_exceeded", message, event)
        return True

    def emit(self, event: Mapping[str, Any]) -> None:
        """Send an event of the backend or of the session to the client."""
        complete = dict(event)
        complete.setdefault("event_id", self._new_id())
        self._send_out(complete, write_json(complete))

    def forward(self, event: Event, text: str) -> None:
        """Send an event of the server behind the backend to the client as it is written."""
        if event["type"] in _SIZED:
            self._servers_session_bytes = len(text)
        self._send_out(event, text)

    def _send_out(self, event: Event, text: str) -> None:
        self._audience.show(event, text)
        text = shown(self._policy, event, text)
        if self._open:
            self._deliver(text)
        elif len(self._waiting) < MAX_WAITING and self._waiting_bytes + len(text) <= MAX_WAITING_BYTES:
            self._waiting.append(text)
            self._waiting_bytes += len(text)
        else:
            self.dropped += 1

    @property
    def is_waiting(self) -> bool:
        """Whether events wait for the channel to open."""
        return bool(self._waiting)

    # The backend

    def adopt_session(self, session: Event) -> None:
        """The session is another server's, and this is what it looks like now."""
        self.session, self._session_text = session, ""
        self._is_adopted = True

    def on_backend_ready(self) -> None:
        """The backend has started: hand it what waited."""
        self._backend_ready = True
        while self._for_backend:
            self._hand_over(self._for_backend.popleft())
        self._for_backend_bytes = 0

    def _keep_for_backend(self, event: Event, size: int) -> None:
        if len(self._for_backend) >= MAX_WAITING or self._for_backend_bytes + size > MAX_WAITING_BYTES:
            self._error("too_many_events", "The backend is not ready yet and too many events wait.", event)
            return
        self._for_backend.append(event)
        self._for_backend_bytes += size

    def _hand_over(self, event: Event) -> None:
        if not self._to_backend(event) and event["type"] != "session.update":
            self._error("unknown_event", f"Unknown event type {_quote(event['type'])}.", event, "type")

    def _update(self, event: Event) -> bool:
        update = event.get("session")
        if not isinstance(update, dict):
            self._error("invalid_session", "`session` is missing or is no object.", event, "session")
            return False
        merged = merge(self.session, update)
        merged.update({name: self.session[name] for name in _FIXED})
        if update:
            text = write_json(merged)
            if len(text) > self._max_session_bytes:
                most = f"A session has at most {self._max_session_bytes} bytes here."
                self._error("session_too_large", most, event, "session")
                return False
            self.session, self._session_text = merged, text
        self._send_out(*self._with_session("session.updated"))
        return True

    # Observers

    @property
    def observers(self) -> int:
        """How many look on."""
        return len(self._audience)

    def observe(self, observer: Observer, *, client_events: bool = True, policy: EventPolicy = OPEN) -> bool:
        """Let somebody look on from now on, also at what clients send or not; False when too many do."""
        if not self._audience.join(observer, policy, client_events=client_events):
            return False
        self._greet(observer.offer, policy)
        return True

    def leave(self, observer: Observer) -> None:
        """Forget an observer; harmless to call twice."""
        self._audience.leave(observer)

    def close(self, reason: str) -> None:
        """The call has ended: say so to whoever still hears it."""
        ended = {"type": "usher.call.ended", "reason": reason, "event_id": self._new_id()}
        self._audience.show(ended, write_json(ended))
        if self._open:
            self._send(write_json(ended))  # where the client hung up there is no channel any more, and nothing is lost
        self._open = False
        self._waiting.clear()
        self._for_backend.clear()
        self._audience.dismiss(reason)

    @property
    def _session_bytes(self) -> int:
        """What an update of the session makes somebody write, and here makes it be read."""
        return len(self._session_text) if self._to_server is None else self._servers_session_bytes

    @property
    def _writings(self) -> int:
        """How often the session has to be written when it changes: once, and for each who sees only a part of it."""
        return 1 + bool(self._policy.private) + self._audience.with_private_fields

    # Out

    def _error(self, code: str, message: str, event: Event | None, param: str | None = None) -> None:
        self.emit(error_event(code, message, event, param))

    def _greet(self, say: Callable[[str], object], policy: EventPolicy) -> None:
        if self._to_server is None or self._is_adopted:
            say(shown(policy, *self._with_session("session.created")))

    def _written_session(self) -> str:
        self._session_text = self._session_text or write_json(self.session)
        return self._session_text

    def _with_session(self, kind: str) -> tuple[Event, str]:
        text = self._written_session()
        # Put together as text: it may be large, and it was written when it last changed.
        event = {"type": kind, "session": self.session, "event_id": self._new_id()}
        return event, f'{{"type":"{kind}","session":{text},"event_id":"{event["event_id"]}"}}'

    def _deliver(self, text: str) -> None:
        if not self._send(text):
            self.dropped += 1


def parse_event(message: str | bytes) -> Event:
    """Return the event in a message.

    Raises RemoteError: `invalid_json`, `invalid_event` (no object, or no `type`).
    """
    try:
        text = message if isinstance(message, str) else message.decode()
        if has_more_parts(text, MAX_MESSAGE_PARTS):
            raise RemoteError("invalid_json", f"The message has more than {MAX_MESSAGE_PARTS} parts.")
        event = read_json(text)
    except (ValueError, RecursionError):
        raise RemoteError("invalid_json", "The message is not JSON.") from None
    if is_deeper(event, MAX_NESTING):
        raise RemoteError("invalid_json", f"The message is nested deeper than {MAX_NESTING} levels.")
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise RemoteError("invalid_event", "An event is a JSON object with a string `type`.")
    return event


def _quote(text: str) -> str:
    return json.dumps(text[:80])
