"""Side-bands: a caller's WebSocket, joined with the one that the owner of the call has for observers.

Rules:
* Text messages are handed on both ways as they are. What they may be is the owner's affair, and so are limits on size
  and rate: it closes with a code and a reason, and the caller gets the same.
* A caller who takes nothing for `SLOW_S` is dropped; the owner drops it earlier when much happens in its call.
* An owner that is gone without a word: 1011 `call_gone`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import EXTERNAL_CLOSE_CODES

from usher_signaling.errors import unavailable

MAX_MESSAGE = 262_144
"""Bytes of a message from a caller: what the channel of a call takes."""
SLOW_S = 10.0
CLOSE_S = 1.0

Close = tuple[int, str]
CALL_GONE: Close = (1011, "call_gone")
NOT_TEXT: Close = (1003, "text_expected")
TOO_SLOW: Close = (1013, "too_slow")


class SideBandPlaces:
    """How many side-bands this replica has, and may have."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Hold a place. Raises ApiError 503 when there is none."""
        if self.taken >= self._limit:
            raise unavailable("too_many_requests", "Too many side-bands are open here. Try again soon.")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


async def join(caller: WebSocket, owner: ClientConnection) -> Close | None:
    """Hand on messages until one side ends, and close both. `caller` is accepted.

    Return how the caller was told to close, None when it left by itself.
    """
    down = asyncio.create_task(_copy_down(owner, caller))
    up = asyncio.create_task(_copy_up(caller, owner))
    try:
        await asyncio.wait((down, up), return_when=asyncio.FIRST_COMPLETED)
        close = (down if down.done() else up).result()
    finally:
        for task in (down, up):
            task.cancel()
        await asyncio.gather(down, up, return_exceptions=True)
        await leave(owner)
    if close is not None:
        with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            # Behind a caller who does not read a close would wait for ever.
            async with asyncio.timeout(CLOSE_S):
                await caller.close(*close)
    return close


async def leave(owner: ClientConnection) -> None:
    """Close the connection to an owner, and cut it where nobody waits for that."""
    try:
        await owner.close()
    finally:
        owner.transport.abort()


async def _copy_down(owner: ClientConnection, caller: WebSocket) -> Close | None:
    try:
        while True:
            message = await owner.recv()
            async with asyncio.timeout(SLOW_S):
                await (caller.send_text(message) if isinstance(message, str) else caller.send_bytes(message))
    except ConnectionClosed:
        code = owner.close_code or 0
        # Others than these stand for a connection that was cut, and may not be sent (RFC 6455 section 7.4.1).
        return (code, owner.close_reason or "") if code in EXTERNAL_CLOSE_CODES else CALL_GONE
    except TimeoutError:
        return TOO_SLOW
    except (WebSocketDisconnect, RuntimeError):  # RuntimeError: it left while we were about to send
        return None


async def _copy_up(caller: WebSocket, owner: ClientConnection) -> Close | None:
    while (message := await caller.receive())["type"] == "websocket.receive":
        text = message.get("text")
        if text is None:
            return NOT_TEXT
        try:
            await owner.send(text)
        except ConnectionClosed:
            # The other direction knows why, once it has handed on what came before.
            await asyncio.Event().wait()
    return None
