"""uvicorn inside a program's own event loop, on a socket of its own, with the signals left to the program."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Any

import uvicorn

from usher_core.errors import LocalError
from usher_core.ids import join_host_port, split_host_port
from usher_shell.http_protocol import bounded_protocol

BACKLOG = 1024
STARTED_WITHIN_S = 10.0
MAX_CONNECTIONS = 1024
HEADER_DEADLINE_S = 5.0
UNREAD_LIMIT_S = 30.0
"""A peer that takes nothing of what waits for it is cut off after this time."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone: the program's main gives them their meaning."""
        yield


class HttpServer:
    """An HTTP server. Binds at once, so that port 0 is a number before anything is promised.

    Args:
        app: the ASGI application.
        address: HOST:PORT; port 0 lets the system choose.
        flag: the flag that the address came from, for the error.
        max_connections: at a time; see http_protocol.py for what happens beyond.
        header_deadline: seconds until a request's header has to be there.
        options: further settings of uvicorn.

    Raises LocalError when the address can't be had.
    """

    def __init__(
        self,
        app: Any,
        address: str,
        flag: str,
        *,
        max_connections: int = MAX_CONNECTIONS,
        header_deadline: float = HEADER_DEADLINE_S,
        **options: Any,
    ) -> None:
        self._flag = flag
        self._socket = _listen(*split_host_port(address), flag)
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://{join_host_port(host, port)}"
        bounded: dict[str, Any] = {
            "http": bounded_protocol(header_deadline, max_connections),
            "log_config": None,
            "access_log": False,
            "log_level": "warning",
            "server_header": False,
            # Behind a proxy the client's address is not ours to believe.
            "proxy_headers": False,
        }
        self._server = _Server(uvicorn.Config(app, backlog=BACKLOG, **bounded, **options))
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> asyncio.Task[None]:
        """Return the serving task once requests are taken. Raises LocalError when that fails."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        try:
            async with asyncio.timeout(STARTED_WITHIN_S):
                await self._started(self._serving)
        except TimeoutError:
            self._serving.cancel()
            raise LocalError(
                f"the HTTP server of {self._flag} did not start within {STARTED_WITHIN_S:g} s",
                f"the log above may tell why; is this machine overloaded, or {self._flag} a slow network's address?",
            ) from None
        return self._serving

    async def _started(self, serving: asyncio.Task[None]) -> None:
        while not self._server.started:
            if serving.done():
                await serving
                raise LocalError(f"the HTTP server of {self._flag} ended by itself", "the log above tells why")
            await asyncio.sleep(0.005)

    def stop_soon(self, *, at_once: bool = False) -> None:
        """Take no more requests and let the serving task end; `at_once` gives up those under way."""
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or at_once

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop and wait for the end."""
        self.stop_soon(at_once=at_once)
        if self._serving is not None:
            await self._serving
        self._socket.close()


def _listen(host: str, port: int, flag: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise LocalError(f"{flag} {join_host_port(host, port)} is no address of this host: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it. Without it each answer of two writes waits 40 ms for the caller's delayed ACK;
        # event loops set it only where they see that a socket is TCP.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; inherited, too
            # uvicorn closes a connection once all is sent, and a peer that reads nothing would hold it for ever.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNREAD_LIMIT_S * 1000))
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise LocalError(
            f"can't serve HTTP on {join_host_port(host, port)}: {error.strerror}", f"choose another {flag} HOST:PORT"
        ) from None
    listener.setblocking(False)
    return listener
