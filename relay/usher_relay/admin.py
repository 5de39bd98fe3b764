"""The relay's admin HTTP: /livez, /readyz, /metrics, /routes, /flows, /keys.

It runs in the main thread, apart from the data path, so that load there cannot silence it.

It asks for no key. Where it listens on loopback only, `Host` has to name loopback too: any other name is one that a web
page pointed at 127.0.0.1 (DNS rebinding), to read who calls. Elsewhere names are many, and a firewall has to guard it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isinf
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from usher_core.decimals import read_decimal
from usher_core.internal_api import HeldKeys
from usher_relay.engine.interface import Engine, RouteView
from usher_relay.trunk.endpoints import EndpointView
from usher_shell.loopback_names import is_loopback_authority
from usher_shell.watched_file import SourceStatus

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
HEARTBEAT_LIMIT = 5.0
"""Seconds without a round of the data thread after which it counts as stuck: it begins one every 0.25 s when idle."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a probe passes, and why not."""

    ok: bool
    reason: str = ""


class Admin:
    """The handlers.

    Args:
        engine: the data path.
        routes: how the route source is.
        leaving: whether shutdown has made the relay unready.
        registry: the metrics.
        peers: how the endpoints of other clusters are, where there are any.
        round_trip: ms to the transceiver of a route, None where that is not known.
        local: whether it listens on loopback only.
    """

    def __init__(
        self,
        engine: Engine,
        routes: Callable[[], SourceStatus],
        leaving: Callable[[], bool],
        registry: CollectorRegistry,
        *,
        peers: Callable[[], Sequence[EndpointView]] | None = None,
        round_trip: Callable[[str], float | None] = lambda _: None,
        local: bool = False,
    ) -> None:
        self._engine = engine
        self._peers = peers
        self._round_trip = round_trip
        self._routes = routes
        self._leaving = leaving
        self._registry = registry
        self._local = local

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/livez", self._livez),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
                Route("/routes", self._list_routes),
                Route("/flows", self._list_flows),
                Route("/keys", self._list_keys),
            ],
            middleware=[Middleware(_LoopbackNamesOnly)] if self._local else [],
        )

    def live(self) -> Health:
        """Alive is: the data thread goes round."""
        age = self._engine.snapshot().heartbeat_age
        if age > HEARTBEAT_LIMIT:
            return Health(ok=False, reason=f"the data thread has been stuck for {age:.0f} s")
        return Health(ok=True)

    def ready(self) -> Health:
        """Ready is: able to forward. Neither load nor the age of the route table counts (design D15)."""
        live = self.live()
        if not live.ok:
            return live
        if not self._routes().loaded:
            return Health(ok=False, reason="no route table yet")
        if self._leaving():
            return Health(ok=False, reason="leaving: flows shall move to other relays")
        return Health(ok=True)

    async def _livez(self, _request: Request) -> Response:
        return _probe(self.live())

    async def _readyz(self, _request: Request) -> Response:
        return _probe(self.ready())

    async def _metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _list_keys(self, _request: Request) -> Response:
        return JSONResponse(HeldKeys(keys=self._engine.snapshot().keys).model_dump(mode="json"))

    # Plain functions: Starlette calls them in a worker thread, where they may wait for the data thread.

    def _list_routes(self, request: Request) -> Response:
        source = asdict(self._routes())
        source["age"] = None if source["age"] is None else round(source["age"], 3)
        peers = {} if self._peers is None else {"peers": [asdict(view) for view in self._peers()]}
        return _listing("routes", request, self._view_routes, {"source": source, **peers})

    def _view_routes(self, limit: int) -> list[RouteView]:
        return [replace(view, rtt_ms=self._round_trip(view.route)) for view in self._engine.routes(limit)]

    def _list_flows(self, request: Request) -> Response:
        idle = self._engine.snapshot().idle
        return _listing("flows", request, self._engine.flows, {"idle": None if isinf(idle) else round(idle, 3)})


class _LoopbackNamesOnly:
    """Refuses requests that name another host."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_loopback_authority(Headers(scope=scope).get("host", "")):
            text = "This relay's --admin is on loopback, so it answers only under a loopback name: use 127.0.0.1.\n"
            await PlainTextResponse(text, 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _listing(name: str, request: Request, read: Callable[[int], list[Any]], more: dict[str, Any]) -> Response:
    limit = _limit(request)
    try:
        entries = [asdict(entry) for entry in read(limit)]
    except TimeoutError:
        raise HTTPException(503, "the data thread does not answer") from None
    return JSONResponse({**more, name: entries, "limit": limit})


def _limit(request: Request) -> int:
    limit = read_decimal(request.query_params.get("limit", str(DEFAULT_LIMIT)), MAX_LIMIT, 1)
    if limit is None:
        raise HTTPException(400, f"limit is a number within 1..{MAX_LIMIT}")
    return limit


def _probe(health: Health) -> Response:
    return PlainTextResponse("ok\n" if health.ok else health.reason + "\n", 200 if health.ok else 503)
