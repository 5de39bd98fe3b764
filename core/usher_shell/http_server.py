"""uvicorn inside a program's own event loop, on a socket of its own, with the signals left to the program."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Generator
from typing import Any

import structlog
import uvicorn

from usher_core.errors import LocalError
from usher_core.ids import join_host_port, split_host_port
from usher_shell.http_protocol import UNREAD_LIMIT_S, Room, bounded_protocol

log = structlog.get_logger()

BACKLOG = 1024
"""Connections that the kernel keeps for us while we are busy."""
ACCEPTS = 16
"""Connections taken at a time, so that those before them are served or closed first."""
ACCEPT_PAUSE_S = 0.1
OUT_OF_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
LOG_EVERY_S = 10.0
ENDED_WITHIN_S = 1.0
"""What is left of requests and of the application after a second signal has this time to end."""
STARTED_WITHIN_S = 10.0
MAX_CONNECTIONS = 1024
HEADER_DEADLINE_S = 5.0


class _Server(uvicorn.Server):
    """uvicorn, but with a door of our own instead of the event loop's.

    asyncio's stops for a second when there are no descriptors, and writes as many lines as its backlog is long.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket, room: Room) -> None:
        super().__init__(config)
        self._listener = listener
        self._room = room
        self._arriving: set[asyncio.Task[Any]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0
        self._unsaid = 0

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone: the program's main gives them their meaning."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start without sockets, then open the door."""
        await super().startup(sockets=[])
        self._open()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut the door and finish; after a second signal give up what is left, but in order."""
        asyncio.get_running_loop().remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        self._listener.close()
        await super().shutdown([])
        left = set(self._arriving)
        if self.force_exit:
            left |= self.server_state.tasks
        for task in left:
            task.cancel()
        last = [self.lifespan.shutdown()] if self.force_exit else []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDED_WITHIN_S):
                await asyncio.gather(*last, *left, return_exceptions=True)
        # Who was given up, or does not close after our close, would stay until the loop is collected.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # they are closed in the loop's next round

    def note(self, event: str, **values: Any) -> None:
        """Log a warning that may come in thousands: one in `LOG_EVERY_S`."""
        now = asyncio.get_running_loop().time()
        self._unsaid += 1
        if now >= self._quiet_until:
            log.warning(event, times=self._unsaid, **values)
            self._quiet_until, self._unsaid = now + LOG_EVERY_S, 0

    def _open(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
                self.note("no descriptor for a new connection; one that waits is closed", error=error.strerror)
                self._room.evict()
                loop.remove_reader(self._listener)
                self._pause = loop.call_later(ACCEPT_PAUSE_S, self._open)
                return
            accepted.setblocking(False)
            task = loop.create_task(self._take(accepted))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _take(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, accepted)
        except OSError:  # it has gone again
            accepted.close()
        except asyncio.CancelledError:  # we end
            accepted.close()
            raise

    def _protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


class HttpServer:
    """An HTTP server. Binds at once, so that port 0 is a number before anything is promised.

    Args:
        app: the ASGI application.
        address: HOST:PORT; port 0 lets the system choose.
        flag: the flag that the address came from, for the error.
        max_connections: at a time; see http_protocol.py for what happens beyond.
        header_deadline: seconds until a request's header has to be there, and again until its body.
        on_evicted: called for each connection that had to make room for another.
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
        on_evicted: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        self._flag = flag
        self._socket = _listen(*split_host_port(address), flag)
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://{join_host_port(host, port)}"
        self._on_evicted = on_evicted
        room = Room(max_connections, header_deadline, self._evicted)
        bounded: dict[str, Any] = {
            "http": bounded_protocol(room),
            "log_config": None,
            "access_log": False,
            # Not warnings: it writes one for each header that is none, so strangers could fill the log.
            "log_level": "error",
            "server_header": False,
            # Behind a proxy the client's address is not ours to believe.
            "proxy_headers": False,
        }
        self._server = _Server(uvicorn.Config(app, **bounded, **options), self._socket, room)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> asyncio.Task[None]:
        """Return the serving task once requests are taken. Raises LocalError when that fails."""
        self._serving = asyncio.create_task(self._server.serve())
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

    def _evicted(self) -> None:
        self._on_evicted()
        self._server.note("connections are full; one that waits without a request makes room", http=self.url)

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
