"""`usher relay`: puts settings, keys, routes, engine and admin HTTP together, and ends them in order."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from usher_core.errors import LocalError
from usher_core.ids import is_loopback_host, split_host_port
from usher_core.keys import KeyFile
from usher_core.logs import configure
from usher_core.routes import RouteTable
from usher_core.settings import announce
from usher_relay.admin import Admin
from usher_relay.engine.interface import Engine, EngineConfig
from usher_relay.engine.select import select_engine
from usher_relay.key_files import RelayKeyFiles
from usher_relay.metrics import relay_registry
from usher_relay.routes.probing import TransceiverProbes
from usher_relay.routes.select import select_routes
from usher_relay.settings import RelaySettings
from usher_relay.shutdown import Phase, Shutdown
from usher_relay.store.select import select_store
from usher_relay.trunk.metrics import PeersCollector
from usher_relay.trunk.peering import Peering
from usher_shell.ending_signals import ignore_signals
from usher_shell.http_server import HttpServer

if TYPE_CHECKING:
    from usher_relay.store.recovery import Recovery

log = structlog.get_logger()

LOOK_EVERY = 0.1
MAX_ADMIN_CONNECTIONS = 256
COLLECT_EVERY = 600.0
FEW_FLOWS = 2_000
NEVER = 1 << 30
SWITCH_INTERVAL = 0.001
"""Seconds after which the admin thread must let the data thread go on: the most that a scrape delays a packet."""


def run(settings: RelaySettings) -> None:
    """Run a relay until it is told to end. Raises LocalError when it cannot begin."""
    configure(settings.log_format, settings.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL)
    keys = RelayKeyFiles(settings.keys_file, settings.trunk_keys_file)
    engine = select_engine(settings.engine, _engine_config(settings), keys.value)
    try:
        recovery = select_store(settings, engine, keys.value)
        peering = None
        if settings.peers_file is not None:
            peering = Peering(settings.peers_file, keys.value, engine.set_peers)
        asyncio.run(_Relay(settings, engine, keys, recovery, peering).run())
    finally:
        engine.stop()


class _Relay:
    """A running relay."""

    def __init__(
        self,
        settings: RelaySettings,
        engine: Engine,
        keys: RelayKeyFiles,
        recovery: Recovery | None,
        peering: Peering | None,
    ) -> None:
        self._engine = engine
        self._keys = keys
        self._recovery = recovery
        self._peering = peering
        self._probes = TransceiverProbes(keys.value)
        self._routes = select_routes(settings)
        self._shutdown = Shutdown(settings.grace)
        self._phase = Phase.SERVING
        sources = {"routes": self._routes.status, "keys": keys.status}
        if peering is not None:
            sources["peers"] = peering.status
        if keys.with_trunks:
            sources["trunk_keys"] = keys.status_of_trunks
        registry = relay_registry(engine, sources, with_store=recovery is not None)
        if peering is not None:
            registry.register(PeersCollector(peering.endpoints))
        for collector in self._routes.collectors():
            registry.register(collector)
        if recovery is not None:
            registry.register(recovery.collector)
        self._admin = Admin(
            engine,
            self._routes.status,
            lambda: self._phase is Phase.LEAVING,
            registry,
            peers=None if peering is None else peering.endpoints,
            round_trip=self._probes.milliseconds,
            local=is_loopback_host(split_host_port(settings.admin)[0]),
        )
        self._server = HttpServer(
            self._admin.app(), settings.admin, "--admin", lifespan="off", max_connections=MAX_ADMIN_CONNECTIONS
        )

    async def run(self) -> None:
        """Serve until the shutdown is over."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        self._engine.start()
        server = await self._server.start()
        watchers = [
            asyncio.create_task(self._routes.run(self._set_routes)),
            asyncio.create_task(self._keys.follow(self._key_takers())),
            asyncio.create_task(self._probes.run()),
            asyncio.create_task(self._collect_garbage_when_quiet()),
        ]
        if self._recovery is not None:
            watchers.append(asyncio.create_task(self._recovery.run()))
        if self._peering is not None:
            watchers.append(asyncio.create_task(self._peering.run()))
        try:
            await self._until_over([server, *watchers])
        finally:
            self._server.stop_soon(at_once=True)
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(server, *watchers, return_exceptions=True)
            ignore_signals()
        log.info("relay ended")

    def _key_takers(self) -> list[Callable[[KeyFile], None]]:
        # The engine last: keys that any other refuses never reach it.
        parts = (self._recovery, self._peering, self._probes, self._engine)
        return [part.set_keys for part in parts if part is not None]

    def _set_routes(self, table: RouteTable) -> None:
        self._engine.set_routes(table)
        self._probes.set_routes(table)
        if self._peering is not None:
            self._peering.set_own_clusters({route.cluster for route in table})

    async def _collect_garbage_when_quiet(self) -> None:
        """Stand in for the collector's full runs: one looks at every flow, and all packets wait meanwhile."""
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        while True:
            await asyncio.sleep(COLLECT_EVERY)
            snapshot = self._engine.snapshot()
            if snapshot.flows_confirmed + snapshot.flows_on_probation + snapshot.flows_ended <= FEW_FLOWS:
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
        trunk = {} if self._engine.trunk is None else {"trunk": self._engine.trunk}
        log.info("relay ready", listeners=listeners, admin=self._server.url, engine=self._engine.name, **trunk)
        sys.stdout.write(announce("relay", listeners=listeners, admin=self._server.url, **trunk) + "\n")
        sys.stdout.flush()

    def _on_signal(self) -> None:
        if self._phase is Phase.SERVING:
            log.info("told to end")
        self._shutdown.on_signal(time.monotonic())
        self._look_at_phase()

    def _look_at_phase(self) -> None:
        phase = self._shutdown.phase(time.monotonic(), self._engine.snapshot().idle)
        if phase is not self._phase:
            self._phase = phase
            log.info("phase", phase=phase.value)


def _engine_config(settings: RelaySettings) -> EngineConfig:
    return EngineConfig(
        listeners=settings.listeners,
        upstream=settings.upstream,
        limits=settings.limits,
        hop_mtu=settings.hop_mtu,
        receive_buffer=settings.receive_buffer,
        send_buffer=settings.send_buffer,
        workers=settings.workers,
        bundle=settings.bundle,
        bundle_hold=settings.bundle_hold,
        with_store=settings.redis_url is not None,
        trunk=None if settings.trunk is None else split_host_port(settings.trunk),
        with_peers=settings.peers_file is not None,
    )
