"""The side-band of the Realtime call API: look on at a call's events, and send some, over a WebSocket."""

from __future__ import annotations

import structlog
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection

from usher_signaling.auth import Caller
from usher_signaling.cors import CorsPolicy
from usher_signaling.errors import ApiError
from usher_signaling.routes.elsewhere import ElsewhereError, observe_elsewhere
from usher_signaling.routes.requests import admit, find
from usher_signaling.services import Services
from usher_signaling.side_band import SideBandPlaces, join, leave

SIDE_BAND = "/v1/realtime"
SUBPROTOCOL = "realtime"

log = structlog.get_logger()


def add_side_band_route(app: FastAPI, services: Services) -> None:
    """Add the route."""
    settings = services.settings
    policy = CorsPolicy(settings.cors_origins, loopback_only=settings.is_keyless)
    places = SideBandPlaces(settings.max_side_bands)
    services.metrics.watch("side_bands", "Side-bands open", lambda: places.taken)

    async def side_band(socket: WebSocket) -> None:
        """Join the events of a call. What can be refused is refused before the accept, as any other request."""
        try:
            caller = await admit(services, socket)
            caller.require_api_key()
            _check_origin(policy, socket)
            call_id = _call_id(socket)
            with places.take():
                session_id, owner = await observe(caller, socket, call_id)
                try:
                    await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
                    close = await join(socket, owner)
                finally:
                    await leave(owner)
            log.info("side-band ended", session=session_id, close=close)
        except ApiError as error:
            await socket.send_denial_response(error.response())

    async def observe(caller: Caller, socket: WebSocket, call_id: str) -> tuple[str, ClientConnection]:
        """Join a call at its owner, or at the signaling of its region."""
        try:
            call = await find(services, caller, call_id)
        except ElsewhereError as error:
            path = f"{SIDE_BAND}?call_id={call_id}"
            return error.call.session_id, await observe_elsewhere(services, socket, error, path)
        return call.id.session_id, await services.calls.observe(caller, call)

    async def no_upgrade(_request: Request) -> Response:
        """Say what is expected here to a caller, or a proxy in front, that speaks plain HTTP."""
        raise ApiError(
            426,
            "websocket_expected",
            "Here a WebSocket opens: a proxy in front has to hand on Upgrade and Connection.",
            headers={"Upgrade": "websocket", "Connection": "Upgrade"},
        )

    app.add_api_websocket_route(SIDE_BAND, side_band)
    app.add_api_route(SIDE_BAND, no_upgrade, methods=["GET"], include_in_schema=False)


def _check_origin(policy: CorsPolicy, socket: WebSocket) -> None:
    if not policy.admits(socket.headers.get("origin"), socket.headers.get("host")):
        raise ApiError(403, "origin_not_allowed", "Pages of this origin may not call here (--cors-origins).")


def _call_id(socket: WebSocket) -> str:
    call_id = socket.query_params.get("call_id")
    if not call_id:
        message = "Say by ?call_id= which call to join. Calls are placed over WebRTC: POST /v1/realtime/calls."
        raise ApiError(400, "missing_call_id", message, param="call_id")
    return call_id
