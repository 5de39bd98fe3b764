"""Probes and metrics."""

from __future__ import annotations

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from usher_signaling.services import Services


def add_health_routes(app: FastAPI, services: Services) -> None:
    """Add `/livez`, `/readyz` and `/metrics`."""

    async def livez() -> Response:
        """200 while the process serves."""
        return JSONResponse({"live": True})

    async def readyz() -> Response:
        """200 when a call could be placed, else 503. A full fleet is ready: calls get a proper 503 here."""
        ready = services.calls.can_place and not services.ending.is_set()
        state = {
            "ready": ready,
            "transceivers": len(services.directory.transceivers),
            "transceivers_live": services.directory.live_count(),
            "advertised": len(services.directory.advertised),
        }
        return JSONResponse(state, 200 if ready else 503)

    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(services.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    for path, handler in (("/livez", livez), ("/readyz", readyz), ("/metrics", metrics)):
        app.add_api_route(path, handler, methods=["GET", "HEAD"], include_in_schema=False)
