"""What every request to the internal API passes first: the token, and the bound of its body (docs/internal-api.md)."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from usher_core.internal_api import BASE_PATH, MAX_SDP, MAX_SESSION_JSON, error_answer

MAX_BODY = 2 * (MAX_SDP + MAX_SESSION_JSON)
"""Bytes; JSON may escape what it carries."""


class HttpGuard:
    """ASGI middleware. Puts the time of arrival into the scope as `usher.arrived`.

    Args:
        app: what comes after.
        token: gives the secret of `Authorization: Bearer …`; compared in constant time.
        clock: seconds, monotonic.
    """

    def __init__(self, app: ASGIApp, token: Callable[[], str], clock: Callable[[], float]) -> None:
        self._app = app
        self._token = token
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI says."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope["usher.arrived"] = self._clock()
        if scope["path"].startswith(BASE_PATH + "/") and not self._is_authorised(scope):
            await self._refuse(scope, receive, send)
            return
        if _declared_length(scope) > MAX_BODY:
            answer = error_answer("invalid_request_error", "too_large", f"a body has at most {MAX_BODY} bytes")
            await JSONResponse(answer, 413)(scope, receive, send)
            return
        await self._app(scope, _Bounded(receive) if scope["type"] == "http" else receive, send)

    def _is_authorised(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, f"Bearer {self._token()}".encode())

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = error_answer("authentication_error", "invalid_token", "the internal token is missing or wrong")
        refusal = JSONResponse(answer, 401, {"WWW-Authenticate": "Bearer"})
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(refusal)
        else:
            await refusal(scope, receive, send)


class _Bounded:
    """Cuts a chunked body that never ends."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = MAX_BODY

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        return message if self._left >= 0 else {"type": "http.disconnect"}


def _declared_length(scope: Scope) -> int:
    text = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(text) if text.isdigit() and len(text) < 16 else 0
