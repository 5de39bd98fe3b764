"""Traces as the rest of signaling sees them. OpenTelemetry makes them, in otel.py, which is loaded only if asked for.

    POST /v1/realtime/calls        the request, child of the caller's span if it sent `traceparent`
      place                        one per transceiver that was tried
        POST /internal/v1/…        the request to the transceiver, which gets our `traceparent`

No span holds a key, SDP, an address of a client or a call id that clients know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from usher_core.errors import LocalError

Attributes = Mapping[str, str | int]
Annotate = Callable[[Attributes], None]
"""Adds attributes to the span that is open."""


PROBES = frozenset(("/livez", "/readyz", "/metrics"))


class Tracer(Protocol):
    """Opens spans. What is opened inside another one becomes its child, also across tasks."""

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Annotate]:
        """Open the span of a request that came. `http.route` becomes part of its name."""

    def step(self, name: str, attributes: Attributes) -> AbstractContextManager[Annotate]:
        """Open the span of a step of ours."""

    def call(self, name: str, attributes: Attributes) -> AbstractContextManager[Annotate]:
        """Open the span of a request to another program."""

    def traceparent(self) -> str | None:
        """The span that is open, as W3C Trace Context; None when there is none."""

    def close(self) -> None:
        """Send what is left. Takes seconds at most."""


class NoTracer:
    """Opens nothing."""

    _nothing: AbstractContextManager[Annotate] = nullcontext(lambda _attributes: None)

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Annotate]:
        return self._nothing

    def step(self, name: str, attributes: Attributes) -> AbstractContextManager[Annotate]:
        return self._nothing

    def call(self, name: str, attributes: Attributes) -> AbstractContextManager[Annotate]:
        return self._nothing

    def traceparent(self) -> str | None:
        return None

    def close(self) -> None:
        pass


class RequestSpans:
    """An ASGI layer that opens the span of each request. Probes and long-lived sockets get none."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in PROBES or isinstance(self._tracer, NoTracer):
            await self._app(scope, receive, send)
            return
        with self._tracer.request(scope["method"], Headers(scope=scope)) as annotate:

            async def watch(message: Message) -> None:
                if message["type"] == "http.response.start":
                    # The router has put the route that matched into the scope; its template says less than a path.
                    route = getattr(scope.get("route"), "path", None) or "unmatched"
                    annotate({"http.route": route, "http.response.status_code": message["status"]})
                await send(message)

            await self._app(scope, receive, watch)


def make_tracer(*, enabled: bool) -> Tracer:
    """Make the tracer of this process. Raises LocalError when it is asked for and OpenTelemetry is not installed."""
    if not enabled:
        return NoTracer()
    try:
        from usher_signaling.otel import otlp_tracer  # noqa: PLC0415 - an extra: who traces nothing need not have it
    except ImportError:
        raise LocalError("--traces needs OpenTelemetry", "install it with `pip install 'usher[otel]'`") from None
    return otlp_tracer()
