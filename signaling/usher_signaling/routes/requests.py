"""What the routes share: who is calling, and what an offer's request carries beside the SDP."""

from __future__ import annotations

import re

from starlette.requests import Request

from usher_signaling.auth import Caller
from usher_signaling.errors import ApiError
from usher_signaling.services import Services

MAX_MODEL = 256

# W3C Trace Context section 3.2: version, trace id, parent id, flags.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def authenticate(services: Services, request: Request, *, expired_too: bool = False) -> Caller:
    """Return who is calling. Raises ApiError 401."""
    try:
        return services.authenticator.authenticate(request.headers.get("authorization"), expired_too=expired_too)
    except ApiError as error:
        services.metrics.auth_failures.labels(error.code).inc()
        raise


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


def location(request: Request, path: str) -> str:
    """The path of a new resource, under the prefix that a proxy in front has told the server about."""
    return f"{request.scope.get('root_path', '')}{path}"
