"""uvicorn's HTTP/1.1 protocol with the bounds it lacks: on connections, on the time of a header, and JSON for its 400.

uvicorn arms no timer before the first request, and takes the keep-alive timer off with the first byte of the next one,
so a client that sends a header byte by byte would hold its connection for ever.

Rules, when there are as many connections as there may be:
* The one that has waited longest without a whole request makes room for the new one.
* Where all are busy, a few more are taken, but only probes are answered on them: a full server is alive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from usher_core.internal_api import error_answer

PROBES = frozenset(("/livez", "/readyz"))
MAX_SPARE = 16
"""Connections beyond the bound, for probes."""

App = Callable[[Any, Any, Any], Awaitable[None]]


def bounded_protocol(header_deadline: float, max_connections: int) -> type[H11Protocol]:
    """Return the protocol class. `header_deadline` in seconds, from the connection or the first byte of a request."""
    bounds = {"header_deadline": header_deadline, "max_connections": max_connections, "waiting": {}}
    return type("BoundedProtocol", (BoundedProtocol,), bounds)


class BoundedProtocol(H11Protocol):
    """See the module; `bounded_protocol` gives it its bounds."""

    header_deadline: ClassVar[float]
    max_connections: ClassVar[int]
    waiting: ClassVar[dict[BoundedProtocol, None]]
    """Those without a whole request, in the order they began to wait."""

    _header_timer: asyncio.TimerHandle | None = None
    _is_spare = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._make_room()
        self.waiting[self] = None
        self._header_timer = self.loop.call_later(self.header_deadline, transport.close)

    def _make_room(self) -> None:
        longest = next(iter(self.waiting), None)
        if longest is not None:
            del self.waiting[longest]
            longest.transport.close()
        elif len(self.connections) > self.max_connections + MAX_SPARE:
            self.transport.close()
        if longest is None or longest._is_spare:  # noqa: SLF001 - one of us
            self._is_spare = True
            self.app = _only_probes(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_header_timer()
            self.waiting.pop(self, None)
        elif self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(self.header_deadline, self.transport.close)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.waiting[self] = None

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop_header_timer()
        self.waiting.pop(self, None)
        if self._is_spare:
            self.transport.close()
            return
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        body = json.dumps(error_answer("invalid_request_error", "bad_http", msg)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        events = (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        for event in events:
            if output := self.conn.send(event):
                self.transport.write(output)
        self.transport.close()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def _only_probes(app: Any) -> App:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await (app if scope["path"] in PROBES else service_unavailable)(scope, receive, send)

    return answer
