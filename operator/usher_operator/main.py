"""`usher operator`: waits to be elected, runs kopf, and ends at once when it may no longer act."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import kopf
import structlog
from kubernetes.aio.client import Configuration
from prometheus_client import ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from usher_core.errors import LocalError
from usher_core.logs import configure
from usher_core.settings import announce
from usher_operator import names
from usher_operator.actions import Action, Plan, Reference
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.apply import Applier
from usher_operator.election import Election, Elector
from usher_operator.handlers import POOLS, kopf_settings, registry, wake_owner
from usher_operator.keys_keeper import KeysKeeper
from usher_operator.kube import HttpKubeApi, KubeError, load_configuration
from usher_operator.loads import Loads, PodClient
from usher_operator.metrics import OperatorMetrics
from usher_operator.observe import Observer, Resolver
from usher_operator.plan.defaults import Defaults
from usher_operator.plan.keys import KeysPlan, KeysSeen, plan_keys
from usher_operator.plan.relay_pool import plan_relay_pool
from usher_operator.plan.transceiver_pool import plan_pod_ids, plan_transceiver_pool
from usher_operator.reconciler import Reconciler
from usher_operator.resends import Resends
from usher_operator.rotation_wishes import RotationWishes
from usher_operator.seen import PodSeen, RelayPoolSeen, TransceiverPoolSeen
from usher_operator.settings import OperatorSettings
from usher_operator.watched_pods import WatchedPods
from usher_shell.http_server import HttpServer
from usher_shell.kubernetes_client import KubernetesReader

log = structlog.get_logger()

CRD_EVERY_S = 2.0
WATCHDOG_EVERY_S = 0.1
LOST_STATUS = 1
"""Exit status of a leader that leads no more: it is started again and stands by."""
STUCK_S = 180.0
"""Work in which no request ends for so long hangs: each has a time-out, and those to pods are bounded together."""
SILENT_API_S = 60.0
MAX_CONNECTIONS = 64


def run(settings: OperatorSettings) -> None:
    """Run an operator until it is told to end. Raises LocalError when it cannot begin."""
    configure(settings.log_format, settings.log_level)
    # kopf tells of every event and of each try of a drain; what we do about them, our own log says.
    logging.getLogger("kopf.objects").setLevel(logging.CRITICAL if settings.log_level != "debug" else logging.DEBUG)
    logging.getLogger("kopf.activities").setLevel(logging.WARNING)
    asyncio.run(_Operator(settings).run())


def monotonic() -> float:
    """Return seconds that only go forward, also while the machine sleeps: a lease goes on ending meanwhile."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class PurePlans:
    """The plans, with what the operator was told for all pools."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults

    def relay_pool(self, pool: RelayPool, seen: RelayPoolSeen, now: float) -> Plan:
        """See Plans."""
        return plan_relay_pool(pool, seen, now, self._defaults)

    def transceiver_pool(self, pool: TransceiverPool, seen: TransceiverPoolSeen, now: float) -> Plan:
        """See Plans."""
        return plan_transceiver_pool(pool, seen, now, self._defaults)

    def pod_ids(self, pool: TransceiverPool, seen: TransceiverPoolSeen, now: float) -> tuple[Action, ...]:
        """See Plans."""
        return plan_pod_ids(pool, seen, now, self._defaults)


class Worker:
    """The part that only a leader runs.

    Args:
        settings: of the operator.
        configuration: where the API server is.
        metrics: told of everything.
        may_write: asked before each write.
        client: speaks to pods.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        configuration: Configuration,
        metrics: OperatorMetrics,
        may_write: Callable[[], bool],
        client: PodClient | None = None,
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._metrics = metrics
        self._event_at = self._request_at = monotonic()
        self._count = _count(metrics)
        self._pods = WatchedPods(settings.namespaces, self._connect, self._on_pod)
        self._client = client or PodClient()
        self._api = HttpKubeApi(configuration, self._on_request, may_write)
        loads = Loads(self._client, monotonic, lambda outcome: metrics.loads.labels(outcome).inc())
        defaults = settings.defaults
        resolver, resends = Resolver(monotonic), Resends(monotonic)
        observer = Observer(self._api, self._pods, loads, resolver, resends, defaults.identity_namespace)
        applier = Applier(self._api, self._client, time.time)
        keys = KeysKeeper(self._api, self._client, self._pods, observer, applier, self._plan_keys, monotonic, time.time)
        self.reconciler = Reconciler(
            self._api, observer, applier, keys, PurePlans(defaults), metrics, monotonic, time.time
        )
        # Its requests tell nothing of whether looks at pools go on.
        self._wishes_api = HttpKubeApi(configuration, self._count)
        self._wishes = RotationWishes(self._wishes_api, keys, self.reconciler.wake_namespace)
        metrics.keys_waiting_seconds.set_function(keys.longest_wait)
        metrics.watch_age.set_function(lambda: monotonic() - self._event_at)

    async def run(self, stop: asyncio.Event, started: asyncio.Event | None = None) -> None:
        """Wait for the CRDs, then work until told to end by `stop`.

        Kopf takes SIGINT and SIGTERM for itself; once `started` is set they can be taken back.
        """
        hearing = asyncio.create_task(self._wishes.follow())
        try:
            if await self._until_served(stop):
                await self._work(stop, started)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            await self._client.close()
            await self._wishes_api.close()
            await self._api.close()

    async def _work(self, stop: asyncio.Event, started: asyncio.Event | None) -> None:
        watching = asyncio.create_task(self._pods.run())
        watching.add_done_callback(lambda _: stop.set())
        try:
            # A pool is looked at with all of its pods or not at all.
            if not await _unless_told(stop, self._pods.until_loaded()):
                return
            # Without one kopf asks for the user's name, and a numeric user of a pod has none.
            identity: Any = names.FIELD_MANAGER
            await kopf.operator(
                registry=registry(self.reconciler, self._configuration, self._on_event),
                settings=kopf_settings(),
                standalone=True,
                clusterwide=not self._settings.namespaces,
                namespaces=list(self._settings.namespaces),
                identity=identity,
                stop_flag=stop,
                ready_flag=started,
            )
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def stuck_for(self) -> float:
        """Return for how many seconds looks have been under way without any request that ended."""
        since = self.reconciler.working_since()
        return 0.0 if since is None else monotonic() - max(since, self._request_at)

    async def _until_served(self, stop: asyncio.Event) -> bool:
        """Return whether the CRDs are there; False: told to end before."""
        is_told = False
        while not await self._api.is_served(names.API_VERSION, set(POOLS)):
            if not is_told:
                log.warning("waiting for the CRDs of RelayPool and TransceiverPool", fix="kubectl apply -f crds/")
                is_told = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CRD_EVERY_S):
                    await stop.wait()
                    return False
        return True

    def _plan_keys(self, seen: KeysSeen, now: float, fresh: bytes) -> KeysPlan:
        return plan_keys(seen, self._settings.keys, now, fresh)

    async def _connect(self) -> KubernetesReader:
        return KubernetesReader(self._configuration)

    def _on_pod(self, pod: PodSeen) -> None:
        self._on_event()
        wake_owner(self.reconciler, pod.namespace, pod.labels)

    def _on_event(self) -> None:
        self._event_at = monotonic()

    def _on_request(self, verb: str, code: int) -> None:
        self._request_at = monotonic()
        self._count(verb, code)


