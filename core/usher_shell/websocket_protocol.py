"""uvicorn's WebSocket protocol, which takes an HTTP answer in place of the handshake for what it is."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A refusal is no error of ours: the application logs it, and strangers can't fill the log with it."""

    async def run_asgi(self) -> None:
        """Serve one WebSocket."""
        app = self.app

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            if self.close_sent and not self.handshake_complete:
                raise ClientDisconnected  # uvicorn has sent the answer, and would log that there was no handshake

        self.app = serve
        await super().run_asgi()
