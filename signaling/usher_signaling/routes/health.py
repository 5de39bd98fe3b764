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
        """200 while requests should come here, else 503; and whether a call could be placed, which is not the same."""
        found = services.readiness.look()
        state = {
            "ready": found.ready,
            "why": list(found.unready),
            "can_place": found.can_place,
            "why_no_call": found.no_call,
            "transceivers": len(services.directory.transceivers),
            "transceivers_live": services.directory.live_count(),
            "advertised": len(services.directory.advertised),
        }
        return JSONResponse(state, 200 if found.ready else 503)

    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(services.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    for path, handler in (("/livez", livez), ("/readyz", readyz), ("/metrics", metrics)):
        app.add_api_route(path, handler, methods=["GET", "HEAD"], include_in_schema=False)
