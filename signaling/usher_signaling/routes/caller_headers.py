"""Headers of a caller that other programs get: no more of them than has been checked. No I/O.

Rules:
* What counts is what counts here too: the first Authorization, of the first Content-Type what is read of it, all of
  If-Match.
* A value that HTTP can't carry on, or that is longer than any that makes sense, counts as none. So nobody's header can
  make a request fail that we send, which would look like a fault of whom we send it to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from usher_signaling.bodies import content_type_for_another
from usher_signaling.client_secrets import MAX_SECRET_LENGTH
from usher_signaling.header_values import sendable

KEY_PROTOCOL = "openai-insecure-api-key."
"""Begins the subprotocol by which clients of the Realtime API pass a key from a page."""
MAX_AUTHORIZATION = MAX_SECRET_LENGTH + 64
MAX_VALUE = 1024

# W3C Trace Context section 3.2: version, trace id, parent id, flags.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def authorization(request: HTTPConnection) -> str | None:
    """Return the Authorization header. A page can't set one for a WebSocket: there the key may be a subprotocol."""
    header = request.headers.get("authorization")
    if header is None and request.scope["type"] == "websocket":
        offered: list[str] = request.scope["subprotocols"]
        keys = [name.removeprefix(KEY_PROTOCOL) for name in offered if name.startswith(KEY_PROTOCOL)]
        return f"Bearer {keys[0]}" if keys else None
    return header


def traceparent(headers: Headers) -> str | None:
    """The caller's trace context, None when there is none or it is malformed (then it counts as none)."""
    values = headers.getlist("traceparent")
    return values[0] if len(values) == 1 and _TRACEPARENT.fullmatch(values[0]) else None


def for_another_region(request: HTTPConnection) -> Mapping[str, str]:
    """Return the headers of a request that the signaling of another region gets."""
    headers = request.headers
    values = {
        "Authorization": sendable(authorization(request), MAX_AUTHORIZATION),
        "Content-Type": content_type_for_another(headers),
        "If-Match": sendable(", ".join(headers.getlist("if-match")), MAX_VALUE),
        "traceparent": traceparent(headers),
    }
    return {name: value for name, value in values.items() if value is not None}
