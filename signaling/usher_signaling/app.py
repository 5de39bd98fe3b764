"""The ASGI application of signaling."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import httpx
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from usher_signaling.bodies import FRAGMENT, SDP
from usher_signaling.cors import CorsPolicy
from usher_signaling.errors import PLAIN_CODES, ApiError
from usher_signaling.middleware import AnswerHeaders, RequestGuard
from usher_signaling.openapi import add_description
from usher_signaling.pages import add_pages
from usher_signaling.routes.call_list import add_call_list_route
from usher_signaling.routes.elsewhere import ElsewhereError, serve_elsewhere
from usher_signaling.routes.fleet import add_fleet_routes
from usher_signaling.routes.health import add_health_routes
from usher_signaling.routes.peer_requests import add_peer_routes
from usher_signaling.routes.realtime import CALLS, add_realtime_routes
from usher_signaling.routes.side_band import add_side_band_route
from usher_signaling.routes.whip import ENDPOINT, add_whip_routes
from usher_signaling.services import Services, build_services
from usher_signaling.settings import SignalingSettings
from usher_signaling.tracing import RequestSpans, Tracer, make_tracer


def create_app(
    settings: SignalingSettings,
    *,
    clock: Callable[[], float] = time.time,
    transport: httpx.AsyncBaseTransport | None = None,
    tracer: Tracer | None = None,
) -> FastAPI:
    """Make the application.

    Args:
        settings: what the program was told.
        clock: Unix seconds; tests move it.
        transport: replaces the network towards transceivers in tests.
        tracer: replaces the one that the settings ask for in tests.

    Raises LocalError when a file of the settings is missing or wrong.
    """
    tracer = tracer or make_tracer(enabled=settings.traces)
    services = build_services(settings, clock, transport, tracer)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with services.running():
            yield
        await asyncio.to_thread(tracer.close)

    # Its documentation pages load scripts from elsewhere, which our content policy forbids; openapi.py describes more.
    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.services = services
    add_health_routes(app, services)
    add_realtime_routes(app, services)
    add_call_list_route(app, services)
    add_side_band_route(app, services)
    add_whip_routes(app, services)
    add_fleet_routes(app, services)
    add_peer_routes(app, services)
    add_description(app, keyless=settings.is_keyless)
    if settings.demo:
        add_pages(app)
    _add_error_handlers(app, services)
    app.add_middleware(
        RequestGuard, metrics=services.metrics, max_requests=settings.max_requests, keyless=settings.is_keyless
    )
    app.add_middleware(RequestSpans, tracer=tracer)
    cors = CorsPolicy(settings.cors_origins, loopback_only=settings.is_keyless)
    app.add_middleware(AnswerHeaders, cors=cors, ending=services.ending)
    return app


def _add_error_handlers(app: FastAPI, services: Services) -> None:
    async def elsewhere(request: Request, error: Exception) -> Response:
        assert isinstance(error, ElsewhereError)
        return await serve_elsewhere(services, request, error)

    async def api_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return _wrong_method(app, request)
        code = PLAIN_CODES.get(error.status_code, f"http_{error.status_code}")
        message = "There is nothing at this address." if error.status_code == 404 else str(error.detail)
        return ApiError(error.status_code, code, message, headers=error.headers).response()

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        return ApiError(400, "invalid_request", f"{where}: {fault['msg']}", param=where).response()

    app.add_exception_handler(ElsewhereError, elsewhere)
    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)


def _wrong_method(app: FastAPI, request: Request) -> Response:
    """405 that names all methods of the path; or, for OPTIONS, what may be sent there (RFC 9725 section 4.2).

    OPTIONS needs no key: a browser's preflight has none.
    """
    methods = {"OPTIONS"}
    for route in app.routes:
        # Another method's route of the same path is a partial match.
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= getattr(route, "methods", None) or {"GET", "HEAD"}
    headers = {"Allow": ", ".join(sorted(methods))}
    if request.method != "OPTIONS":
        return ApiError(405, "method_not_allowed", f"Use {headers['Allow']} here.", headers=headers).response()
    if request.url.path in (CALLS, ENDPOINT):
        headers["Accept-Post"] = SDP
    if "PATCH" in methods:
        headers["Accept-Patch"] = FRAGMENT
    return Response(status_code=200, headers=headers)
