"""Requests that the signaling of another region serves: what is handed on, and what of the answer comes back."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection

from usher_core.internal_api import MAX_SDP
from usher_signaling.bodies import read_body
from usher_signaling.call_ids import CallId
from usher_signaling.errors import NO_STORE, ApiError
from usher_signaling.peer_regions.client import Passed, PeerAnswer
from usher_signaling.peer_regions.table import PeerRegion
from usher_signaling.routes.caller_headers import for_another_region
from usher_signaling.services import Services

HANDED_ON_QUERY = (("trace", "1"),)
"""Of requests about a call."""
PATH_HEADER = "Usher-Path"


class ElsewhereError(Exception):
    """The call of a request is another region's. Its id was opened: it is the caller's tenant's."""

    def __init__(self, call: CallId, peer: PeerRegion) -> None:
        super().__init__(peer.name)
        self.call = call
        self.peer = peer


def handed_on(request: Request, body: bytes, query: Mapping[str, str]) -> Passed:
    """Return what of a request another region gets."""
    return Passed(request.method, request.scope["path"], query, for_another_region(request), body)


def elsewhere_response(services: Services, answer: PeerAnswer) -> Response:
    """Return another region's answer as ours."""
    hidden = () if services.settings.debug_path else (PATH_HEADER,)
    headers = {name: value for name, value in answer.headers.items() if name not in hidden}
    return Response(answer.body, answer.status, {**headers, **NO_STORE})


async def serve_elsewhere(services: Services, request: Request, error: ElsewhereError) -> Response:
    """Hand on a request about a call. What can't be is answered as any other error."""
    try:
        _check_no_loop(services, request, error)
        body = await read_body(request, MAX_SDP, services.settings.body_deadline)
        query = {name: value for name, value in request.query_params.items() if (name, value) in HANDED_ON_QUERY}
        answer = await services.peers.pass_on(error.peer, handed_on(request, body, query), services.settings.region)
    except ApiError as refusal:
        return refusal.response()
    return elsewhere_response(services, answer)


async def observe_elsewhere(
    services: Services, socket: WebSocket, error: ElsewhereError, path: str
) -> ClientConnection:
    """Open the side-band of a call; the caller closes the connection. Raises ApiError."""
    _check_no_loop(services, socket, error)
    authorization = for_another_region(socket).get("Authorization", "")
    return await services.peers.observe(error.peer, path, authorization, services.settings.region)


def _check_no_loop(services: Services, request: Request | WebSocket, error: ElsewhereError) -> None:
    if services.peers.origin(request.headers) is not None:
        message = f"Regions files differ about whose cluster {error.call.route.cluster} is: give all regions the same."
        raise ApiError(502, "region_loop", message)
