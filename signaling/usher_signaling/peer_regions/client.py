"""Signaling of other regions as we ask it: one method per kind of request, every one with a bound on time and size."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import httpx
from pydantic import ValidationError
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidHandshake, InvalidStatus

from usher_core.internal_api import MAX_SDP, ErrorAnswer
from usher_signaling.bodies import JSON, SDP, media_type_of
from usher_signaling.errors import ApiError
from usher_signaling.header_values import sendable
from usher_signaling.peer_regions.origin import INVALID_FORWARD, WRONG_TOKEN, Origin, RegionTokens
from usher_signaling.tracing import NoTracer, Tracer
from usher_signaling.url_faults import UNUSABLE_URL
from usher_signaling.websocket_client import connect_directly

REQUESTS = "/v1/regions/requests"
MAX_ANSWER = 2 * MAX_SDP
"""An answer in SDP has 64 KiB at most, what is told of a call 2 KiB."""
MAX_EVENT = 1024 * 1024
CONTROL_S = 4.0
"""For a request about a call: its owner has 2 s, and the way there and back is long."""
CLOSE_S = 6.0
"""For a close: it may have to wait for a place there (`routes.peer_requests`), and then asks all transceivers."""
SIDE_BAND_CLOSE_S = 3.0
HANDED_BACK = (
    "Accept-Patch",
    "Accept-Post",
    "Content-Type",
    "ETag",
    "Retry-After",
    "Usher-Path",
    "WWW-Authenticate",
)
LOCATION = "Location"
MAX_HEADER = 1024
"""Characters of a header that is looked at."""

_CALL_ID = re.compile(r"rtc_[A-Za-z0-9_-]{1,256}")


class PeerError(Exception):
    """Another region did not do what it was asked, for a fault of its own, of ours or of the way. `outcome`: a word."""

    outcome = "failed"


class UnsendableError(ApiError):
    """What a caller sent can't be handed on: nothing was sent, so it says nothing of the region."""

    def __init__(self) -> None:
        super().__init__(400, "invalid_request", "The region of this call can't be sent this request: see its headers.")


class PeerRefusedUsError(PeerError):
    """It does not take what we hand on, whoever the caller is: so it has made no call either."""


class PeerTimedOutError(PeerError):
    """It did not answer in time; whether it did what it was asked is unknown."""

    outcome = "timed_out"


