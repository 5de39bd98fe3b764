"""`usher transceiver`: puts socket, sessions and HTTP together in one loop, and ends them in order.

The first SIGTERM or SIGINT drains: no new calls, running ones go on until they end or `--drain-deadline`. The second
one ends every call at once. Either way each client that is left gets SCTP abort and close_notify.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import socket
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import structlog
import uvicorn
import uvloop

from usher_core.errors import LocalError
from usher_core.ids import join_host_port, split_host_port
from usher_core.logs import configure
from usher_core.settings import announce
from usher_transceiver.certificate import Certificate
from usher_transceiver.hop_keys import TransceiverKeys
from usher_transceiver.hop_socket import HopSocket
from usher_transceiver.internal_api import make_app
from usher_transceiver.media.codec import EncoderSettings, load_codec
from usher_transceiver.media.ticker import Ticker
from usher_transceiver.metrics import TransceiverCollector, make_metrics
from usher_transceiver.mux import Mux
from usher_transceiver.session import EndReason, Limits
from usher_transceiver.sessions import RegistrySettings, SessionRegistry
from usher_transceiver.settings import TransceiverSettings

HOUSEKEEPING_S = 1.0
HEARTBEAT_LIMIT_S = 10.0
"""Seconds without a datagram to ourselves after which the hop socket counts as stuck."""
MAX_EVENT_BYTES = 262_144

log = structlog.get_logger()


def run(settings: TransceiverSettings) -> None:
    """Run a transceiver until it is told to end. Raises LocalError when it can't begin."""
    configure(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop, debug=settings.debug) as runner:
        runner.run(_run(settings))


async def _run(settings: TransceiverSettings) -> None:
    transceiver = Transceiver(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, transceiver.on_signal)
    await transceiver.start()
    # What lives now lives for good; the collector need not look at it again while audio waits.
    gc.collect()
    gc.freeze()
    print(transceiver.announcement, flush=True)  # noqa: T201 - the one line that other programs read
    await transceiver.serve()


class Transceiver:
    """One transceiver in a running loop. Raises LocalError when its files or addresses can't be used."""

    def __init__(self, settings: TransceiverSettings) -> None:
        self._settings = settings
        self._clock = asyncio.get_running_loop().time
        route = settings.route
        token = _read_token(settings.token_file)
        self._keys = TransceiverKeys(settings.keys_file, route, time.time)
        self._socket = HopSocket(*split_host_port(settings.udp), settings.socket_buffer, self._clock)
        self._mux = Mux(route, self._keys, self._socket.send, self._clock, time.time)
        self._ticker = Ticker()
        codec = load_codec(settings.opus_codec)
        self.sessions = SessionRegistry(
            route, self._keys, self._mux, self._ticker, codec, Certificate(), _registry_settings(settings), self._clock
        )
        collector = TransceiverCollector(self.sessions, self._mux, self._socket, self._ticker, self._keys, codec.name)
        app = make_app(self.sessions, token, self._clock, make_metrics(collector), self.is_live)
        self._http = _HttpServer(app, settings.http)
        self._signals = 0
        self._told_to_end = asyncio.Event()
        self._told_twice = asyncio.Event()

    @property
    def announcement(self) -> str:
        """The line that says where this transceiver can be reached."""
        return announce("transceiver", udp=self.udp, http=self._http.url, pod=self._settings.pod)

    @property
    def udp(self) -> str:
        """HOST:PORT of the hop socket."""
        return join_host_port(*self._socket.address)

    @property
    def http(self) -> str:
        """Base URL of the HTTP side."""
        return self._http.url

    @property
    def mux(self) -> Mux:
        """For tests and metrics: the counters."""
        return self._mux

    def is_live(self) -> bool:
        """Whether the loop and the hop socket go round."""
        return self._clock() - self._socket.last_heartbeat < HEARTBEAT_LIMIT_S

    def on_signal(self) -> None:
        """Drain at the first signal, end at once at the second."""
        self._signals += 1
        log.info("told to end", signals=self._signals, sessions=len(self.sessions))
        self.sessions.drain()
        (self._told_to_end if self._signals == 1 else self._told_twice).set()

    async def start(self) -> None:
        """Begin to work: packets and requests are handled when this returns."""
        self._socket.start(self._mux.on_datagram)
        self._socket.beat()
        self._housekeeping = asyncio.create_task(self._keep_house())
        await self._http.start()
        log.info("ready", udp=self.udp, http=self.http, route=str(self._settings.route))

    async def serve(self) -> None:
        """Work until told to end, then drain and end."""
        await self._told_to_end.wait()
        reason = await self._drain()
        await self.stop(reason)

    async def _drain(self) -> EndReason:
        empty = asyncio.create_task(self.sessions.wait_empty())
        twice = asyncio.create_task(self._told_twice.wait())
        done, waiting = await asyncio.wait(
            (empty, twice), timeout=self._settings.drain_deadline, return_when=asyncio.FIRST_COMPLETED
        )
        for task in waiting:
            task.cancel()
        return EndReason.SHUTDOWN if twice in done else EndReason.DRAIN_DEADLINE

    async def stop(self, reason: EndReason) -> None:
        """End all sessions, tell their clients, and let everything go."""
        self.sessions.drain()
        left = len(self.sessions)
        await self.sessions.end_all(reason)
        self._housekeeping.cancel()
        await self._http.stop()
        self._ticker.stop()
        self._socket.close()
        log.info("ended", calls_cut=left, reason=reason.value if left else "drained")

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self._keys.refresh()
            self._socket.beat()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone: they are the transceiver's."""
        yield


class _HttpServer:
    """uvicorn in our loop, on a socket of our own, so that port 0 works."""

    def __init__(self, app: Any, where: str) -> None:
        host, port = split_host_port(where)
        try:
            family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
            self._listening = socket.create_server(address[:2], family=family, backlog=1024)
        except OSError as error:
            raise LocalError(f"--http {where} can't be used: {error.strerror}", "is another process there?") from None
        # Accepted sockets inherit it. asyncio sets it only where a socket names its protocol, which this one does
        # not; without it each answer of two writes waits 40 ms for the caller's delayed ACK.
        self._listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound = self._listening.getsockname()
        self.url = f"http://{join_host_port(bound[0], bound[1])}"
        config = uvicorn.Config(
            app,
            ws="websockets-sansio",
            ws_max_size=MAX_EVENT_BYTES,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            limit_concurrency=2048,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve([self._listening]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise LocalError("the HTTP server ended by itself", "the log above tells why")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
        self._listening.close()


def _registry_settings(settings: TransceiverSettings) -> RegistrySettings:
    return RegistrySettings(
        max_sessions=settings.max_sessions,
        backend=settings.backend,
        backend_config=_read_backend_config(settings.backend_config_file),
        encoder=EncoderSettings(bitrate=settings.opus_bitrate, complexity=settings.opus_complexity),
        limits=Limits(settings.session_max_age, settings.idle_timeout, settings.backend_start_limit),
    )


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"the token file {path} can't be read: {error}", "see --token-file") from None
    if len(token) < 16:
        raise LocalError(f"the token in {path} has fewer than 16 characters", "make one with `usher keys new`")
    return token


def _read_backend_config(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LocalError(f"the backend configuration {path} can't be read: {error}") from None
    if not isinstance(config, dict):
        raise LocalError(f"the backend configuration {path} is no JSON object")
    return config
