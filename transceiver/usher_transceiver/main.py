"""`usher transceiver`: puts socket, sessions and HTTP together in one loop, and ends them in order.

The first SIGTERM or SIGINT drains: no new calls, running ones go on until they end or `--drain-deadline`. The second
one ends every call at once. Either way each client that is left gets SCTP abort and close_notify.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import time
from pathlib import Path
from typing import Any

import structlog
import uvloop

from usher_core.errors import LocalError
from usher_core.ids import join_host_port, split_host_port
from usher_core.internal_api import parse_token
from usher_core.logs import configure
from usher_core.settings import announce
from usher_shell.http_server import HttpServer
from usher_shell.watched_file import WatchedFile
from usher_shell.websocket_protocol import WebSocketProtocol
from usher_transceiver.backends.realtime.backend import RealtimeBackends
from usher_transceiver.backends.realtime.metrics import RealtimeCollector
from usher_transceiver.backends.realtime.upstream import NAME as REALTIME
from usher_transceiver.certificate import Certificate
from usher_transceiver.hop_socket import HopSocket
from usher_transceiver.internal_api import make_app
from usher_transceiver.media.choose_codec import load_codec
from usher_transceiver.media.codec import EncoderSettings
from usher_transceiver.media.ticker import Ticker
from usher_transceiver.metrics import TransceiverCollector, make_metrics
from usher_transceiver.mux import Mux
from usher_transceiver.process_load import ProcessLoad
from usher_transceiver.session import EndReason, Limits
from usher_transceiver.sessions import RegistrySettings, SessionRegistry
from usher_transceiver.settings import TransceiverSettings
from usher_transceiver.transceiver_keys import TransceiverKeys
from usher_transceiver.watched_tasks import watch_tasks

HOUSEKEEPING_S = 1.0
HEARTBEAT_LIMIT_S = 10.0
"""Seconds without a datagram to ourselves after which the hop socket counts as stuck."""
GARBAGE_CALLS = 20
"""Ended calls after which Python's collector is asked to look. Their objects hold each other, and 200 kB of codec, TLS
and SRTP that it knows nothing of: by itself it counts objects, and would wait for hundreds of calls. A look at what a
hundred live calls hold takes it a millisecond."""
MAX_EVENT_BYTES = 262_144
MAX_CONNECTIONS = 2048

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
        # Not the loop's: that one stands still during a callback and counts whole ms, so a packet could be newer than
        # the tick after it. All that compares times gets this one, the ticker too.
        self._clock = time.monotonic
        realtime = _realtime(settings)
        route = settings.route
        self._token = WatchedFile(settings.token_file, parse_token, "token file", fix="make one with `usher keys new`")
        self._keys = TransceiverKeys(settings.keys_file, route, time.time)
        self._socket = HopSocket(*split_host_port(settings.udp), settings.socket_buffer, self._clock)
        self._mux = Mux(route, self._keys, self._socket.send, time.time)
        self._ticker = Ticker(self._clock, self._mux.batch)
        self._process = ProcessLoad(self._clock)
        codec = load_codec(settings.opus_codec)
        registry_settings = _registry_settings(settings, realtime)
        self.sessions = SessionRegistry(
            route, self._keys, self._mux, self._ticker, codec, Certificate(), registry_settings, self._clock
        )
        collector = TransceiverCollector(
            self.sessions, self._mux, self._socket, self._ticker, self._keys, codec.name, self._process
        )
        metrics = make_metrics(collector)
        if realtime is not None:
            metrics.register(RealtimeCollector(realtime.counters))
        app = make_app(self.sessions, lambda: self._token.value, self._clock, metrics, self.is_live, self._process)
        self._http = HttpServer(
            app,
            settings.http,
            "--http",
            ws=WebSocketProtocol,
            ws_max_size=MAX_EVENT_BYTES,
            # Within a cluster bandwidth is cheaper than the loop that carries the audio.
            ws_per_message_deflate=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            max_connections=MAX_CONNECTIONS,
        )
        self._signals = 0
        self._collected = 0
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
        self.sessions.drain_for_good()
        (self._told_to_end if self._signals == 1 else self._told_twice).set()

    async def start(self) -> None:
        """Begin to work: packets and requests are handled when this returns."""
        watch_tasks(asyncio.get_running_loop())
        self._socket.start(self._mux.on_datagram, self._mux.batch)
        self._socket.beat()
        self._housekeeping = asyncio.create_task(self._keep_house())
        self._probing = asyncio.create_task(self._process.run())
        _ = await self._http.start()  # its own task; `stop` waits for it
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
        self.sessions.drain_for_good()
        left = len(self.sessions)
        await self.sessions.end_all(reason)
        self._housekeeping.cancel()
        self._probing.cancel()
        await self._http.stop()
        self._ticker.stop()
        self._socket.close()
        log.info("ended", calls_cut=left, reason=reason.value if left else "drained")

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self._keys.refresh()
            self._token.look()
            self._socket.beat()
            self._collect_ended()

    def _collect_ended(self) -> None:
        ended = self.sessions.totals.ended.total()
        if ended - self._collected >= GARBAGE_CALLS:
            self._collected = ended
            gc.collect()


def _realtime(settings: TransceiverSettings) -> RealtimeBackends | None:
    is_wanted = settings.backend == REALTIME or settings.realtime_url is not None
    return RealtimeBackends(settings) if is_wanted else None


def _registry_settings(settings: TransceiverSettings, realtime: RealtimeBackends | None) -> RegistrySettings:
    return RegistrySettings(
        max_sessions=settings.max_sessions,
        backend=settings.backend,
        backend_config=_read_backend_config(settings.backend_config_file),
        encoder=EncoderSettings(bitrate=settings.opus_bitrate, complexity=settings.opus_complexity),
        limits=Limits(
            settings.session_max_age, settings.idle_timeout, settings.backend_start_limit, settings.max_observers
        ),
        built_in={} if realtime is None else {REALTIME: realtime},
    )


def _read_backend_config(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    return WatchedFile(path, _parse_backend_config, "backend configuration").value


def _parse_backend_config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise LocalError(f"the backend configuration can't be read: {fault}", "a JSON object is expected") from None
    if not isinstance(config, dict):
        raise LocalError("the backend configuration is no JSON object")
    return config
