"""What happens to every request, whatever its route: two plain ASGI layers.

`AnswerHeaders` (outside) puts CORS and security headers on every answer, errors included.
`RequestGuard` (inside) turns away what may not be served, counts and logs the rest, and makes of an unexpected
exception a 500 that says nothing but an id to look for in the log.
"""

from __future__ import annotations

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
QUIET_ROUTES = PROBES | {"/", "/assets"}
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
    """Adds CORS and security headers."""

    def __init__(self, app: ASGIApp, cors: CorsPolicy) -> None:
        self._app = app
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in asked
        added = {**SECURITY_HEADERS, **self._cors.headers(asked.get("origin"), preflight=preflight)}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add(MutableHeaders(scope=message), added)
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
        refusal = self._refusal(scope)
        if scope["type"] == "websocket":
            # Without an accept before it, this closing becomes HTTP 403 (ASGI specification, WebSocket close).
            await (send({"type": "websocket.close", "code": 1008}) if refusal else self._app(scope, receive, send))
            return
        started = time.perf_counter()
        status = 500
        answering = False

        async def watch(message: Message) -> None:
            nonlocal status, answering
            if message["type"] == "http.response.start":
                status, answering = message["status"], True
            await send(message)

        self._under_way += 1
        self._metrics.under_way.set(self._under_way)
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
        finally:
            self._under_way -= 1
            self._metrics.under_way.set(self._under_way)
            self._book(scope, status, time.perf_counter() - started)

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
        write("request", method=scope["method"], route=route, status=status, ms=round(seconds * 1000, 1))


def _unexpected(error_id: str) -> ApiError:
    return ApiError(500, "internal_error", f"Something failed here. The log of this server has it as {error_id}.")


def _add(headers: MutableHeaders, added: Mapping[str, str]) -> None:
    for name, value in added.items():
        if name == "Vary":
            headers.add_vary_header(value)
        else:
            headers.setdefault(name, value)
