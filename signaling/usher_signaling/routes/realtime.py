"""The Realtime call API: place a call, look at it, hang up, make ephemeral keys."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from usher_core.errors import RemoteError
from usher_core.event_policy import EventPolicy, parse_event_policy
from usher_core.internal_api import SessionInfo, SessionPath
from usher_core.json_values import merge
from usher_core.routes import Transceiver
from usher_core.sealed import NONCE_LENGTH
from usher_signaling.bodies import (
    JSON,
    MAX_OFFER_BODY,
    SDP,
    media_type,
    parse_object,
    parse_offer_request,
    parse_session,
    read_body,
)
from usher_signaling.calls import Offer, PlacedCall
from usher_signaling.client_secrets import ClientSecret, parse_metadata, seal_secret
from usher_signaling.errors import NO_STORE, ApiError, unsupported_media_type
from usher_signaling.routes.caller_headers import traceparent
from usher_signaling.routes.requests import (
    admit,
    authenticate,
    end,
    find,
    path_headers,
    place,
    query_model,
)
from usher_signaling.services import Services

CALLS = "/v1/realtime/calls"
CALL = "/v1/realtime/calls/{call_id}"
HANGUP = "/v1/realtime/calls/{call_id}/hangup"
CLIENT_SECRETS = "/v1/realtime/client_secrets"

MIN_SECRET_S = 10
MAX_SECRET_S = 7200


def add_realtime_routes(app: FastAPI, services: Services) -> None:
    """Add the routes."""
    settings = services.settings

    async def create_call(request: Request) -> Response:
        """Answer an SDP offer: 201, the answer as body, the call's address in Location."""
        caller = await admit(services, request)
        model = query_model(request)
        body = await read_body(request, MAX_OFFER_BODY, settings.body_deadline)
        asked = await parse_offer_request(request.headers, body)
        session = merge(model, asked.session)
        offer = Offer(asked.sdp, session, traceparent(request.headers))
        placed = await place(services, request, caller, offer, body)
        return placed if isinstance(placed, Response) else _created(services, placed)

    async def hang_up(request: Request, call_id: str) -> Response:
        """End a call."""
        caller = authenticate(services, request, expired_too=True)
        await end(services, caller, await find(services, caller, call_id))
        return Response(status_code=200, headers=NO_STORE)

    async def describe_call(request: Request, call_id: str) -> Response:
        """State, path and times of a call, for its tenant's API keys."""
        caller = await admit(services, request)
        caller.require_api_key()
        trace = _wants_trace(request)
        call = await find(services, caller, call_id)
        info = await services.calls.describe(call)
        told = call_object(services, call_id, call.owner, info)
        if trace:
            hops = await services.relays.trace(info.path, _clusters_of_entry(services, info.path))
            told["path"]["hops"] = [hop.as_json() for hop in hops]
        return JSONResponse(told, headers=NO_STORE)

    async def create_client_secret(request: Request) -> Response:
        """Make an ephemeral key that carries a session configuration."""
        caller = await admit(services, request)
        caller.require_api_key()
        body = await read_body(request, MAX_OFFER_BODY, settings.body_deadline)
        if body and media_type(request.headers) != JSON:
            raise unsupported_media_type(JSON)
        asked = parse_object(body) if body.strip() else {}
        session = parse_session(asked.get("session"))
        metadata = _metadata(asked.get("metadata"))
        policy = caller.policy.narrowed(settings.event_policy_of_clients).narrowed(_policy(asked.get("event_policy")))
        now = services.clock()
        expires_at = int(now) + _seconds(asked.get("expires_after"), settings.secret_seconds)
        secret = ClientSecret(caller.tenant, expires_at, session, metadata, policy)
        try:
            value = seal_secret(services.sealer(), secret, secrets.token_bytes(NONCE_LENGTH), now)
        except RemoteError as error:
            raise ApiError(400, error.reason, error.message, param="session") from None
        optional = {"metadata": metadata, "event_policy": policy.as_json()}
        answer = {"value": value, "expires_at": expires_at, "session": session}
        return JSONResponse(answer | {name: part for name, part in optional.items() if part}, headers=NO_STORE)

    app.add_api_route(CALLS, create_call, methods=["POST"], status_code=201)
    app.add_api_route(CALL, describe_call, methods=["GET"])
    app.add_api_route(HANGUP, hang_up, methods=["POST"])
    app.add_api_route(CLIENT_SECRETS, create_client_secret, methods=["POST"])


def _created(services: Services, placed: PlacedCall) -> Response:
    headers = {"Location": f"{CALLS}/{placed.call_id}", **path_headers(services, placed.path), **NO_STORE}
    return Response(placed.answer, 201, headers, media_type=SDP)


def call_object(services: Services, call_id: str, owner: Transceiver, info: SessionInfo) -> dict[str, Any]:
    """Return a call as support sees it."""
    path = info.path
    return {
        "id": call_id,
        "object": "realtime.call",
        "state": info.state,
        "end_reason": info.end_reason,
        "backend": info.backend,
        "path": {
            "relay": path.relay,
            "relay_region": services.calls.relay_region(path.listener) or None,
            "cluster": path.cluster,
            "transceiver": f"{path.cluster}/{path.pod}/{path.worker}",
            "region": owner.region or None,
        },
        "timings": info.timings.model_dump(),
        "age_s": info.age_s,
        "observers": info.observers,
    }


def _clusters_of_entry(services: Services, path: SessionPath) -> tuple[int, ...]:
    """Return the clusters of the region where a call's client enters; none where that is ours, or not known."""
    region = services.peers.table().find(services.calls.relay_region(path.listener))
    return () if region is None else region.clusters


def _wants_trace(request: Request) -> bool:
    """Whether the relays shall be asked for the hops. Raises ApiError 400."""
    asked = request.query_params.getlist("trace")
    if asked not in ([], ["1"]):
        raise ApiError(400, "invalid_trace", "trace is 1, or left out.", param="trace")
    return bool(asked)


def _metadata(value: Any) -> dict[str, str]:
    """The metadata that a new ephemeral key is to carry. Raises ApiError 400."""
    try:
        return parse_metadata(value)
    except RemoteError as error:
        raise ApiError(400, error.reason, error.message, param="metadata") from None


def _policy(value: Any) -> EventPolicy:
    """The policy of events that a new ephemeral key is to have. Raises ApiError 400."""
    try:
        return parse_event_policy(value)
    except RemoteError as error:
        raise ApiError(400, error.reason, error.message, param="event_policy") from None


def _seconds(expires_after: Any, default: int) -> int:
    """The life that `expires_after` asks for. Raises ApiError 400."""
    match expires_after:
        case None:
            return default
        case {"anchor": anchor} if anchor != "created_at":
            pass
        case {"seconds": int(seconds)} if MIN_SECRET_S <= seconds <= MAX_SECRET_S:
            return seconds
        case dict() if "seconds" not in expires_after:
            return default
    raise ApiError(
        400,
        "invalid_expires_after",
        f'expires_after is {{"anchor": "created_at", "seconds": {MIN_SECRET_S} to {MAX_SECRET_S}}}.',
        param="expires_after",
    )
