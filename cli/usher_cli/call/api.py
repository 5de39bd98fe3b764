"""The HTTP side of a call: place it, ask about it, hang up. Errors are sentences for the person at the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from usher_core.errors import LocalError, RemoteError
from usher_core.ids import is_loopback_host

CALLS_PATH = "/v1/realtime/calls"
ANSWER_LIMIT_S = 15.0


class CallError(RemoteError):
    """A call that did not come about, or broke; the message says why in words."""

    def __init__(self, message: str) -> None:
        super().__init__("call_failed", message)


@dataclass(frozen=True, slots=True)
class Placed:
    """An answered call: SDP of the answer, and the call's own URL where the server gave one."""

    answer: str
    url: str | None


def calls_url(url: str) -> str:
    """Return where to POST the offer: `url` itself, or the calls API below a base URL without a path.

    Raises LocalError for what is no HTTP URL.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LocalError(f"{url!r} is no HTTP URL", "write http://127.0.0.1:8080, say")
    path = parts.path if parts.path.strip("/") else CALLS_PATH
    return f"{parts.scheme}://{parts.netloc}{path}"


class CallsApi:
    """The calls API of one server. An async context manager.

    Args:
        url: base URL, or that of the calls resource.
        api_key: sent as Bearer; None: none.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = calls_url(url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy of the environment is for other machines; few leave out 127.0.0.1.
        is_here = is_loopback_host(urlsplit(self._url).hostname or "")
        self._client = httpx.AsyncClient(headers=headers, timeout=ANSWER_LIMIT_S, trust_env=not is_here)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def place(self, offer: str) -> Placed:
        """POST the offer. Raises CallError."""
        try:
            response = await self._client.post(self._url, content=offer, headers={"Content-Type": "application/sdp"})
        except httpx.ConnectError:
            raise CallError(f"nobody answers at {self._url}: is `usher up` running?") from None
        except httpx.TimeoutException:
            raise CallError(f"no answer from {self._url} within {ANSWER_LIMIT_S:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CallError(f"talking to {self._url} failed: {error}") from None
        if response.status_code != httpx.codes.CREATED:
            raise CallError(_refusal(response))
        location = response.headers.get("Location")
        return Placed(response.text, str(response.url.join(location)) if location else None)

    async def describe(self, url: str) -> dict[str, Any]:
        """GET what the server tells about a call; empty when it does not tell. A call goes on without it."""
        for _ in range(2):
            try:
                response = await self._client.get(url)
                found = response.json() if response.is_success else {}
            except httpx.RemoteProtocolError:
                # The server closed the connection that was kept alive; a new one gets an answer.
                continue
            except (httpx.HTTPError, ValueError):
                break
            return found if isinstance(found, dict) else {}
        return {}

    async def hang_up(self, url: str) -> None:
        """End a call; a failure is of no matter, since closing the connection ends it too."""
        try:
            await self._client.post(f"{url}/hangup")
        except httpx.HTTPError:
            return


def _refusal(response: httpx.Response) -> str:
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = " ".join(response.text.split())[:200]
    words = {
        400: "the server does not like our offer",
        401: "the server wants another key (--api-key, or USHER_API_KEY)",
        403: "the server forbids it",
        404: "there is no calls API here: is this the base URL of usher?",
        429: "the server has too many requests",
        503: "no transceiver takes the call now",
    }.get(response.status_code, "the server refused")
    return f"{words} (HTTP {response.status_code}{f': {said}' if said else ''})"
