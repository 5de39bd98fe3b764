"""`usher signaling`: serve until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from signal import SIGINT, SIGTERM

import structlog
import uvicorn

from usher_core import logs
from usher_core.errors import LocalError
from usher_core.ids import join_host_port
from usher_core.settings import announce
from usher_signaling.app import create_app
from usher_signaling.http_protocol import bounded_protocol
from usher_signaling.settings import SignalingSettings

log = structlog.get_logger()

BACKLOG = 1024


class AnnouncingServer(uvicorn.Server):
    """Says on stdout when it serves, and ends with status 0 on the first signal; a second one ends it at once."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving, then print the announce line."""
        await super().startup(sockets)
        print(announce("signaling", http=self._url), flush=True)  # noqa: T201 - what usher up waits for

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT. uvicorn's own way raises the signal again afterwards, and so its exit status."""
        loop = asyncio.get_running_loop()
        for number in (SIGINT, SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (SIGINT, SIGTERM):
                loop.remove_signal_handler(number)


def run(settings: SignalingSettings) -> None:
    """Serve. Returns after a signal. Raises LocalError when a file is wrong or the address can't be had."""
    logs.configure(settings.log_format, settings.log_level)
    app = create_app(settings)
    listener = _listen(*settings.http_address)
    host, port = listener.getsockname()[:2]
    if settings.is_keyless:
        log.warning("no API key is asked for: only this machine may call", http=join_host_port(host, port))
    config = uvicorn.Config(
        app,
        http=bounded_protocol(settings.body_deadline, settings.max_connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        log_level="warning",  # its life is told by the announce line and by our own log
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
        # Behind a proxy the client's address is not ours to believe.
        proxy_headers=False,
    )
    AnnouncingServer(config, f"http://{join_host_port(host, port)}").run([listener])


def _listen(host: str, port: int) -> socket.socket:
    """Bind before anything is promised, so that port 0 becomes a number. Raises LocalError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise LocalError(
            f"can't serve HTTP on {join_host_port(host, port)}: {error.strerror}", "choose another --http HOST:PORT"
        ) from None
    listener.setblocking(False)
    return listener
