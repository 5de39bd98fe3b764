"""What the routes share: who is calling, and what an offer's request carries beside the SDP."""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.requests import HTTPConnection, Request

from usher_core.ids import join_host_port
from usher_shell.http_protocol import ADMITTED
from usher_signaling.auth import Caller
from usher_signaling.calls import Offer, OwnedCall, PlacedCall, PlacedPath
from usher_signaling.errors import ApiError
from usher_signaling.services import Services

MAX_MODEL = 256
KEY_PROTOCOL = "openai-insecure-api-key."
"""Begins the subprotocol by which clients of the Realtime API pass a key from a page."""

# W3C Trace Context section 3.2: version, trace id, parent id, flags.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def authenticate(services: Services, request: HTTPConnection, *, expired_too: bool = False) -> Caller:
    """Return who is calling. Raises ApiError 401."""
    try:
        caller = services.authenticator.authenticate(_authorization(request), expired_too=expired_too)
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


async def place(services: Services, caller: Caller, offer: Offer) -> PlacedCall:
    """Place a call within the tenant's limits. Raises ApiError."""
    async with services.limits.call(caller) as slot:
        placed = await services.calls.place(caller, offer)
        slot.placed = (placed.path.transceiver.route, placed.number)
        return placed


async def end(services: Services, caller: Caller, call: OwnedCall) -> None:
    """End a call. Raises ApiError."""
    await services.calls.end(call)
    if services.limits.of(caller.tenant).calls is not None:
        await services.directory.ask(call.owner)  # so that its tenant may place another one at once


def _authorization(request: HTTPConnection) -> str | None:
    """The Authorization header. A page can't set one for a WebSocket: there the key may be a subprotocol."""
    header = request.headers.get("authorization")
    if header is None and request.scope["type"] == "websocket":
        offered: list[str] = request.scope["subprotocols"]
        keys = [name.removeprefix(KEY_PROTOCOL) for name in offered if name.startswith(KEY_PROTOCOL)]
        return f"Bearer {keys[0]}" if keys else None
    return header


def traceparent(request: Request) -> str | None:
    """The caller's trace context, None when there is none or it is malformed (then it counts as none)."""
    value = request.headers.get("traceparent", "")
    return value if _TRACEPARENT.fullmatch(value) else None


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
    return {"Usher-Path": "; ".join(f"{name}={value}" for name, value in parts.items())}
