"""Cross-origin rules: pages of other origins call the API, so every answer says who may read it (WHATWG Fetch).

The Realtime SDK in a browser sends `X-OpenAI-Agents-SDK`, which makes a preflight, and reads its call id out of
`Location`.
"""

from __future__ import annotations

from collections.abc import Sequence

from usher_signaling.loopback import is_loopback_origin

METHODS = "GET, POST, PATCH, DELETE, OPTIONS"
ALLOWED_HEADERS = "Authorization, Content-Type, If-Match, X-OpenAI-Agents-SDK"
EXPOSED_HEADERS = "Location, ETag, Link, Retry-After, Usher-Path"
MAX_AGE_S = 7200  # what Chromium keeps at most


class CorsPolicy:
    """Which origins may call.

    Args:
        origins: allowed ones, or `*`.
        loopback_only: allow pages of this machine and no others.
    """

    def __init__(self, origins: Sequence[str], *, loopback_only: bool) -> None:
        self._origins = frozenset(origin.rstrip("/") for origin in origins)
        self._loopback_only = loopback_only

    def headers(self, origin: str | None, *, preflight: bool) -> dict[str, str]:
        """The CORS headers of an answer to `origin`; none when it may not read the answer."""
        allowed = self._allowed(origin)
        # What depends on the Origin must not be cached for another one.
        headers = {} if allowed == "*" else {"Vary": "Origin"}
        if allowed is None:
            return headers
        headers["Access-Control-Allow-Origin"] = allowed
        if preflight:
            headers["Access-Control-Allow-Methods"] = METHODS
            headers["Access-Control-Allow-Headers"] = ALLOWED_HEADERS
            headers["Access-Control-Max-Age"] = str(MAX_AGE_S)
        else:
            headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
        return headers

    def admits(self, origin: str | None, host: str | None) -> bool:
        """Whether a page of `origin` may open a WebSocket: browsers leave that question to the server.

        They name the origin of our own pages as well, whose authority is the `Host` that they ask.
        """
        return origin is None or self._allowed(origin) is not None or origin.partition("://")[2] == host

    def _allowed(self, origin: str | None) -> str | None:
        if self._loopback_only:
            return origin if origin is not None and is_loopback_origin(origin) else None
        if "*" in self._origins:
            return "*"
        return origin if origin in self._origins else None
