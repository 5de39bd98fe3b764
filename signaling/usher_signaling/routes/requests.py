"""What the routes share: who is calling, and what an offer's request carries beside the SDP."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from usher_core.ids import join_host_port
from usher_shell.http_protocol import ADMITTED
from usher_signaling.auth import Caller
from usher_signaling.calls import Offer, OwnedCall, PlacedCall, PlacedPath
from usher_signaling.errors import ApiError
from usher_signaling.peer_regions.client import PeerAnswer
from usher_signaling.routes.caller_headers import authorization
from usher_signaling.routes.elsewhere import PATH_HEADER, ElsewhereError, elsewhere_response, handed_on
from usher_signaling.services import Services

MAX_MODEL = 256


def authenticate(services: Services, request: HTTPConnection, *, expired_too: bool = False) -> Caller:
    """Return who is calling. Raises ApiError 401."""
    try:
        caller = services.authenticator.authenticate(authorization(request), expired_too=expired_too)
    except ApiError as error:
        services.metrics.auth_failures.labels(error.code).inc()
        raise
    setattr(request.state, ADMITTED, True)
    return caller


async def admit(services: Services, request: HTTPConnection) -> Caller:
    """Return who is calling, and count the request against the tenant's rate. Raises ApiError 401 or 429."""
    caller = authenticate(services, request)
    await services.limits.request(caller)
    return caller


async def place(
    services: Services, request: Request, caller: Caller, offer: Offer, body: bytes
) -> PlacedCall | Response:
    """Place a call within the tenant's limits, here or in another region, whose answer is the response.

    `body` is that of the request, whose region counts for the offer. Raises ApiError.
    """
    origin = services.peers.origin(request.headers)
    where = region(services, request) if origin is None else origin.region
    async with services.limits.call(caller) as slot:
        placed = await services.steering.place(
            caller, replace(offer, region=where), lambda: handed_on(request, body, query_model(request)), origin
        )
        if isinstance(placed, PeerAnswer):
            return elsewhere_response(services, placed)
        slot.placed = (placed.path.transceiver.route, placed.number)
        return placed


async def find(services: Services, caller: Caller, call_id: str) -> OwnedCall:
    """Return the call and its owner. Raises ApiError 404 or 410, ElsewhereError when it is another region's."""
    call = services.calls.open(caller, call_id)
    peer = services.peers.table().owner(call.route.cluster)
    if peer is not None:
        raise ElsewhereError(call, peer)
    return await services.calls.owned(call)


async def end(services: Services, caller: Caller, call: OwnedCall) -> None:
    """End a call. Raises ApiError."""
    await services.calls.end(call)
    if services.limits.of(caller.tenant).calls is not None:
        await services.directory.ask(call.owner)  # so that its tenant may place another one at once


def query_model(request: Request) -> dict[str, str]:
    """The session that `?model=` asks for. Raises ApiError 400 when it is too long."""
    model = request.query_params.get("model", "")
    if len(model) > MAX_MODEL or not model.isprintable():
        raise ApiError(400, "invalid_model", f"A model name has at most {MAX_MODEL} characters.", param="model")
    return {"model": model} if model else {}


def region(services: Services, request: Request) -> str:
    """Return the region of a request, "" for none."""
    regions = services.regions
    values = request.headers.getlist(regions.header) if regions.header else []
    return regions.of_request(request.client.host if request.client else None, values)


def path_headers(services: Services, path: PlacedPath) -> dict[str, str]:
    """The header by which a client learns where its call was placed; none unless the operator wants it."""
    if not services.settings.debug_path:
        return {}
    relays = ",".join(join_host_port(entry.address.host, entry.address.port) for entry in path.addresses)
    parts = {
        "client-region": path.region,
        "transceiver": str(path.transceiver.route),
        "region": quote(path.transceiver.region),  # the route file may name a region in any letters
        "relays": relays,
    }
    return {PATH_HEADER: "; ".join(f"{name}={value}" for name, value in parts.items())}
