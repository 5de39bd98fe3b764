"""WHIP (RFC 9725): POST an offer, PATCH candidates or an ICE restart, DELETE the session.

Rules of PATCH (section 4.3; the entity tag names the ICE session, see entity_tags):
* No If-Match: 428. A tag that is not the current one: 412.
* `If-Match: *` with ice-ufrag and ice-pwd: an ICE restart, 200 with our new credentials and the new tag.
* The current tag, with credentials that are not the client's current ones: a restart as well. There are clients that
  send the tag they know instead of the star.
* The current tag otherwise: candidates, 204.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from usher_core.errors import RemoteError
from usher_core.internal_api import MAX_SDP, IceRestarted, RestartIce, SessionInfo, Trickle
from usher_core.sdpfrag import Fragment, FragmentSection, build_fragment, parse_fragment
from usher_signaling.bodies import FRAGMENT, SDP, decode_sdp, media_type, read_body
from usher_signaling.calls import Offer, OwnedCall
from usher_signaling.entity_tags import IfMatch, entity_tag, parse_if_match
from usher_signaling.errors import NO_STORE, ApiError, call_not_found, unsupported_media_type
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

ENDPOINT = "/whip"
SESSION = "/whip/{call_id}"
MAX_CANDIDATES = 64


def add_whip_routes(app: FastAPI, services: Services) -> None:
    """Add the routes."""
    settings, calls = services.settings, services.calls

    async def create_session(request: Request) -> Response:
        """Answer an SDP offer: 201, the answer as body, the session's address in Location, its tag in ETag."""
        caller = await admit(services, request)
        if media_type(request.headers) != SDP:
            raise unsupported_media_type(SDP, {"Accept-Post": SDP})
        model = query_model(request)
        body = await read_body(request, MAX_SDP, settings.body_deadline)
        offer = Offer(decode_sdp(body), dict(model), traceparent(request.headers))
        placed = await place(services, request, caller, offer, body)
        if isinstance(placed, Response):
            return placed
        headers = {
            "Location": f"{ENDPOINT}/{placed.call_id}",
            "ETag": placed.entity_tag,
            "Accept-Patch": FRAGMENT,
            **path_headers(services, placed.path),
            **NO_STORE,
        }
        return Response(placed.answer, 201, headers, media_type=SDP)

    async def patch_session(request: Request, call_id: str) -> Response:
        """Take candidates (204), or restart ICE (200)."""
        call = await find(services, authenticate(services, request, expired_too=True), call_id)
        if media_type(request.headers) != FRAGMENT:
            raise unsupported_media_type(FRAGMENT, {"Accept-Patch": FRAGMENT})
        wanted = _if_match(request.headers.getlist("if-match"))
        fragment = _fragment(await read_body(request, MAX_SDP, settings.body_deadline))
        info = await calls.describe(call)
        if info.state == "ended":
            raise call_not_found()
        if not wanted.matches(entity_tag(info.ufrag)):
            raise ApiError(412, "precondition_failed", "If-Match names an older ICE session.", param="If-Match")
        if _asks_restart(wanted, fragment, info):
            return await restart(call, fragment)
        await calls.trickle(call, _trickle(fragment))
        return Response(status_code=204, headers=NO_STORE)

    async def restart(call: OwnedCall, fragment: Fragment) -> Response:
        if fragment.ufrag is None or fragment.pwd is None:
            raise ApiError(422, "missing_credentials", 'An ICE restart (If-Match "*") needs a=ice-ufrag and a=ice-pwd.')
        restarted = await calls.restart(call, RestartIce(ufrag=fragment.ufrag, pwd=fragment.pwd))
        headers = {"ETag": entity_tag(restarted.ufrag), **NO_STORE}
        return Response(build_fragment(_answer(restarted)), 200, headers, media_type=FRAGMENT)

    async def delete_session(request: Request, call_id: str) -> Response:
        """End the session. If-Match is not looked at (section 4.3.1)."""
        caller = authenticate(services, request, expired_too=True)
        await end(services, caller, await find(services, caller, call_id))
        return Response(status_code=200, headers=NO_STORE)

    app.add_api_route(ENDPOINT, create_session, methods=["POST"], status_code=201)
    app.add_api_route(SESSION, patch_session, methods=["PATCH"])
    app.add_api_route(SESSION, delete_session, methods=["DELETE"])


def _if_match(values: list[str]) -> IfMatch:
    if not values:
        raise ApiError(
            428,
            "precondition_required",
            'Send If-Match: the ETag of the last answer for candidates, "*" for an ICE restart.',
            param="If-Match",
        )
    try:
        return parse_if_match(", ".join(values))
    except RemoteError as error:
        raise ApiError(400, "bad_if_match", error.message, param="If-Match") from None


def _fragment(body: bytes) -> Fragment:
    try:
        return parse_fragment(body)
    except RemoteError as error:
        raise ApiError(400, error.reason, error.message) from None


def _asks_restart(wanted: IfMatch, fragment: Fragment, info: SessionInfo) -> bool:
    return wanted.any or (fragment.ufrag is not None and fragment.ufrag not in info.remote_ufrags)


def _trickle(fragment: Fragment) -> Trickle:
    """The candidates of a fragment. Those past the bound are left out: an ICE-lite server reads none of them."""
    candidates = [candidate for section in fragment.sections for candidate in section.candidates]
    ended = fragment.end_of_candidates or any(section.end_of_candidates for section in fragment.sections)
    return Trickle(
        ufrag=fragment.ufrag,
        pwd=fragment.pwd,
        candidates=tuple(candidates[:MAX_CANDIDATES]),
        end_of_candidates=ended,
    )


def _answer(restarted: IceRestarted) -> Fragment:
    """Our side of a restart. One section is enough: the first tags the bundle (RFC 9725 section 4.3.2)."""
    first = FragmentSection(restarted.mids[0], restarted.candidates, end_of_candidates=True) if restarted.mids else None
    return Fragment(
        ufrag=restarted.ufrag,
        pwd=restarted.pwd,
        sections=(first,) if first else (),
        bundle=restarted.mids,
        ice_lite=True,
    )