class _Operator:
    """A running replica."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._metrics = OperatorMetrics()
        ProcessCollector(registry=self._metrics.registry)
        self._stop = asyncio.Event()
        self._elector: Elector | None = None
        self._worker: Worker | None = None
        routes = [
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._show_metrics),
        ]
        self._server = HttpServer(
            Starlette(routes=routes), settings.http, "--http", lifespan="off", max_connections=MAX_CONNECTIONS
        )

    async def run(self) -> None:
        """Stand by, work, end."""
        self._listen_to_signals()
        configuration = await load_configuration()
        api = HttpKubeApi(configuration, _count(self._metrics))
        elector = self._elector = self._new_elector(api)
        serving = await self._server.start()
        sys.stdout.write(announce("operator", http=self._server.url) + "\n")
        sys.stdout.flush()
        log.info("operator started", http=self._server.url, api=configuration.host)
        try:
            if await _unless_told(self._stop, elector.until_elected()):
                await self._lead(elector, configuration)
            await elector.resign()
        finally:
            self._server.stop_soon(at_once=True)
            await asyncio.gather(serving, return_exceptions=True)
            await api.close()
        log.info("operator ended")

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    async def _listen_again(self, started: asyncio.Event) -> None:
        """Kopf's own handlers leave its wait for `stop` hanging, which costs 5 s; a second signal makes them fail."""
        await started.wait()
        self._listen_to_signals()

    def _new_elector(self, api: HttpKubeApi) -> Elector:
        settings = self._settings
        target = Reference("coordination.k8s.io/v1", "Lease", settings.own_namespace, settings.lease_name)
        # Another identity for each start: a restarted container does not inherit what its former self believed.
        identity = f"{os.environ.get('HOSTNAME', 'operator')}_{uuid.uuid4()}"
        election = Election(target, identity, settings.timing)
        return Elector(election, target, api, settings.timing, monotonic, time.time)

    async def _lead(self, elector: Elector, configuration: Configuration) -> None:
        log.info("elected; starting to work")
        self._metrics.leader.set(1)
        is_over = threading.Event()
        watchdog = threading.Thread(target=_end_when_lost, args=(elector.leads, is_over), daemon=True)
        watchdog.start()
        renewing = asyncio.create_task(elector.until_lost())
        self._worker = Worker(self._settings, configuration, self._metrics, elector.leads)
        started = asyncio.Event()
        listening = asyncio.create_task(self._listen_again(started))
        working = asyncio.create_task(self._worker.run(self._stop, started))
        try:
            await asyncio.wait([working, renewing], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                _end_now()
            try:
                await working
            except KubeError as error:
                raise LocalError(f"the operator can't work: {error}") from None
        finally:
            is_over.set()
            for task in (renewing, listening):
                task.cancel()
            await asyncio.gather(renewing, listening, return_exceptions=True)
            self._metrics.leader.set(0)

    async def _livez(self, _request: Request) -> Response:
        if self._worker is not None and (seconds := self._worker.stuck_for()) > STUCK_S:
            return PlainTextResponse(
                f"looks at pools are under way and no request has ended for {seconds:.0f} s\n", 503
            )
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        last = self._elector.last_answer if self._elector is not None else None
        if last is None or monotonic() - last > SILENT_API_S:
            return PlainTextResponse("no answer from the API server\n", 503)
        return PlainTextResponse("ok\n")

    async def _show_metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _unless_told(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Return whether some work was done before we were told to end. Raises what it raised."""
    doing, told = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([doing, told], return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        doing.cancel()
        outcomes = await asyncio.gather(doing, told, return_exceptions=True)
    if stop.is_set():
        return False
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]
    return True


def _count(metrics: OperatorMetrics) -> Callable[[str, int], None]:
    return lambda verb, code: metrics.api_requests.labels(verb, str(code) if code else "none").inc()


def _end_when_lost(leads: Callable[[], bool], is_over: threading.Event) -> None:
    """Watch from a thread of its own, since the loop may be stuck or the process may have been paused."""
    while not is_over.wait(WATCHDOG_EVERY_S):
        if not leads():
            if not is_over.is_set():
                _end_now()
            return


def _end_now() -> None:
    """End at once and hard: whatever is under way must not go on, for another replica may lead."""
    log.error("the lease is lost; ending, to be started again as a standby")
    sys.stderr.flush()
    os._exit(LOST_STATUS)