@dataclass(frozen=True, slots=True)
class Passed:
    """A request to hand on: of a caller's, only what is named here. `path` holds nothing that a caller could choose."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """An answer, read whole. Of its headers those that are looked at, by the names above."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class PeerClient:
    """Speaks to the signaling of all peers over one pool of connections.

    Args:
        tokens: the region tokens now.
        tls: whose certificates are believed.
        transport: replaces the network in tests.
        tracer: opens a span for each request.
    """

    def __init__(
        self,
        tokens: Callable[[], RegionTokens],
        tls: ssl.SSLContext,
        transport: httpx.AsyncBaseTransport | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._tokens = tokens
        self._tls = tls
        self._tracer = tracer or NoTracer()
        # Signaling closes an idle connection after 5 s: one that is closed while our request is on its way fails it.
        limits = httpx.Limits(max_connections=1000, max_keepalive_connections=200, keepalive_expiry=4)
        self._http = httpx.AsyncClient(
            transport=transport,
            verify=tls,
            limits=limits,
            headers={"Accept-Encoding": "identity"},
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(self, base: str, passed: Passed, origin: Origin, within: float) -> PeerAnswer:
        """Hand a request on, for `within` seconds. The answer is 2xx and has no headers but those for the caller.

        Raises ApiError, what the peer says to the caller; PeerError.
        """
        name = f"{passed.method} {passed.path}" if origin.request_id else passed.method
        with self._tracer.call(name, {"http.request.method": passed.method, "usher.region": _host(base)}):
            answer = _checked(await self._send(base, passed, origin, within))
            if origin.request_id is not None:
                return _placed(answer, passed.path)
            return PeerAnswer(answer.status, _handed_back(answer.headers), answer.body)

    async def observe(self, base: str, path: str, authorization: str, origin: Origin) -> ClientConnection:
        """Open a side-band at a peer; the caller closes the connection. Raises ApiError, PeerError."""
        url = base.replace("http", "ws", 1) + path
        try:
            return await connect_directly(
                url,
                additional_headers={"Authorization": authorization, **origin.headers(self._tokens())},
                ssl=self._tls if url.startswith("wss:") else None,
                proxy=None,
                compression=None,
                max_size=MAX_EVENT,
                open_timeout=CONTROL_S,
                close_timeout=SIDE_BAND_CLOSE_S,
            )
        except InvalidStatus as error:
            response = error.response
            headers = _looked_at(response.headers.raw_items())
            raise _refusal(PeerAnswer(response.status_code, headers, bytes(response.body or b""))) from None
        except TimeoutError:
            raise PeerTimedOutError(f"{base} opened no side-band within {CONTROL_S:g} s") from None
        except (OSError, InvalidHandshake, *UNUSABLE_URL) as error:
            raise PeerError(f"{base}: {type(error).__name__}: {error}") from None

    async def close_request(self, base: str, origin: Origin) -> None:
        """End the call that an offer may have made. Raises ApiError, PeerError: then it may be there still."""
        passed = Passed("DELETE", f"{REQUESTS}/{origin.request_id}")
        _ = _checked(await self._send(base, passed, Origin(origin.region), CLOSE_S))

    async def _send(self, base: str, passed: Passed, origin: Origin, within: float) -> PeerAnswer:
        headers = {**passed.headers, **origin.headers(self._tokens())}
        if traceparent := self._tracer.traceparent():
            headers["traceparent"] = traceparent
        try:
            # httpx limits each phase; the caller needs a limit on the whole.
            async with asyncio.timeout(within):
                async with self._http.stream(
                    passed.method,
                    base + passed.path,
                    params=passed.query or None,
                    content=passed.body or None,
                    headers=headers,
                    timeout=within,
                ) as response:
                    body = await _read_bounded(response)
        except (TimeoutError, httpx.TimeoutException):
            raise PeerTimedOutError(f"{base} did not answer within {within:.1f} s") from None
        except (httpx.LocalProtocolError, httpx.InvalidURL):
            raise UnsendableError from None
        except (httpx.HTTPError, OSError, *UNUSABLE_URL) as error:
            raise PeerError(f"{base}: {type(error).__name__}: {error}") from None
        return PeerAnswer(response.status_code, _looked_at(response.headers.multi_items()), body)


def _host(base: str) -> str:
    try:
        return httpx.URL(base).host
    except UNUSABLE_URL as error:
        raise PeerError(f"{base}: {error}") from None


async def _read_bounded(response: httpx.Response) -> bytes:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise PeerError("a compressed answer, though none was asked for")
    answer = bytearray()
    async for chunk in response.aiter_raw():
        answer += chunk
        if len(answer) > MAX_ANSWER:
            raise PeerError(f"an answer of more than {MAX_ANSWER} bytes")
    return bytes(answer)


def _looked_at(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers that mean something here, without those that can't be sent on (RFC 9110 section 5.3)."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name.lower(), []).append(value)
    whole = {name: sendable(", ".join(values.get(name.lower(), ())), MAX_HEADER) for name in (*HANDED_BACK, LOCATION)}
    return {name: value for name, value in whole.items() if value is not None}


def _handed_back(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != LOCATION}


def _checked(answer: PeerAnswer) -> PeerAnswer:
    """Return an answer that is 2xx. Raises ApiError with a refusal that is signaling's, PeerError for anything else."""
    if not 200 <= answer.status < 300:
        raise _refusal(answer)
    return answer


def _refusal(answer: PeerAnswer) -> Exception:
    """What an answer that is not 2xx means."""
    error = None
    if 400 <= answer.status < 600 and _media_type(answer) == JSON:
        with contextlib.suppress(ValidationError):
            error = ErrorAnswer.model_validate_json(answer.body).error
    if error is None:
        message = f"HTTP status {answer.status} without an error of signaling: is something else in front of it?"
        return PeerError(message)
    if error.code == WRONG_TOKEN:
        return PeerRefusedUsError("it does not take our region token: --region-token-file has to be the same in both")
    if error.code == INVALID_FORWARD:
        return PeerRefusedUsError(f"it does not read what we write ({error.message}): are the versions far apart?")
    kept = {name: value for name, value in _handed_back(answer.headers).items() if name != "Content-Type"}
    return ApiError(answer.status, error.code, error.message, param=error.param, headers=kept)


def _placed(answer: PeerAnswer, path: str) -> PeerAnswer:
    """Return the answer to an offer that went to `path`, with where its call is. Raises PeerError: it places none."""
    start, _, call_id = answer.headers.get(LOCATION, "").rpartition("/")
    if answer.status != 201 or start != path or not _CALL_ID.fullmatch(call_id) or _media_type(answer) != SDP:
        raise PeerError("an answer to an offer that is none of signaling's")
    return PeerAnswer(answer.status, {**answer.headers, "Content-Type": SDP}, answer.body)


def _media_type(answer: PeerAnswer) -> str:
    return media_type_of(answer.headers.get("Content-Type", ""))
