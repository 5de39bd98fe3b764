"""Somebody looks on at a call's events over a WebSocket."""

from __future__ import annotations

import asyncio

from fastapi import WebSocket, WebSocketDisconnect

from usher_transceiver.session import Session

MAX_QUEUED = 256
"""Events that wait for a slow observer; then it is dropped."""
TRY_AGAIN_LATER = 1013
GOING_AWAY = 1001


class SocketObserver:
    """Copies events to a WebSocket and hands back what it sends (`events.Observer`)."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._queue: asyncio.Queue[str | None] = asyncio.Queue(MAX_QUEUED + 1)
        self._reason = ""

    def offer(self, text: str) -> bool:
        """Take an event; False when too many wait."""
        if self._queue.qsize() >= MAX_QUEUED:
            return False
        self._queue.put_nowait(text)
        return True

    def dropped(self, reason: str) -> None:
        """Close once what waits is sent, or at once when nothing moves."""
        self._reason = self._reason or reason
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    async def serve(self, session: Session) -> None:
        """Run until either side ends."""
        if not session.events.observe(self):
            await self._socket.close(TRY_AGAIN_LATER, "too_many_observers")
            return
        reader = asyncio.create_task(self._read(session))
        writer = asyncio.create_task(self._write())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            session.events.leave(self)
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self, session: Session) -> None:
        try:
            while True:
                session.on_message(await self._socket.receive_text())
        except (WebSocketDisconnect, KeyError):
            return  # KeyError: a binary message, which an event never is.

    async def _write(self) -> None:
        while True:
            text = await self._queue.get()
            if text is None:
                await self._socket.close(GOING_AWAY, self._reason[:100])
                return
            await self._socket.send_text(text)
