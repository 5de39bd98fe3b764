"""`usher relay`: puts settings, keys, routes, engine and admin HTTP together, and ends them in order."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time

import structlog

from usher_core.errors import LocalError
from usher_core.keys import KeyFile, parse_key_file
from usher_core.logs import configure
from usher_core.settings import announce
from usher_relay.admin import Admin
from usher_relay.admin_server import AdminServer
from usher_relay.engine.interface import Engine, EngineConfig
from usher_relay.engine.select import select_engine
from usher_relay.metrics import relay_registry
from usher_relay.routes.static_file import StaticFileRoutes
from usher_relay.settings import RelaySettings
from usher_relay.shutdown import Phase, Shutdown
from usher_relay.watched_file import WatchedFile

log = structlog.get_logger()

LOOK_EVERY = 0.1
COLLECT_EVERY = 600.0
FEW_FLOWS = 2_000
NEVER = 1 << 30
SWITCH_INTERVAL = 0.001
"""Seconds after which the admin thread must let the data thread go on: the most that a scrape delays a packet."""


def run(settings: RelaySettings) -> None:
    """Run a relay until it is told to end. Raises LocalError when it cannot begin."""
    configure(settings.log_format, settings.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL)
    keys = _read_keys(settings)
    engine = select_engine(settings.engine, _engine_config(settings), keys)
    try:
        asyncio.run(_Relay(settings, engine).run())
    finally:
        engine.stop()


class _Relay:
    """A running relay."""

    def __init__(self, settings: RelaySettings, engine: Engine) -> None:
        self._engine = engine
        self._routes = StaticFileRoutes(settings.routes_file)
        self._keys = WatchedFile(settings.keys_file, parse_key_file, "key file")
        self._shutdown = Shutdown(settings.grace)
        self._phase = Phase.SERVING
        self._admin = Admin(
            engine,
            self._routes.status,
            lambda: self._phase is Phase.LEAVING,
            relay_registry(engine, {"routes": self._routes.status, "keys": self._keys.status}),
        )
        self._server = AdminServer(self._admin.app(), settings.admin)

    async def run(self) -> None:
        """Serve until the shutdown is over."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        self._engine.start()
        server = asyncio.create_task(self._server.serve())
        watchers = [
            asyncio.create_task(self._routes.run(self._engine.set_routes)),
            asyncio.create_task(self._keys.watch(self._engine.set_keys)),
            asyncio.create_task(self._collect_garbage_when_quiet()),
        ]
        try:
            await self._until_over([server, *watchers])
        finally:
            self._server.stop()
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(server, *watchers, return_exceptions=True)
        log.info("relay ended")

    async def _collect_garbage_when_quiet(self) -> None:
        """Stand in for the collector's full runs: one looks at every flow, and all packets wait meanwhile."""
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        while True:
            await asyncio.sleep(COLLECT_EVERY)
            snapshot = self._engine.snapshot()
            if snapshot.flows_confirmed + snapshot.flows_on_probation <= FEW_FLOWS:
                gc.collect()

    async def _until_over(self, tasks: list[asyncio.Task[None]]) -> None:
        announced = False
        while self._phase is not Phase.OVER:
            for task in tasks:
                if task.done():
                    task.result()
                    raise LocalError("a part of the relay ended by itself", "the log above tells why")
            if not announced and self._admin.ready().ok:
                announced = True
                self._announce()
            await asyncio.sleep(LOOK_EVERY)
            self._look_at_phase()

    def _announce(self) -> None:
        listeners = {str(number): address for number, address in self._engine.listening.items()}
        log.info("relay ready", listeners=listeners, admin=self._server.url, engine=self._engine.name)
        sys.stdout.write(announce("relay", listeners=listeners, admin=self._server.url) + "\n")
        sys.stdout.flush()

    def _on_signal(self) -> None:
        self._shutdown.on_signal(time.monotonic())
        log.info("told to end")
        self._look_at_phase()

    def _look_at_phase(self) -> None:
        phase = self._shutdown.phase(time.monotonic(), self._engine.snapshot().idle)
        if phase is not self._phase:
            self._phase = phase
            log.info("phase", phase=phase.value)


def _read_keys(settings: RelaySettings) -> KeyFile:
    try:
        text = settings.keys_file.read_text(encoding="utf-8")
    except OSError as error:
        raise LocalError(
            f"cannot read the key file {settings.keys_file}: {error.strerror}", "make one with `usher keys new`"
        ) from None
    return parse_key_file(text)


def _engine_config(settings: RelaySettings) -> EngineConfig:
    return EngineConfig(
        listeners=settings.listeners,
        upstream=settings.upstream,
        limits=settings.limits,
        hop_mtu=settings.hop_mtu,
        receive_buffer=settings.receive_buffer,
        send_buffer=settings.send_buffer,
    )
