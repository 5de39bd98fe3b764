"""Serves the admin HTTP with uvicorn inside our own event loop, and leaves signals to us."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from usher_core.errors import LocalError
from usher_core.ids import join_host_port, split_host_port

BACKLOG = 128
MAX_CONNECTIONS = 256


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone: `main` gives them their meaning."""
        yield


class AdminServer:
    """An HTTP server on its own socket. Raises LocalError when the address cannot be bound."""

    def __init__(self, app: ASGIApp, address: str) -> None:
        self._socket = _bind(*split_host_port(address))
        self._server = _Server(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", limit_concurrency=MAX_CONNECTIONS)
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{join_host_port(host, port)}"

    async def serve(self) -> None:
        """Serve until `stop`."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Ask `serve` to return, without waiting for open connections."""
        self._server.force_exit = True
        self._server.should_exit = True


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise LocalError(
            f"cannot serve the admin HTTP on {join_host_port(host, port)}: {error.strerror}",
            "choose another --admin HOST:PORT",
        ) from None
