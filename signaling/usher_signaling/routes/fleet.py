"""What there is: relays and transceivers for operators, models for callers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from usher_signaling.errors import NO_STORE
from usher_signaling.models import list_models
from usher_signaling.routes.requests import admit
from usher_signaling.services import Services

FLEET = "/v1/fleet"
MODELS = "/v1/models"


def add_fleet_routes(app: FastAPI, services: Services) -> None:
    """Add the routes."""
    settings = services.settings

    async def show_fleet(request: Request) -> Response:
        """Relays and transceivers with their loads, for API keys."""
        caller = await admit(services, request)
        caller.require_api_key()
        relays = [asdict(relay) for relay in await services.relays.read()]
        fleet = {"object": "fleet", "relays": relays, "transceivers": _transceivers(services)}
        return JSONResponse(fleet, headers=NO_STORE)

    async def list_choices(request: Request) -> Response:
        """The backends that a caller may choose by naming one as the model."""
        await admit(services, request)
        models = [
            # `created` is there for clients that insist on it.
            {"id": name, "object": "model", "created": 0, "owned_by": "usher"}
            for name in list_models(settings.backends, settings.backend)
        ]
        return JSONResponse({"object": "list", "data": models}, headers=NO_STORE)

    app.add_api_route(FLEET, show_fleet, methods=["GET"])
    app.add_api_route(MODELS, list_choices, methods=["GET"])


def _transceivers(services: Services) -> list[dict[str, Any]]:
    """All of the route file in its order, also the ones that take no new calls."""
    return [
        {
            "route": str(status.entry.route),
            "region": status.entry.region,
            "placeable": status.entry.placeable,
            "live": status.live,
            "draining": status.report is not None and status.report.load.draining,
            "sessions": status.report and status.report.load.sessions,
            "max_sessions": status.report and status.report.load.max_sessions,
            "reported_s": _rounded(status.report.age if status.report else None),
        }
        for status in services.directory.statuses()
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
