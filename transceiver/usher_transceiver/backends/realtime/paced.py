"""A WebSocket whose server can hold up no other call: what it sends is read a little at a time.

The library reads all that a socket has, 256 KB, in one go. As frames of 2 bytes, which cost as much to read as large
ones, that stops the loop that carries everybody's audio for a second; and the answers to a flood of pings, which nobody
takes, fill the memory. Rules:
* At most `MAX_AT_ONCE` bytes are read between two turns of the loop; the socket is not read while more of them wait.
* A server that does not take `MAX_UNSENT` bytes of answers is cut off.
* What was read and not taken is a share of what all calls may hold (budget.py). While there is no room nothing is read;
  a server for which there is none for `ROOM_LIMIT_S`, while nothing of what it said before is played or taken either,
  is cut off: half a message can't be played to make some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.frames import DATA_OPCODES, Frame

from usher_transceiver.backends.realtime.budget import Share

MAX_AT_ONCE = 2_048
"""1,024 empty frames, as long as a frame of audio lasts at most; an ordinary delta takes eight turns."""
MAX_UNSENT = 1 << 20
"""More than what we send may be: that is 262 KB and what the library keeps before it waits."""

MAX_MESSAGE = 4 << 20
"""Of the server: 65 s of audio. Reading one of that size takes about as long as half a frame lasts."""
ROOM_LIMIT_S, ROOM_LOOK_S = 30.0, 0.1


class PacedConnection(ClientConnection):
    """See the module. `create_connection` of the library's `connect`, with more given.

    Args:
        share: of what all calls hold.
        waiting_bytes: what was taken of this server and neither played nor passed on yet.
    """

    def __init__(self, *arguments: Any, share: Share, waiting_bytes: Callable[[], int], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._share = share
        self._waiting_bytes = waiting_bytes
        self._unread = bytearray()
        self._parsing = 0
        """Bytes of a frame of which not all has come."""
        self._untaken = 0
        """Bytes of frames that nobody has taken."""
        self._no_room_since: float | None = None
        """Or since when nothing was played."""
        self._waited = 0
        """Of `waiting_bytes`, at the last look for room."""
        self._is_forgotten = False
        self._has_ended = False

    async def take(self) -> str | bytes:
        """Return the next message. Raises ConnectionClosed."""
        message = await self.recv()
        self._untaken -= len(message if isinstance(message, bytes) or message.isascii() else message.encode())
        self._account()
        return message

    def forget(self) -> None:
        """Nobody takes what was read and not taken."""
        self._share.set(0)
        self._is_forgotten = True

    def process_event(self, event: Any) -> None:
        self._parsing = 0
        if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            self._untaken += len(event.data)
        super().process_event(event)

    def _account(self) -> None:
        if not self._is_forgotten:
            self._share.set(len(self._unread) + self._parsing + self._untaken)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.recv_messages.resume = self._resume

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._account()
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
        self._parsing = 0
        self._account()
        super().connection_lost(exc)

    def _read_some(self) -> None:
        if self._unread and not self._share.has_room():
            self._wait_for_room()
            return
        self._no_room_since = None
        some = bytes(self._unread[:MAX_AT_ONCE])
        del self._unread[:MAX_AT_ONCE]
        if some:
            # Beyond a message it is an answer to the handshake that the library does not keep.
            self._parsing = min(self._parsing + len(some), MAX_MESSAGE)
            super().data_received(some)
            self._account()
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

    def _wait_for_room(self) -> None:
        now, waiting = self.loop.time(), self._waiting_bytes()
        if self._no_room_since is None or waiting < self._waited:
            self._no_room_since = now
        self._waited = waiting
        if now - self._no_room_since < ROOM_LIMIT_S:
            self.loop.call_later(ROOM_LOOK_S, self._read_some)
        else:
            self._unread.clear()
            self.transport.abort()

    def _resume(self) -> None:
        if not self._unread and not self.transport.is_closing():
            self.transport.resume_reading()
