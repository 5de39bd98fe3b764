"""Errors of the public API: always JSON, in the shape of the Realtime API.

`{"error": {"type", "code", "message", "param"}}`. `type` is `invalid_request_error` when the caller can do something
about it, `server_error` when not. docs/http-api.md lists every code.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from usher_core.internal_api import error_answer, error_type

PLAIN_CODES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


NO_STORE = {"Cache-Control": "no-store"}
"""On every answer that is about one caller: no cache may keep it."""


class ApiError(Exception):
    """An answer that is not 2xx.

    Args:
        status: HTTP status, 400 to 599.
        code: short constant for programs.
        message: for a person: what was expected, what to do.
        param: the field or header at fault, if it is one.
        headers: extra headers of the answer, such as `Retry-After`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The answer. Nobody may cache it."""
        body = error_answer(error_type(self.status), self.code, self.message, self.param)
        return JSONResponse(body, self.status, {**NO_STORE, **self.headers})


def unsupported_media_type(expected: str, headers: Mapping[str, str] | None = None) -> ApiError:
    """415: the body is of another kind than `expected`."""
    return ApiError(
        415, "unsupported_media_type", f"Send Content-Type: {expected}.", param="Content-Type", headers=headers
    )


def call_not_found() -> ApiError:
    """404 for an id that is unknown, ended, forged or another tenant's: the caller must not learn which."""
    return ApiError(404, "call_not_found", "There is no such call, or it has ended.", param="call_id")


def unavailable(code: str, message: str, retry_after_s: int = 1) -> ApiError:
    """503 that says when to come again."""
    return ApiError(503, code, message, headers={"Retry-After": str(retry_after_s)})
