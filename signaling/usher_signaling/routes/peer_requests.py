"""What only the signaling of other regions asks: to close an offer whose answer came too late for them."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from usher_signaling.errors import NO_STORE, ApiError
from usher_signaling.peer_regions.client import REQUESTS
from usher_signaling.peer_regions.origin import is_request_id
from usher_signaling.services import Services
from usher_signaling.turns import turn

MAX_CLOSING = 16
"""Closes under way at once: each asks all transceivers, as a round of loads does. Further ones wait for a place."""
WAIT_S = 3.0
"""Many offers time out together when a region is slow. How many may wait `--max-requests` limits."""


def add_peer_routes(app: FastAPI, services: Services) -> None:
    """Add the route."""
    places = asyncio.Semaphore(MAX_CLOSING)

    async def close_request(request: Request, request_id: str) -> Response:
        """End the call that an offer has made, if it has."""
        if services.peers.origin(request.headers) is None or not is_request_id(request_id):
            raise ApiError(404, "not_found", "There is nothing at this address.")
        async with turn(places, WAIT_S, "Too many offers are being closed here."):
            await services.calls.close_request(request_id)
        return Response(status_code=204, headers=NO_STORE)

    app.add_api_route(f"{REQUESTS}/{{request_id}}", close_request, methods=["DELETE"], include_in_schema=False)
