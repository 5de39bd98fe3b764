"""What happens to every request, whatever its route: two plain ASGI layers.

`AnswerHeaders` (outside) puts CORS and security headers on every answer, errors included.
`RequestGuard` (inside) turns away what may not be served, counts and logs the rest, and makes of an unexpected
exception a 500 that says nothing but an id to look for in the log.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from usher_signaling import loopback
from usher_signaling.cors import CorsPolicy
from usher_signaling.errors import ApiError, unavailable
from usher_signaling.metrics import Metrics

log = structlog.get_logger()

PROBES = frozenset(("/livez", "/readyz", "/metrics"))
ANSWER_STARTS = frozenset(("http.response.start", "websocket.http.response.start"))
QUIET_ROUTES = PROBES | {"/", "/fleet", "/assets"}
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class AnswerHeaders:
    """Adds CORS and security headers, and `Connection: close` once `ending` is set: the next request goes elsewhere."""

    def __init__(self, app: ASGIApp, cors: CorsPolicy, ending: asyncio.Event) -> None:
        self._app = app
        self._cors = cors
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        preflight = scope.get("method") == "OPTIONS" and "access-control-request-method" in asked
        added = {**SECURITY_HEADERS, **self._cors.headers(asked.get("origin"), preflight=preflight)}

        async def send_with_headers(message: Message) -> None:
            if message["type"] in ANSWER_STARTS:
                closing = {"Connection": "close"} if self._ending.is_set() else {}
                _add(MutableHeaders(scope=message), {**added, **closing})
            await send(message)

        await self._app(scope, receive, send_with_headers)


class RequestGuard:
    """Decides whether a request is served, and keeps the books.

    Args:
        app: the routes.
        metrics: where requests are counted.
        max_requests: how many are served at once; probes are always served.
        keyless: whether only this machine may call.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, max_requests: int, *, keyless: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._max_requests = max_requests
        self._keyless = keyless
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        # What a request binds, such as its session, stands in each of its log lines and in no other's.
        structlog.contextvars.clear_contextvars()
        refusal = self._refusal(scope)
        started = time.perf_counter()
        status = 500
        answering = False
        booked = False

        def book() -> None:
            nonlocal booked
            if not booked:
                booked = True
                self._count(-1)
                self._book(scope, status, time.perf_counter() - started)

        async def watch(message: Message) -> None:
            nonlocal status, answering
            if message["type"] in ANSWER_STARTS:
                status, answering = message["status"], True
            elif message["type"] == "websocket.accept":
                status, answering = 101, True
                book()  # what follows is no request any more; side-bands have a limit of their own
            elif message["type"] == "websocket.close" and not answering:
                # So the router says that there is nothing; the server would make an empty 403 of it.
                await _nothing_here().response()(scope, receive, watch)
                return
            await send(message)

        self._count(1)
        try:
            if refusal is not None:
                await refusal.response()(scope, receive, watch)
            else:
                await self._app(scope, receive, watch)
        except Exception:
            error_id = secrets.token_hex(8)
            log.exception("unexpected error", error_id=error_id)
            if not answering:  # else it is too late for another answer, and the server closes the connection
                await _unexpected(error_id).response()(scope, receive, watch)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1011, "reason": error_id})
        finally:
            book()

    def _count(self, change: int) -> None:
        self._under_way += change
        self._metrics.under_way.set(self._under_way)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if self._keyless:
            headers = Headers(scope=scope)
            reason = loopback.refusal(headers.get("host"), headers.get("origin"))
            if reason is not None:
                return ApiError(403, "loopback_only", reason)
        if self._under_way >= self._max_requests and scope["path"] not in PROBES:
            return unavailable("too_many_requests", "Too many requests are under way here. Try again soon.")
        return None

    def _book(self, scope: Scope, status: int, seconds: float) -> None:
        # The router puts the route that matched into the scope; its template is a bounded label, the path is not.
        route = getattr(scope.get("route"), "path", None) or "unmatched"
        self._metrics.requests.labels(route, status).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        write = log.debug if route in QUIET_ROUTES else log.info
        write("request", method=scope.get("method", "GET"), route=route, status=status, ms=round(seconds * 1000, 1))


def _nothing_here() -> ApiError:
    return ApiError(404, "not_found", "There is nothing at this address.")


def _unexpected(error_id: str) -> ApiError:
    return ApiError(500, "internal_error", f"Something failed here. The log of this server has it as {error_id}.")


def _add(headers: MutableHeaders, added: Mapping[str, str]) -> None:
    for name, value in added.items():
        if name == "Vary":
            headers.add_vary_header(value)
        else:
            headers.setdefault(name, value)
