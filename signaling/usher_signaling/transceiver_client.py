"""The internal API as signaling calls it (docs/internal-api.md): one method per request, every one with a time-out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import structlog
from pydantic import BaseModel, ValidationError
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidHandshake, InvalidStatus

from usher_core.event_policy import EventPolicy
from usher_core.internal_api import (
    BASE_PATH,
    EVENT_POLICY_HEADER,
    CreateSession,
    ErrorAnswer,
    ErrorBody,
    IceRestarted,
    Load,
    RestartIce,
    SessionCreated,
    SessionEnded,
    SessionInfo,
    SessionList,
    Trickle,
)
from usher_signaling.background import BackgroundTasks
from usher_signaling.metrics import Metrics
from usher_signaling.tracing import NoTracer, Tracer
from usher_signaling.url_faults import UNUSABLE_URL
from usher_signaling.websocket_client import connect_directly

ModelT = TypeVar("ModelT", bound=BaseModel)
log = structlog.get_logger()

CREATE_SPAN = (f"POST {BASE_PATH}/sessions", {"http.request.method": "POST"})
MAX_ANSWER = 1024 * 1024
CONTROL_TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 2.0
MAX_CLOSING = 1000
"""Requests being closed after a time-out; beyond it a session ends by itself after 15 s without a first check."""


class TransceiverError(Exception):
    """A transceiver did not do what it was asked."""


class UnreachableError(TransceiverError):
    """It could not be reached, or its answer made no sense."""


class TimedOutError(TransceiverError):
    """It did not answer in time; whether it did what it was asked is unknown."""


class RefusedError(TransceiverError):
    """It answered with an error."""

    def __init__(self, status: int, error: ErrorBody) -> None:
        super().__init__(f"{status} {error.code}: {error.message}")
        self.status = status
        self.error = error


class TransceiverClient:
    """Speaks to all transceivers over one pool of connections.

    Args:
        token: the internal token now.
        metrics: where closings that were left out are counted.
        transport: replaces the network in tests.
        tracer: opens a span for each request.
    """

    def __init__(
        self,
        token: Callable[[], str],
        metrics: Metrics,
        transport: httpx.AsyncBaseTransport | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._token = token
        self._metrics = metrics
        self._tracer = tracer or NoTracer()
        self._closing = BackgroundTasks(MAX_CLOSING)
        # One pool for the fleet: many transceivers, few connections each; idle ones are cheap and save a round trip.
        limits = httpx.Limits(max_connections=2000, max_keepalive_connections=1000, keepalive_expiry=30)
        self._http = httpx.AsyncClient(transport=transport, limits=limits, trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        """End what is under way and close all connections."""
        await self._closing.wait()
        await self._http.aclose()

    async def create(self, base: str, request: CreateSession, within: float) -> SessionCreated:
        """Create a session at the transceiver whose HTTP address is `base`; `within` seconds.

        After a time-out, or when the caller is cancelled, the session it may have made is closed.
        """
        with self._tracer.step("place", {"usher.transceiver": base}), self._tracer.call(*CREATE_SPAN):
            traced = request.model_copy(update={"traceparent": self._tracer.traceparent() or request.traceparent})
            try:
                return await self._ask("POST", f"{base}{BASE_PATH}/sessions", SessionCreated, within, traced)
            except (TimedOutError, asyncio.CancelledError):
                if not self._closing.start(self.close_request(base, request.request_id)):
                    self._metrics.closings_left_out.inc()
                raise

    async def load(self, base: str, within: float) -> Load:
        """How full a transceiver is."""
        return await self._ask("GET", f"{base}{BASE_PATH}/load", Load, within)

    async def page(self, base: str, tenant: str, limit: int, after: str, within: float) -> SessionList:
        """A tenant's live sessions, the first `limit` after `after` by id."""
        query = httpx.QueryParams(tenant=tenant, limit=limit, after=after)
        return await self._ask("GET", f"{base}{BASE_PATH}/sessions?{query}", SessionList, within)

    async def observe(self, base: str, session_id: str, policy: EventPolicy) -> ClientConnection:
        """Look on at a session: what goes to its client, without what the client sends. The caller closes it.

        The policy is the observer's own.
        """
        url = f"{base}{BASE_PATH}/sessions/{session_id}/events?client_events=false"
        try:
            return await connect_directly(
                url.replace("http", "ws", 1),
                additional_headers={
                    "Authorization": f"Bearer {self._token()}",
                    EVENT_POLICY_HEADER: policy.model_dump_json(exclude_defaults=True),
                },
                proxy=None,
                compression=None,
                max_size=MAX_ANSWER,
                open_timeout=CONTROL_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            raise RefusedError(status, _error_body(bytes(error.response.body or b""), status)) from None
        except TimeoutError:
            raise TimedOutError(f"{url} did not answer within {CONTROL_TIMEOUT_S} s") from None
        except (OSError, InvalidHandshake, *UNUSABLE_URL) as error:
            raise UnreachableError(f"{url}: {type(error).__name__}: {error}") from None

    async def describe(self, base: str, session_id: str) -> SessionInfo:
        """State, path and times of a session."""
        return await self._ask("GET", f"{base}{BASE_PATH}/sessions/{session_id}", SessionInfo, CONTROL_TIMEOUT_S)

    async def restart(self, base: str, session_id: str, credentials: RestartIce) -> IceRestarted:
        """Start a new generation."""
        url = f"{base}{BASE_PATH}/sessions/{session_id}/restart"
        return await self._ask("POST", url, IceRestarted, CONTROL_TIMEOUT_S, credentials)

    async def trickle(self, base: str, session_id: str, candidates: Trickle) -> None:
        """Hand on candidates of the client."""
        url = f"{base}{BASE_PATH}/sessions/{session_id}/trickle"
        await self._send("POST", url, CONTROL_TIMEOUT_S, candidates)

    async def end(self, base: str, session_id: str) -> SessionEnded:
        """End a session."""
        return await self._ask("DELETE", f"{base}{BASE_PATH}/sessions/{session_id}", SessionEnded, CONTROL_TIMEOUT_S)

    async def close_request(self, base: str, request_id: str) -> None:
        """End the session that a request may have made. Raises nothing: a session that nobody uses ends by itself."""
        url = f"{base}{BASE_PATH}/requests/{request_id}"
        try:
            await self._send("DELETE", url, CLOSE_TIMEOUT_S)
        except TransceiverError as error:
            if isinstance(error, RefusedError) and error.status == 404:
                return  # nothing was made, or it has ended
            log.warning("could not close a request after its time-out", url=url, error=str(error))

    async def _ask(
        self, method: str, url: str, answer: type[ModelT], within: float, body: BaseModel | None = None
    ) -> ModelT:
        response = await self._send(method, url, within, body)
        try:
            return answer.model_validate_json(response)
        except ValidationError:
            raise UnreachableError(f"{url} answered with something that is no {answer.__name__}") from None

    async def _send(self, method: str, url: str, within: float, body: BaseModel | None = None) -> bytes:
        """Send a request, return the body of a 2xx answer. Raises TransceiverError."""
        headers = {"Authorization": f"Bearer {self._token()}"}
        content: Any = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            # What is left out has its default, so an older transceiver refuses a field only where it is needed.
            content = body.model_dump_json(exclude_defaults=True)
        try:
            # httpx limits each phase; the caller needs a limit on the whole.
            async with asyncio.timeout(within):
                async with self._http.stream(method, url, content=content, headers=headers, timeout=within) as response:
                    answer = await _read_bounded(response, url)
        except (TimeoutError, httpx.TimeoutException):
            raise TimedOutError(f"{url} did not answer within {within:.1f} s") from None
        except (httpx.HTTPError, OSError, *UNUSABLE_URL) as error:
            raise UnreachableError(f"{url}: {type(error).__name__}: {error}") from None
        if response.is_success:
            return answer
        raise RefusedError(response.status_code, _error_body(answer, response.status_code))


async def _read_bounded(response: httpx.Response, url: str) -> bytes:
    answer = bytearray()
    async for chunk in response.aiter_bytes():
        answer += chunk
        if len(answer) > MAX_ANSWER:
            raise UnreachableError(f"{url} answered with more than {MAX_ANSWER} bytes")
    return bytes(answer)


def _error_body(answer: bytes, status: int) -> ErrorBody:
    try:
        return ErrorAnswer.model_validate_json(answer).error
    except ValidationError:
        return ErrorBody(type="server_error", code=f"http_{status}", message=f"HTTP status {status}")
