"""A WebSocket whose server can hold up no other call: what it sends is read a little at a time.

The library reads all that a socket has, 256 KB, in one go. As frames of 2 bytes, which cost as much to read as large
ones, that stops the loop that carries everybody's audio for a second; and the answers to a flood of pings, which nobody
takes, fill the memory. Rules:
* At most `MAX_AT_ONCE` bytes are read between two turns of the loop; the socket is not read while more of them wait.
* A server that does not take `MAX_UNSENT` bytes of answers is cut off.
"""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.client import ClientConnection

MAX_AT_ONCE = 2_048
"""1,024 empty frames, as long as a frame of audio lasts at most; an ordinary delta takes eight turns."""
MAX_UNSENT = 1 << 20
"""More than what we send may be: that is 262 KB and what the library keeps before it waits."""


class PacedConnection(ClientConnection):
    """See the module. `create_connection` of the library's `connect`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unread = bytearray()
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.recv_messages.resume = self._resume

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) == len(data):
            self._read_some()
        if self._unread and not self.transport.is_closing():
            self.transport.pause_reading()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # the library's never keeps the transport open
        self._has_ended = bool(self._unread)
        if not self._has_ended:
            super().eof_received()
        return self._has_ended

    def connection_lost(self, exc: Exception | None) -> None:
        rest, self._unread = bytes(self._unread), bytearray()
        if rest and self._has_ended:
            # Its last words: over TLS nothing holds up the end until they are read.
            super().data_received(rest)
        super().connection_lost(exc)

    def _read_some(self) -> None:
        some = bytes(self._unread[:MAX_AT_ONCE])
        del self._unread[:MAX_AT_ONCE]
        if some:
            super().data_received(some)
        if self.transport.get_write_buffer_size() > MAX_UNSENT:
            self._unread.clear()
            self.transport.abort()
        elif self._unread:
            self.loop.call_soon(self._read_some)
        elif self._has_ended:
            super().eof_received()
            self.transport.close()
        elif not self.recv_messages.paused:
            self._resume()

    def _resume(self) -> None:
        if not self._unread and not self.transport.is_closing():
            self.transport.resume_reading()
