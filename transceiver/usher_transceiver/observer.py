"""Somebody looks on at a call's events over a WebSocket.

Rules:
* An observer never makes a call wait. One that reads too slowly is dropped: 1013 `too_slow`.
* One that sends too much is dropped: 1008 `too_many_events`. The loop that reads it carries everybody's audio. It is
  dropped, and the call goes on, also where a client that did the same would lose its call.
* When the call ends it gets what still waits, and then 1000 with the reason of the end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from fastapi import WebSocket, WebSocketDisconnect

from usher_core.event_policy import EventPolicy
from usher_transceiver.rate import TokenBucket
from usher_transceiver.session import Session

MAX_QUEUED = 256
MAX_QUEUED_BYTES = 1_048_576
"""What waits for a slow observer; beyond it is dropped. Four of the largest events."""
MAX_EVENTS_PER_SECOND = 100
MAX_BYTES_PER_SECOND = 1_048_576
FLUSH_LIMIT_S = 5.0
"""From the end of the call until what waits has to be sent."""
CLOSE_LIMIT_S = 1.0

CALL_ENDED = (1000, "")
NOT_TEXT = (1003, "text_expected")
TOO_MANY_EVENTS = (1008, "too_many_events")
TOO_SLOW = (1013, "too_slow")


class SocketObserver:
    """Copies events to a WebSocket and hands back what it sends (`audience.Observer`).

    Args:
        socket: not accepted yet.
        clock: seconds, monotonic.
        dropped: counts observers that were dropped, by reason.
        policy: of what it may send.
    """

    def __init__(
        self, socket: WebSocket, clock: Callable[[], float], dropped: Counter[str], policy: EventPolicy
    ) -> None:
        self._policy = policy
        self._socket = socket
        self._clock = clock
        self._counts = dropped
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._queued_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._close = CALL_ENDED
        self._events = TokenBucket(MAX_EVENTS_PER_SECOND)
        self._bytes = TokenBucket(MAX_BYTES_PER_SECOND)

    def offer(self, text: str) -> bool:
        """Take an event; False when too many wait."""
        if self._queue.qsize() >= MAX_QUEUED or self._queued_bytes + len(text) > MAX_QUEUED_BYTES:
            return False
        self._queued_bytes += len(text)
        self._queue.put_nowait(text)
        return True

    def dropped(self, reason: str) -> None:
        """Close: at once when it is too slow, else once what waits is sent."""
        is_slow = reason == TOO_SLOW[1]
        self._close = TOO_SLOW if is_slow else (CALL_ENDED[0], reason)
        self._queue.put_nowait(None)
        if is_slow:
            self._counts[reason] += 1
        if self._writer is not None:
            asyncio.get_running_loop().call_later(0 if is_slow else FLUSH_LIMIT_S, self._writer.cancel)

    async def serve(self, session: Session) -> None:
        """Run until either side ends. The observer is one of the session's already."""
        reader: asyncio.Task[bool] | None = None
        try:
            await self._socket.accept()
            reader = asyncio.create_task(self._read(session))
            self._writer = asyncio.create_task(self._write())
            await asyncio.wait((reader, self._writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            session.events.leave(self)
            for task in filter(None, (reader, self._writer)):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        # The reader knows whether the other side has closed; then there is nobody to tell.
        if reader.cancelled() or (reader.exception() is None and reader.result()):
            await self._say_why()

    async def _say_why(self) -> None:
        code, reason = self._close
        try:
            # Where nothing moves, the close would wait with the rest.
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self._socket.close(code, reason)
        except (TimeoutError, RuntimeError, WebSocketDisconnect):
            return

    async def _read(self, session: Session) -> bool:
        """Take what it sends; True when we are the ones who close."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return False
            text = message.get("text")
            if text is None:
                self._close = NOT_TEXT
                return True
            now = self._clock()
            is_few = self._events.take(now) and self._bytes.take(now, len(text))
            if not (is_few and session.take_message(text, self._policy)):
                self._close = TOO_MANY_EVENTS
                self._counts[TOO_MANY_EVENTS[1]] += 1
                return True

    async def _write(self) -> None:
        while (text := await self._queue.get()) is not None:
            self._queued_bytes -= len(text)
            await self._socket.send_text(text)
