"""The HTTP side of a call: place it, ask about it, hang up. Errors are sentences for the person at the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

import httpx

from usher_core.errors import LocalError, RemoteError
from usher_core.ids import is_loopback_host

CALLS_PATH = "/v1/realtime/calls"
REGION_HEADER = "Usher-Region"
"""By it a caller of `usher up` with several regions names the one whose transceivers it wants; the page has it, too."""
ANSWER_LIMIT_S = 15.0
"""From the request to the last byte of the answer."""
LOOK_LIMIT_S = 2.0
"""What the server tells about a call is a help, and not to be waited for."""
HANG_UP_LIMIT_S = 2.0
ICE_GUESS = "does the advertised address lead to the relay's UDP port?"
DTLS_GUESS = "larger packets may get lost on the way"
MAX_ANSWER = 128 * 1024
"""Bytes of a body. An SDP answer has some KiB."""
MAX_SAID = 300
"""Characters of a server's own words that are shown."""


class CallError(RemoteError):
    """A call that did not come about, or broke; the message says why in words."""

    def __init__(self, message: str) -> None:
        super().__init__("call_failed", message)


@dataclass(frozen=True, slots=True)
class Placed:
    """An answered call: SDP of the answer, and the call's own URL where the server gave one."""

    answer: str
    url: str | None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the server answered, read whole."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the body as JSON. Raises ValueError."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def calls_url(url: str) -> str:
    """Return where to POST the offer: `url` itself, or the calls API below a base URL without a path.

    A query stays: `?model=parrot` chooses a backend. Raises LocalError for what is no HTTP URL.
    """
    try:
        parts = _http_parts(url if "://" in url else f"http://{url}")
    except ValueError:
        raise LocalError(f"{url!r} is no HTTP URL", "write http://127.0.0.1:8080, say") from None
    path = parts.path if parts.path.strip("/") else CALLS_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the header that carries a key; none without one. Raises LocalError for what no header can carry."""
    if not api_key:
        return {}
    if not all("!" <= character <= "~" for character in api_key):
        raise LocalError(
            "--api-key: a key has visible ASCII characters only", "copy it again; `usher keys api` makes one"
        )
    return {"Authorization": f"Bearer {api_key}"}


def _http_parts(url: str) -> SplitResult:
    """Return the parts of an HTTP URL. Raises ValueError for what a client can't connect to."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an HTTP URL")
    # Each finds faults that the others let pass; all of them would be errors of a later moment.
    _ = parts.port
    parts.hostname.encode("idna")
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None
    return parts


