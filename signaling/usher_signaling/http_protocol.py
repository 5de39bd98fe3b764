"""uvicorn's HTTP/1.1 protocol with the bounds it lacks: on connections, on the time of a header, and JSON for its 400.

uvicorn arms no timer before the first request, and takes the keep-alive timer off with the first byte of the next one,
so a client that sends a header byte by byte would hold its connection for ever.
"""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from usher_core.internal_api import error_answer


def bounded_protocol(header_deadline: float, max_connections: int) -> type[H11Protocol]:
    """Return the protocol class. `header_deadline` in seconds, from the connection or the first byte of a request."""

    class BoundedProtocol(H11Protocol):
        _header_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                transport.close()
            self._header_timer = self.loop.call_later(header_deadline, transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_header_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_header_timer()
            elif self._header_timer is None and not self.transport.is_closing():
                self._header_timer = self.loop.call_later(header_deadline, self.transport.close)

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

    return BoundedProtocol
