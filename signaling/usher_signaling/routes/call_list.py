"""The list of a tenant's calls."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from usher_core.decimals import read_decimal
from usher_core.errors import RemoteError
from usher_core.internal_api import DEFAULT_PAGE, MAX_PAGE
from usher_signaling.call_ids import open_call_id
from usher_signaling.call_list import FIRST, CallList
from usher_signaling.errors import NO_STORE, ApiError
from usher_signaling.routes.realtime import CALLS, call_object
from usher_signaling.routes.requests import admit
from usher_signaling.services import Services


def add_call_list_route(app: FastAPI, services: Services) -> None:
    """Add the route."""
    calls = CallList(services.directory, services.client)

    async def list_calls(request: Request) -> Response:
        """Show the live calls of the tenant, for its API keys."""
        caller = await admit(services, request)
        caller.require_api_key()
        limit = _limit(request.query_params.get("limit"))
        after = _after(services, caller.tenant, request.query_params.get("after"))
        page = await calls.page(caller.tenant, limit, after)
        data = [
            call_object(services, services.calls.seal(caller, owner.route, info.session_id), owner, info)
            for owner, info in page.calls
        ]
        answer = {
            "object": "list",
            "data": data,
            "has_more": page.has_more,
            "last_id": data[-1]["id"] if data else None,
            "partial": page.unanswered > 0,
            "transceivers_unanswered": page.unanswered,
        }
        return JSONResponse(answer, headers=NO_STORE)

    app.add_api_route(CALLS, list_calls, methods=["GET"])


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_PAGE
    limit = read_decimal(text, MAX_PAGE, 1)
    if limit is None:
        raise ApiError(400, "invalid_limit", f"limit is a number from 1 to {MAX_PAGE}.", param="limit")
    return limit


def _after(services: Services, tenant: str, text: str | None) -> str:
    if not text:
        return FIRST
    try:
        return open_call_id(services.sealer(), text, tenant).session_id
    except RemoteError:
        raise ApiError(400, "invalid_after", "after is the last_id of the page before.", param="after") from None