class CallsApi:
    """The calls API of one server. An async context manager.

    Args:
        url: base URL, or that of the calls resource.
        api_key: sent as Bearer; None: none.
        region: sent as the caller's region, as a proxy in front of the server would; None: none.

    Raises LocalError when one of them can't be used.
    """

    def __init__(self, url: str, api_key: str | None, region: str | None = None) -> None:
        self._url = calls_url(url)
        # Compressed answers could become larger than what is read of them.
        headers = {**bearer(api_key), "Accept-Encoding": "identity", **({REGION_HEADER: region} if region else {})}
        # A proxy of the environment is for other machines; few leave out 127.0.0.1.
        is_here = is_loopback_host(urlsplit(self._url).hostname or "")
        try:
            self._client = httpx.AsyncClient(headers=headers, timeout=ANSWER_LIMIT_S, trust_env=not is_here)
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            raise LocalError(f"the proxy that the environment names can't be used: {error}", "see HTTP_PROXY") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def place(self, offer: str) -> Placed:
        """POST the offer. Raises CallError."""
        try:
            answer = await self._ask("POST", self._url, ANSWER_LIMIT_S, offer)
        except httpx.ConnectError as error:
            raise CallError(self._unreachable(error)) from None
        except (httpx.TimeoutException, TimeoutError):
            raise CallError(
                f"the server is at fault: no whole answer from {self._url} within {ANSWER_LIMIT_S:.0f} s"
            ) from None
        except httpx.RemoteProtocolError:
            raise CallError(f"what answers at {self._url} speaks no HTTP: {self._right_scheme_and_port}") from None
        except httpx.HTTPError as error:
            raise CallError(
                f"talking to {self._url} failed: {str(error) or 'the connection broke'}: {self._right_scheme_and_port}"
            ) from None
        if answer.status != httpx.codes.CREATED:
            raise CallError(_refusal(answer, with_key="Authorization" in self._client.headers))
        return Placed(answer.text, self._call_url(answer.headers.get("Location")))

    async def describe(self, url: str, *, trace: bool = False) -> dict[str, Any]:
        """GET what the server tells about a call, with `trace` its hops as well; empty when it does not tell.

        A call goes on without it.
        """
        answer = await self._look(f"{url}?trace=1" if trace else url)
        return _description(answer) if answer is not None else {}

    async def why_ended(self, url: str) -> str | None:
        """Return in words why a call ended; None when the server does not tell, or when the call goes on."""
        answer = await self._look(url)
        if answer is None:
            return None
        if answer.status == httpx.codes.GONE:
            return "its transceiver is gone (call_gone)"
        reason = _description(answer).get("end_reason")
        if reason is None:
            return None
        words = _END_REASONS.get(str(reason))
        return f"{words[0]} ({reason}){words[1]}" if words else f"the server ended it as {str(reason)[:64]}"

    async def _look(self, url: str) -> _Answer | None:
        with contextlib.suppress(httpx.HTTPError, CallError, TimeoutError):
            async with asyncio.timeout(LOOK_LIMIT_S):
                try:
                    return await self._ask("GET", url, LOOK_LIMIT_S)
                except httpx.RemoteProtocolError:
                    # The server closed the connection that was kept alive; a new one gets an answer.
                    return await self._ask("GET", url, LOOK_LIMIT_S)
        return None

    async def hang_up(self, url: str) -> None:
        """End a call; a failure is of no matter, since closing the connection ends it too."""
        with contextlib.suppress(httpx.HTTPError, CallError, TimeoutError):
            await self._ask("POST", f"{url}/hangup", HANG_UP_LIMIT_S)

    async def _ask(self, method: str, url: str, limit_s: float, sdp: str | None = None) -> _Answer:
        """Send a request, and an offer with it; return the whole answer.

        Raises TimeoutError after `limit_s` in all, CallError when the answer is too long, httpx.HTTPError.
        """
        headers = {"Content-Type": "application/sdp"} if sdp is not None else {}
        body = bytearray()
        async with (
            # Those of httpx count from byte to byte; a server that dribbles would never meet them.
            asyncio.timeout(limit_s),
            self._client.stream(method, url, content=sdp, headers=headers) as response,
        ):
            async for part in response.aiter_raw():
                body += part
                if len(body) > MAX_ANSWER:
                    raise CallError(f"the server is at fault: its answer has more than {MAX_ANSWER // 1024} KiB")
        return _Answer(response.status_code, response.headers, bytes(body))

    def _unreachable(self, error: httpx.ConnectError) -> str:
        """Return in words why there is no connection."""
        host = urlsplit(self._url).hostname
        causes = list(_causes(error))
        if any(isinstance(cause, socket.gaierror) for cause in causes):
            return f"the name {host} has no address: is it spelled right?"
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
            return f"the certificate of {host} is not trusted: {error}"
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            return f"what answers at {self._url} speaks no TLS: {self._right_scheme_and_port}"
        return (
            f"nobody answers at {self._url}: on one machine, is `usher up` running? In Kubernetes, is a pod of "
            "signaling ready, and is the port-forward, Ingress or load balancer to it there?"
        )

    @property
    def _right_scheme_and_port(self) -> str:
        other = "http" if self._url.startswith("https:") else "https"
        return f"is the port right, or should the URL begin with {other}://?"

    def _call_url(self, location: str | None) -> str | None:
        """Return the call's own URL. Raises CallError when what the server names is none."""
        if location is None:
            return None
        try:
            url = urljoin(self._url, location)
            _http_parts(url)
        except ValueError:
            raise CallError(f"the server is at fault: its Location {location[:200]!r} is no HTTP URL") from None
        return url


_UNAVAILABLE = {
    "no_transceiver": "no transceiver takes the call now",
    "no_address": "the server has no relay to send us to",
}
"""By the code of a 503."""

_END_REASONS = {
    "backend_failed": ("the backend failed", ": see the transceiver's log"),
    "backend_ended": ("the backend ended it", ""),
    "upstream_failed": ("the Realtime server did not take the call", ": see the transceiver's log"),
    "upstream_closed": ("the Realtime server ended it", ""),
    "dtls_failed": ("the transceiver gave DTLS up", f": {DTLS_GUESS}"),
    "no_first_check": ("no check of ours reached the transceiver", f": {ICE_GUESS}"),
    "silent": ("nothing of ours reached the transceiver any more", ""),
    "internal_error": ("the transceiver failed", ": see its log"),
}
"""By `end_reason`: what it means, and what to do."""


def _description(answer: _Answer) -> dict[str, Any]:
    """Return what the server tells about a call, or nothing."""
    try:
        found = answer.json() if answer.status == httpx.codes.OK else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _refusal(answer: _Answer, *, with_key: bool) -> str:
    code = ""
    try:
        error = answer.json()["error"]
        said, code = str(error["message"]), str(error["code"])
    except (ValueError, KeyError, TypeError):
        said = answer.text
    said = " ".join(said.split())[:MAX_SAID]
    no_api = "there is no calls API here: is this the base URL of usher?"
    # One that signaling did not write comes from what stands before it.
    no_server = "a proxy finds no server behind it: in Kubernetes, is a pod of signaling ready?"
    words = {
        400: "the server does not like our offer",
        401: f"the server {'does not take this key' if with_key else 'wants a key'} (--api-key, or USHER_API_KEY)",
        403: "the server forbids it",
        404: no_api,
        405: no_api,
        429: "the server has too many requests",
        502: "the server could not make the call" if code else no_server,
        503: _UNAVAILABLE.get(code, "the server takes no call now") if code else no_server,
    }.get(answer.status, "the server refused")
    return f"{words} (HTTP {answer.status}{f': {said}' if said else ''})"
