"""uvicorn's HTTP/1.1 protocol with the bounds it lacks: on connections and on time; and JSON for its own answers.

A connection is always in one of these states, and none can be drawn out by sending or reading byte by byte:

* No whole header: `header_deadline` from the connection or the first byte of a request. Between two requests uvicorn's
  keep-alive time counts.
* A header, but no whole body, and no answer: as long again, and a little more, so that an application which has a
  deadline of its own answers first.
* A whole request: the application's time.
* An answer that the client does not take: `UNREAD_LIMIT_S` from its start.
* An answer that came before the whole body, such as most 401: it says `Connection: close`, the rest of the body is
  thrown away for `LINGER_S`, and then the connection is closed. (Closing at once would reset it, and a client that is
  still sending may lose the answer.)
* A WebSocket that is not accepted: `UPGRADE_DEADLINE_S`.

When there are as many connections as there may be:

* One without a whole request makes room for the new one: who has never shown a key that counts goes first, and of
  those the one that has waited longest.
* Where all are busy, a few more are taken, but only probes are answered on them: a full server is alive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from usher_core.internal_api import error_answer, error_type

PROBES = frozenset(("/livez", "/readyz"))
MAX_SPARE = 16
"""Connections beyond the bound, for probes."""
LINGER_S = 1.0
BODY_MARGIN_S = 1.0
UNREAD_LIMIT_S = 30.0
"""A peer that does not take its answer, or takes nothing of what waits for it, is cut off after this time."""
UPGRADE_DEADLINE_S = 30.0

App = Callable[[Any, Any, Any], Awaitable[None]]
ADMITTED = "admitted"
"""What an application sets in a request's state once it has accepted the caller's key."""
TOO_MANY = ("too_many_requests", "All connections of this server are busy. Try again soon.")


def _ignore() -> None: ...


@dataclass(slots=True)
class Room:
    """The connections of one server: how many there may be, and which of them wait without a whole request.

    Args:
        limit: on connections at a time.
        header_deadline: seconds until a request's header has to be there.
        on_evicted: called for each connection that had to make room.
    """

    limit: int
    header_deadline: float
    on_evicted: Callable[[], None] = _ignore
    strangers: dict[BoundedProtocol, None] = field(default_factory=dict)
    """Those that wait and have not shown a key that counts, in the order in which they began to wait."""
    known: dict[BoundedProtocol, None] = field(default_factory=dict)
    """The others that wait, in the same order."""

    def wait(self, connection: BoundedProtocol) -> None:
        """Note that a connection has no whole request."""
        (self.known if connection.is_known else self.strangers).setdefault(connection)

    def work(self, connection: BoundedProtocol) -> None:
        """Note that a connection has a whole request, or is gone."""
        self.strangers.pop(connection, None)
        self.known.pop(connection, None)

    def evict(self) -> BoundedProtocol | None:
        """Cut off the one that has the least to lose and return it; None where all have work."""
        evicted = next(iter(self.strangers or self.known), None)
        if evicted is not None:
            self.work(evicted)
            self.on_evicted()
            # Not close(): what it has not read yet must not hold the descriptor.
            evicted.transport.abort()
        return evicted


def bounded_protocol(room: Room) -> type[H11Protocol]:
    """Return the protocol class of a server."""
    return type("BoundedProtocol", (BoundedProtocol,), {"room": room})


class _Lingering(asyncio.Transport):
    """A transport whose close() lets the peer read its answer first, when the protocol asks for that."""

    def __init__(self, inner: asyncio.Transport, lingers: Callable[[], bool]) -> None:
        super().__init__()
        self._inner = inner
        self._lingers = lingers
        self.is_lingering = False

    def close(self) -> None:
        if self.is_closing():
            return
        self.is_lingering = self._lingers()
        if self.is_lingering:
            self._inner.write_eof()
        else:
            self._inner.close()

    def abort(self) -> None:
        self._inner.abort()

    def is_closing(self) -> bool:
        return self.is_lingering or self._inner.is_closing()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._inner.write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()


class BoundedProtocol(H11Protocol):
    """See the module; `bounded_protocol` gives it its room."""

    room: ClassVar[Room]
    is_known = False
    """Whether a key was accepted on this connection."""

    _inner: asyncio.Transport
    _waits_for: Callable[[], None] | None = None
    """What happens when the client is late with what is expected of it now."""
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    """Runs while an answer is on its way."""
    _is_spare = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._inner = transport
        super().connection_made(_Lingering(transport, self._lingers))
        self.app = self._watched(self.app)
        if len(self.connections) > self.room.limit:
            self._make_room()
        self._look()

    def _make_room(self) -> None:
        evicted = self.room.evict()
        self._is_spare = evicted is None or evicted._is_spare  # noqa: SLF001 - one of us
        if evicted is None and len(self.connections) > self.room.limit + MAX_SPARE:
            self._inner.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._stop_unread()
        self.room.work(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._inner.get_write_buffer_size():
            self._stop_unread()
        self._look()

    def _look(self) -> None:
        """Set the deadline of the state that the connection is in now."""
        if self.transport.is_closing() or self._inner.get_protocol() is not self:  # it is a WebSocket's now
            return
        deadline = self.room.header_deadline
        if self.conn.their_state is h11.IDLE:
            self.room.wait(self)
            # Between two requests the keep-alive timer runs, until the first byte of the next one.
            if self.timeout_keep_alive_task is None:
                self._expect(deadline, self._header_is_late)
            return
        self.room.work(self)
        if self.conn.their_state is h11.SEND_BODY:
            self._expect(deadline + BODY_MARGIN_S, self._body_is_late)
        else:
            self._expect_nothing()

    def _watched(self, app: App) -> App:
        """Wrap the application: an answer has a deadline, and one that comes before the whole body is the last."""

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            async def watch(message: Any) -> None:
                if message["type"] == "http.response.start":
                    self._on_answer(scope, message)
                await send(message)

            if self._is_spare and scope["path"] not in PROBES:
                self._refuse(503, *TOO_MANY)
                return
            try:
                await app(scope, receive, watch)
            except asyncio.CancelledError:  # the server ends and gives up what is under way
                self._refuse(503, "server_ending", "This server ends now. Send the request again.")

        return serve

    def _on_answer(self, scope: Any, message: Any) -> None:
        if self.conn.their_state is h11.SEND_BODY:
            message["headers"] = [*message.get("headers", ()), CLOSE_HEADER]
        if scope["state"].get(ADMITTED):
            self.is_known = True
        self._watch_answer()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._expect_nothing()
        self.room.work(self)
        if self._is_spare:
            self._send_error(503, *TOO_MANY)
            return
        # A side-band may stay for hours: only its beginning is ours.
        self.transport = self._inner
        super().handle_websocket_upgrade(event)
        self.loop.call_later(UPGRADE_DEADLINE_S, _end_unless_accepted, self._inner)

    def send_400_response(self, msg: str) -> None:
        self._send_error(400, "bad_http", msg)

    def _header_is_late(self) -> None:
        if self.conn.trailing_data[0]:
            self._send_error(408, "header_too_slow", f"No whole header came within {self.room.header_deadline:g} s.")
        else:
            self._inner.close()

    def _body_is_late(self) -> None:
        self._refuse(408, "body_too_slow", f"The body did not arrive within {self.room.header_deadline:g} s.")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer in the application's place, unless it has begun to."""
        if not self.cycle.disconnected and not self.cycle.response_started:
            self._send_error(status, code, message)

    def _send_error(self, status: int, code: str, message: str) -> None:
        """Write an answer of our own if there is none yet, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error_answer(error_type(status), code, message)).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
                CLOSE_HEADER,
            ]
            if status == 503:
                headers.append((b"retry-after", b"1"))
            is_head = self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
            answer = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            self._watch_answer()
            for event in (answer, h11.Data(data=b"" if is_head else body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the application must write no more
            cycle.message_event.set()
        self.transport.close()

    def _lingers(self) -> bool:
        """Whether the client may still be sending, so that closing at once could cost it the answer."""
        if self.conn.their_state is h11.IDLE:
            is_sending = bool(self.conn.trailing_data[0])
        else:
            is_sending = self.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if is_sending:
            self.room.wait(self)
            self.flow.resume_reading()  # what comes now is thrown away
            self._expect(LINGER_S, self._inner.close)
        return is_sending

    def _expect(self, seconds: float, late: Callable[[], None]) -> None:
        """Call `late` after a time, counted from when it was first expected."""
        if self._waits_for == late:
            return
        self._expect_nothing()
        self._waits_for = late
        self._late = self.loop.call_later(seconds, late)

    def _expect_nothing(self) -> None:
        self._waits_for = None
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _watch_answer(self) -> None:
        """Start the time of an answer. Those of a client that lags behind have the time of the first of them."""
        if self._unread is not None and self._inner.get_write_buffer_size():
            return
        self._stop_unread()
        self._unread = self.loop.call_later(UNREAD_LIMIT_S, self._answer_is_stuck)

    def _answer_is_stuck(self) -> None:
        if self._inner.get_write_buffer_size():
            self._inner.abort()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _end_unless_accepted(transport: asyncio.Transport) -> None:
    if not getattr(transport.get_protocol(), "handshake_complete", True):
        transport.abort()
