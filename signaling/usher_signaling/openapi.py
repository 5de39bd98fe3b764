"""The public API in OpenAPI 3.1, served at `/openapi.json`.

Bodies are SDP, forms and fragments, of which FastAPI knows nothing, so the operations are described here and not in
the routes. Tests hold the two together: none may lack, and schemathesis tries what stands here against the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from usher_core.event_policy import MAX_NAME_LENGTH, MAX_NAMES, PRESETS, PRIVATE_FIELDS
from usher_core.internal_api import MAX_PAGE, MAX_SDP, State, Timings
from usher_signaling.bodies import FRAGMENT, JSON, MULTIPART, SDP
from usher_signaling.client_secrets import MAX_METADATA, MAX_METADATA_NAME, MAX_METADATA_VALUE

PATH = "/openapi.json"
VERSION = "3.1.0"

Object = dict[str, Any]

ERRORS = {
    400: "The request is malformed; the message says what was expected.",
    401: "No key, an unknown one, or an ephemeral key that has expired.",
    403: "This key may not do this, or the server serves its own machine only.",
    404: "No such call, or none of this tenant.",
    408: "The body did not arrive in time.",
    410: "The transceiver that had the call is gone, and the call with it.",
    412: "`If-Match` is not the current entity tag.",
    413: "The body is too large.",
    415: "The body has another media type than those named here.",
    422: "Well formed, but not possible.",
    426: "A WebSocket is expected here.",
    428: "`If-Match` is missing.",
    429: "A limit of this key is reached.",
    500: "A fault of the server; the message has an id that its log knows.",
    502: "The owner of the call could not be reached, or failed.",
    503: "Nobody takes the call or the request now.",
    504: "The owner of the call did not answer in time.",
}
"""What an error status means. docs/http-api.md lists the codes."""

EVERYWHERE = (400, 401, 403, 429, 500, 503)
BODY = (408, 413, 415)
OFFER = (*BODY, 422)
CALL = (404, 410, 502, 504)

_TEXT: Object = {"type": "string"}
_METADATA: Object = {
    "type": "object",
    "description": "for the backend of each call",
    "maxProperties": MAX_METADATA,
    "propertyNames": {"maxLength": MAX_METADATA_NAME},
    "additionalProperties": {**_TEXT, "maxLength": MAX_METADATA_VALUE},
}
_EVENT_TYPES: Object = {"type": "array", "maxItems": MAX_NAMES, "items": {**_TEXT, "maxLength": MAX_NAME_LENGTH}}
_EVENT_POLICY: Object = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "allow": {**_EVENT_TYPES, "description": "types of events that may be sent; all without it"},
        "deny": {**_EVENT_TYPES, "description": "types of events that may not be sent"},
        "private": {
            "type": "array",
            "maxItems": MAX_NAMES,
            "items": {"enum": list(PRIVATE_FIELDS)},
            "description": "fields that are neither seen nor set",
        },
    },
}
_SECONDS: Object = {"type": "number", "description": "seconds"}
_HEADERS: dict[int, Object] = {
    401: {"WWW-Authenticate": {"schema": _TEXT, "description": "`Bearer`"}},
    429: {"Retry-After": {"schema": _TEXT, "description": "seconds"}},
    503: {"Retry-After": {"schema": _TEXT, "description": "seconds"}},
}


def describe(app: FastAPI, *, keyless: bool) -> Object:
    """Describe the routes that `app` has. `keyless`: no key is asked for."""
    paths: dict[str, Object] = {}
    for method, path in public_routes(app):
        if operation := _OPERATIONS.get((method, path)):
            paths.setdefault(path, {})[method.lower()] = operation
    for path, operations in paths.items():
        if "{call_id}" in path:
            operations["parameters"] = [{"$ref": "#/components/parameters/call_id"}]
    return {
        "openapi": VERSION,
        "info": {
            "title": "usher",
            "version": version("usher"),
            "description": "Voice calls over WebRTC: the Realtime call API, and WHIP (RFC 9725).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        # No key is one more way in where none is asked for.
        "security": [{"api_key": []}, {"ephemeral_key": []}, {"jwt": []}, *([{}] if keyless else [])],
        "components": {
            "schemas": _SCHEMAS,
            "responses": {f"error_{status}": _error(status) for status in ERRORS},
            "parameters": {"call_id": _CALL_ID},
            "securitySchemes": {
                "api_key": {"type": "http", "scheme": "bearer", "description": "A key of the API key file."},
                "ephemeral_key": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "ek_…",
                    "description": "For pages: made by `POST /v1/realtime/client_secrets`, good until it expires.",
                },
                "jwt": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "Of the issuer that the operator trusts, if there is one.",
                },
            },
        },
    }


def public_routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Yield method and path of every route that callers should know."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in sorted(route.methods or ()):
                yield method, route.path


def add_description(app: FastAPI, *, keyless: bool) -> None:
    """Serve the description of all routes that `app` has by now."""
    document = json.dumps(describe(app, keyless=keyless), ensure_ascii=False).encode()

    async def description(_request: Request) -> Response:
        """The API in OpenAPI 3.1; it needs no key."""
        return Response(document, media_type=JSON, headers={"Cache-Control": "no-cache"})

    app.add_api_route(PATH, description, methods=["GET", "HEAD"], include_in_schema=False)


def _error(status: int) -> Object:
    answer: Object = {"description": ERRORS[status], "content": {JSON: {"schema": _ref("Error")}}}
    return {**answer, "headers": _HEADERS[status]} if status in _HEADERS else answer


def _ref(schema: str) -> Object:
    return {"$ref": f"#/components/schemas/{schema}"}


def _operation(summary: str, done: dict[int, Object], errors: tuple[int, ...], **more: Any) -> Object:
    failed = {str(status): {"$ref": f"#/components/responses/error_{status}"} for status in (*EVERYWHERE, *errors)}
    return {
        "summary": summary,
        **more,
        "responses": {**{str(status): answer for status, answer in done.items()}, **dict(sorted(failed.items()))},
    }


def _answer(description: str, media_type: str = "", schema: Object | None = None, *headers: str) -> Object:
    answer: Object = {"description": description}
    if media_type:
        answer["content"] = {media_type: {"schema": schema or _TEXT}}
    if headers:
        answer["headers"] = {name: {"schema": _TEXT, "required": True} for name in headers}
    return answer


def _body(content: dict[str, Object], *, required: bool = True) -> Object:
    return {"required": required, "content": content}


def _query(name: str, description: str, schema: Object) -> Object:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _list(item: Object, **more: Object) -> Object:
    properties = {"object": {"const": "list"}, "data": {"type": "array", "items": item}, **more}
    return {"type": "object", "required": ["object", "data"], "properties": properties}


_CALL_ID: Object = {
    "name": "call_id",
    "in": "path",
    "required": True,
    "description": "the last part of `Location`",
    "schema": {"type": "string", "pattern": "^rtc_[A-Za-z0-9_-]+$", "minLength": 5, "maxLength": 200},
}

_NULLABLE_TEXT: Object = {"type": ["string", "null"]}
_SCHEMAS: dict[str, Object] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "additionalProperties": False,
        "properties": {
            "error": {
                "type": "object",
                "required": ["type", "code", "message", "param"],
                "additionalProperties": False,
                "properties": {
                    "type": {"enum": ["invalid_request_error", "server_error"]},
                    "code": {**_TEXT, "description": "for programs"},
                    "message": {**_TEXT, "description": "for a person: what was expected, what to do"},
                    "param": {**_NULLABLE_TEXT, "description": "the field or header at fault"},
                },
            }
        },
    },
    "Offer": {
        **_TEXT,
        "minLength": 1,
        "maxLength": MAX_SDP,
        "description": "SDP (RFC 8866) of at most 64 KiB in UTF-8, not blank",
    },
    "Answer": {**_TEXT, "description": "SDP (RFC 8866)"},
    "Fragment": {**_TEXT, "maxLength": MAX_SDP, "description": "SDP fragment (RFC 8840 section 9)"},
    "Session": {
        "type": "object",
        "additionalProperties": True,
        "description": "Handed to the backend as it is; at most 256 KiB.",
    },
    "OfferAndSession": {
        "type": "object",
        "required": ["sdp"],
        "properties": {"sdp": _ref("Offer"), "session": _ref("Session")},
    },
    "OfferInJson": {
        "type": "object",
        "required": ["sdp"],
        "properties": {"sdp": _ref("Offer"), "session": _ref("SessionOrNull")},
    },
    "SessionOrNull": {"anyOf": [_ref("Session"), {"type": "null"}]},
    "Call": {
        "type": "object",
        "required": ["id", "object", "state", "end_reason", "backend", "path", "timings", "age_s"],
        "properties": {
            "id": _TEXT,
            "object": {"const": "realtime.call"},
            "state": {"enum": list(get_args(State))},
            "end_reason": _NULLABLE_TEXT,
            "backend": _TEXT,
            "path": {
                "type": "object",
                "properties": {
                    "relay": _NULLABLE_TEXT,
                    "relay_region": _NULLABLE_TEXT,
                    "cluster": {"type": "integer"},
                    "transceiver": _TEXT,
                    "region": _NULLABLE_TEXT,
                    "hops": {
                        "type": "array",
                        "description": "only with `?trace=1`; round trips are null where nobody knows them",
                        "items": {
                            "type": "object",
                            "required": ["from", "to", "rtt_ms"],
                            "properties": {"from": _TEXT, "to": _TEXT, "rtt_ms": {"type": ["number", "null"]}},
                        },
                    },
                },
            },
            "timings": {
                "type": "object",
                "description": "ms since the offer came, null until it happened",
                "properties": {name: {"type": ["number", "null"]} for name in Timings.model_fields},
            },
            "age_s": _SECONDS,
            "observers": {"type": "integer", "description": "side-bands"},
        },
    },
    "CallList": _list(
        _ref("Call"),
        has_more={"type": "boolean"},
        last_id=_NULLABLE_TEXT,
        partial={"type": "boolean", "description": "whether transceivers did not answer"},
        transceivers_unanswered={"type": "integer"},
    ),
    "SecretRequest": {
        "type": "object",
        "properties": {
            "expires_after": {
                "type": ["object", "null"],
                "properties": {
                    "anchor": {"const": "created_at"},
                    "seconds": {"type": "integer", "minimum": 10, "maximum": 7200},
                },
            },
            "session": _ref("SessionOrNull"),
            "metadata": {**_METADATA, "type": ["object", "null"]},
            "event_policy": {
                "anyOf": [_ref("EventPolicy"), {"enum": list(PRESETS)}, {"type": "null"}],
                "description": "narrows that of the API key",
            },
        },
    },
    "Secret": {
        "type": "object",
        "required": ["value", "expires_at", "session"],
        "properties": {
            "value": {**_TEXT, "pattern": "^ek_", "description": "the ephemeral key"},
            "expires_at": {"type": "integer", "description": "Unix seconds"},
            "session": _ref("Session"),
            "metadata": _METADATA,
            "event_policy": {**_ref("EventPolicy"), "description": "what the key may do; anything without it"},
        },
    },
    "EventPolicy": _EVENT_POLICY,
    "ModelList": _list({"type": "object", "required": ["id", "object"], "properties": {"id": _TEXT}}),
    "Fleet": {"type": "object", "required": ["relays", "transceivers"]},
}

_MODEL = _query("model", "the backend's model, as `model` of the session", {**_TEXT, "maxLength": 256})
_ENDED = {200: _answer("The call has ended.")}
_SDP_BODY: dict[str, Object] = {SDP: {"schema": _ref("Offer")}}
_KEY_ONLY: list[Object] = [{"api_key": []}]
_IF_MATCH: Object = {
    "name": "If-Match",
    "in": "header",
    "required": True,
    "description": "the ETag of the last answer for candidates, `*` for an ICE restart",
    "schema": {**_TEXT, "pattern": r'^(\*|"[!#-~]*")$'},
}

_OPERATIONS: dict[tuple[str, str], Object] = {
    ("POST", "/v1/realtime/calls"): _operation(
        "Place a call",
        {201: _answer("The call is placed.", SDP, _ref("Answer"), "Location")},
        OFFER,
        parameters=[_MODEL],
        requestBody=_body(
            {
                **_SDP_BODY,
                MULTIPART: {
                    "schema": _ref("OfferAndSession"),
                    "encoding": {"sdp": {"contentType": SDP}, "session": {"contentType": JSON}},
                },
                JSON: {"schema": _ref("OfferInJson")},
            }
        ),
    ),
    ("GET", "/v1/realtime/calls"): _operation(
        "List the tenant's calls",
        {200: _answer("A page of calls.", JSON, _ref("CallList"))},
        (404, 502, 504),
        security=_KEY_ONLY,
        parameters=[
            _query("limit", "calls on one page", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}),
            _query("after", "`last_id` of the page before", _TEXT),
        ],
    ),
    ("GET", "/v1/realtime/calls/{call_id}"): _operation(
        "Look at a call",
        {200: _answer("State, path and times.", JSON, _ref("Call"))},
        CALL,
        security=_KEY_ONLY,
        parameters=[_query("trace", "ask the relays for the hops of its path", {"enum": ["1"]})],
    ),
    ("POST", "/v1/realtime/calls/{call_id}/hangup"): _operation("Hang up", _ENDED, CALL),
    ("POST", "/v1/realtime/client_secrets"): _operation(
        "Make an ephemeral key",
        {200: _answer("The key, with the session it carries.", JSON, _ref("Secret"))},
        BODY,
        security=_KEY_ONLY,
        requestBody=_body({JSON: {"schema": _ref("SecretRequest")}}, required=False),
    ),
    ("GET", "/v1/models"): _operation(
        "List the models that a session may name", {200: _answer("The models.", JSON, _ref("ModelList"))}, ()
    ),
    ("GET", "/v1/fleet"): _operation(
        "Look at relays and transceivers",
        {200: _answer("The fleet.", JSON, _ref("Fleet"))},
        (502, 504),
        security=_KEY_ONLY,
    ),
    ("POST", "/whip"): _operation(
        "Place a call by WHIP (RFC 9725 section 4.2)",
        {201: _answer("The call is placed.", SDP, _ref("Answer"), "Location", "ETag", "Accept-Patch")},
        OFFER,
        parameters=[_MODEL],
        requestBody=_body(_SDP_BODY),
    ),
    ("PATCH", "/whip/{call_id}"): _operation(
        "Send candidates, or restart ICE (RFC 9725 section 4.3)",
        {
            200: _answer("ICE has restarted: our credentials and candidates.", FRAGMENT, _ref("Fragment"), "ETag"),
            204: _answer("The candidates are taken."),
        },
        (*CALL, *BODY, 412, 422, 428),
        parameters=[_IF_MATCH],
        requestBody=_body({FRAGMENT: {"schema": _ref("Fragment")}}),
    ),
    ("DELETE", "/whip/{call_id}"): _operation("End a call (RFC 9725 section 4.2)", _ENDED, CALL),
}
