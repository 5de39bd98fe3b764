"""What can be done with calls: place one, look at it, restart its ICE, end it. Knows no HTTP of clients.

Rules of placing:
* A transceiver that is full, draining or dead costs a try, not the call: the next one is asked within the same request.
* One that does not answer in time may have made the session all the same, so it is told to close it.
* An offer that a transceiver can't answer is the caller's fault, and no other transceiver is asked.
* One that does not have the backend is well all the same; another one may have it.
* A backend that can't be made is no reason to ask another transceiver: all of a pool are set up alike.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog
from websockets.asyncio.client import ClientConnection

from usher_core.errors import RemoteError
from usher_core.ids import Route
from usher_core.internal_api import (
    AdvertisedAddress,
    CreateSession,
    IceRestarted,
    RestartIce,
    SessionCreated,
    SessionInfo,
    Trickle,
)
from usher_core.json_values import merge
from usher_core.routes import Transceiver
from usher_core.sealed import Sealer
from usher_signaling.auth import Caller
from usher_signaling.call_ids import CallId, open_call_id, seal_call_id
from usher_signaling.directory import Directory
from usher_signaling.entity_tags import entity_tag
from usher_signaling.errors import ApiError, call_not_found, unavailable
from usher_signaling.metrics import Metrics
from usher_signaling.models import choose_backend
from usher_signaling.regions import RegionalAddress, Regions
from usher_signaling.settings import MAX_ADVERTISED, SignalingSettings
from usher_signaling.transceiver_client import (
    RefusedError,
    TimedOutError,
    TransceiverClient,
    TransceiverError,
    UnreachableError,
)

log = structlog.get_logger()

OFFER_FAULTS = frozenset((400, 406, 413, 415, 422))
"""Statuses by which a transceiver says that the offer is at fault."""
MIN_ATTEMPT_S = 0.05
"""With less time left no further transceiver is tried."""


@dataclass(frozen=True, slots=True)
class PlacedPath:
    """Where a call was placed, for support: not for clients unless the operator says so."""

    region: str
    transceiver: Transceiver
    addresses: tuple[RegionalAddress, ...]


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A call that has its answer."""

    call_id: str
    answer: str
    entity_tag: str
    path: PlacedPath
    number: int
    """How many sessions its transceiver had made with it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer to place.

    Args:
        sdp: the offer.
        session: the caller's own, without the one of an ephemeral key.
        traceparent: the caller's trace.
        region: the client's, "" for none.
        within: seconds that it may take; never more than the settings say.
        request_id: by which it can be closed; None: one of our own.
    """

    sdp: str
    session: dict[str, Any] = field(default_factory=dict)
    traceparent: str | None = None
    region: str = ""
    within: float = math.inf
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class OwnedCall:
    """A call id that was opened, and the transceiver that owns the call."""

    id: CallId
    owner: Transceiver


class _NoBackendError(Exception):
    """A transceiver does not have the backend that it was asked for."""


class Calls:
    """Calls of all tenants, at the transceivers of a directory. `clock` gives Unix seconds, `now` monotonic ones."""

    def __init__(
        self,
        settings: SignalingSettings,
        directory: Directory,
        regions: Regions,
        client: TransceiverClient,
        sealer: Callable[[], Sealer],
        metrics: Metrics,
        clock: Callable[[], float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._regions = regions
        self._directory = directory
        self._client = client
        self._sealer = sealer
        self._metrics = metrics
        self._clock = clock
        self._now = now

    def why_none(self) -> str:
        """Why no call of our own region could succeed now, "" when one could: transceivers may be full."""
        region = self._regions.own
        if self._directory.serves(region):
            return ""
        if not self._directory.addresses(region):
            return self._why_no_address()
        return f"{self._directory.why_nobody(region)} Where to look: {self._directory.source.advice}."

    async def place(self, caller: Caller, offer: Offer) -> PlacedCall:
        """Get an offer answered.

        Raises ApiError: the offer's fault, 502 when the backend can't be made, or 503 when nobody takes the call.
        """
        addresses = self._directory.addresses(offer.region)
        if not addresses:
            raise unavailable("no_address", self._why_no_address())
        # What the tenant's server has fixed in the key, the page that holds the key can't change; and where its policy
        # lets it not update the session later, it may not begin with another one.
        own = caller.policy.settable(offer.session) if caller.is_client else offer.session
        session = merge(own, caller.session)
        request = CreateSession(
            request_id=offer.request_id or new_request_id(),
            offer=offer.sdp,
            advertise=_advertised(addresses),
            tenant=caller.tenant,
            session=session,
            backend=choose_backend(session, self._settings.backends, self._settings.backend),
            traceparent=offer.traceparent,
            metadata=caller.metadata,
            event_policy=caller.policy,
        )
        transceiver, created = await self._create(
            request, offer.region, min(offer.within, self._settings.answer_deadline)
        )
        if offer.region not in ("", transceiver.region):
            self._metrics.away.inc()
        _log_with(created.session_id)
        call_id = self.seal(caller, transceiver.route, created.session_id)
        log.info("call placed", session=created.session_id, route=str(transceiver.route), tenant=caller.tenant)
        addresses = self._directory.addresses_of(transceiver.route, offer.region)
        path = PlacedPath(offer.region, transceiver, addresses)
        return PlacedCall(call_id, created.answer, entity_tag(created.ufrag), path, created.load.created)

    def seal(self, caller: Caller, route: Route, session_id: str) -> str:
        """Return the id by which a caller knows its call."""
        return seal_call_id(self._sealer(), CallId(route, session_id, caller.tenant), self._clock())

    def open(self, caller: Caller, call_id: str) -> CallId:
        """Open a call id. Raises ApiError 404."""
        try:
            call = open_call_id(self._sealer(), call_id, caller.tenant)
        except RemoteError:
            raise call_not_found() from None
        _log_with(call.session_id)
        return call

    async def owned(self, call: CallId) -> OwnedCall:
        """Look up the owner of a call. Raises ApiError 410 when it is gone."""
        owner = await self._directory.find_owner(call.route)
        if owner is None:
            raise ApiError(410, "call_gone", "The transceiver that had this call is gone.", param="call_id")
        return OwnedCall(call, owner)

    def relay_region(self, listener: int | None) -> str:
        """The region of the relay address behind a listener, "" when it has none."""
        return next((entry.region for entry in self._directory.advertised if entry.address.listener == listener), "")

    async def describe(self, call: OwnedCall) -> SessionInfo:
        """State of a call. Raises ApiError."""
        try:
            return await self._client.describe(call.owner.http, call.id.session_id)
        except TransceiverError as error:
            _raise_control_error(error)

    async def observe(self, caller: Caller, call: OwnedCall) -> ClientConnection:
        """Look on at a call as the caller's policy allows; the caller closes the connection. Raises ApiError."""
        try:
            return await self._client.observe(call.owner.http, call.id.session_id, caller.policy)
        except TransceiverError as error:
            if isinstance(error, RefusedError) and error.status == 429:
                message = "As many side-bands as allowed look on at this call already."
                raise ApiError(429, "too_many_observers", message, headers={"Retry-After": "1"}) from None
            _raise_control_error(error)

    async def restart(self, call: OwnedCall, credentials: RestartIce) -> IceRestarted:
        """Start a new ICE generation. Raises ApiError."""
        try:
            return await self._client.restart(call.owner.http, call.id.session_id, credentials)
        except TransceiverError as error:
            _raise_control_error(error)

    async def trickle(self, call: OwnedCall, candidates: Trickle) -> None:
        """Hand on candidates. Raises ApiError."""
        try:
            await self._client.trickle(call.owner.http, call.id.session_id, candidates)
        except TransceiverError as error:
            _raise_control_error(error)

    async def end(self, call: OwnedCall) -> None:
        """End a call. Raises ApiError."""
        try:
            ended = await self._client.end(call.owner.http, call.id.session_id)
        except TransceiverError as error:
            _raise_control_error(error)
        log.info("call ended", session=call.id.session_id, route=str(call.id.route), reason=ended.reason)

    async def close_request(self, request_id: str) -> None:
        """End the call that an offer may have made at any of our transceivers."""
        await self._directory.close_everywhere(lambda entry: self._client.close_request(entry.http, request_id))

    def _why_no_address(self) -> str:
        return f"There is no relay address for this call. Try again soon; {self._directory.why_no_address()}."

    async def _create(self, request: CreateSession, region: str, within: float) -> tuple[Transceiver, SessionCreated]:
        tried: set[Route] = set()
        lacking: set[Route] = set()
        deadline = self._now() + within
        while len(tried) < self._settings.max_attempts and (left := deadline - self._now()) >= MIN_ATTEMPT_S:
            transceiver = self._directory.choose(region, tried)
            if transceiver is None:
                break
            tried.add(transceiver.route)
            try:
                addresses = self._directory.addresses_of(transceiver.route, region)
                own = request.model_copy(update={"advertise": _advertised(addresses)})
                created = await self._try(transceiver, own, min(left, self._settings.attempt_timeout))
            except _NoBackendError:
                lacking.add(transceiver.route)
                continue
            if created is not None:
                return transceiver, created
        if lacking and lacking == tried:
            raise unavailable("no_backend", f"No transceiver here has the backend {request.backend!r}.")
        why = self._directory.why_nobody(region)
        # Another region may take it: whether nobody did is `steering`'s to say.
        log.info(
            "no transceiver here took the call",
            tried=[str(route) for route in tried],
            tenant=request.tenant,
            why=why,
            look=self._directory.source.advice,
        )
        raise unavailable("no_transceiver", why)

    async def _try(self, transceiver: Transceiver, request: CreateSession, within: float) -> SessionCreated | None:
        """Try one transceiver; None when another should be tried.

        Raises ApiError when the offer is at fault or the backend fails, _NoBackendError when it is not there.
        """
        placement, route = self._directory.placement, transceiver.route
        timed = request.model_copy(update={"deadline_ms": max(1, int(within * 1000))})
        placed_at: float | None = None
        placement.begin(route)
        try:
            created = await self._client.create(transceiver.http, timed, within)
            placed_at = self._now()
        except RefusedError as error:
            if error.status in OFFER_FAULTS:
                # The transceiver has read the SDP and names the line; its words are for the caller.
                self._metrics.placements.labels("bad_offer").inc()
                raise ApiError(error.status, error.error.code, error.error.message, param=error.error.param) from None
            if error.status == 404 and error.error.code == "unknown_backend":
                self._metrics.placements.labels("no_backend").inc()
                log.error("a transceiver lacks the backend", route=str(route), backend=request.backend)
                raise _NoBackendError from None
            if error.status == 502 and error.error.code == "backend_failed":
                self._metrics.placements.labels("backend_failed").inc()
                log.error("a backend can't be made", route=str(route), error=error.error.message)
                raise ApiError(502, "backend_failed", f"The call was not placed: {error.error.message}.") from None
            if error.status == 503:
                self._metrics.placements.labels("refused").inc()
                placement.refused(route, self._now(), draining=error.error.code == "draining")
                return None
            # With another token it takes no call of ours. Otherwise it lives: one offer that makes it fail must not
            # take it away from all others.
            self._failed(transceiver, "failed", error, is_lost=error.status == 401)
            return None
        except TimedOutError as error:
            self._failed(transceiver, "timed_out", error, is_lost=True)
            return None
        except UnreachableError as error:
            self._failed(transceiver, "unreachable", error, is_lost=True)
            return None
        finally:
            placement.end(route, placed_at)
        self._metrics.placements.labels("placed").inc()
        placement.report(route, created.load, placed_at)
        return created

    def _failed(self, transceiver: Transceiver, outcome: str, error: TransceiverError, *, is_lost: bool) -> None:
        """Note a try that failed; who is lost gets no call before it reports again."""
        self._metrics.placements.labels(outcome).inc()
        if is_lost:
            self._directory.placement.lost(transceiver.route)
        log.warning(
            "a transceiver did not take a call", route=str(transceiver.route), outcome=outcome, error=str(error)
        )


def new_request_id() -> str:
    """Draw an id by which an offer can be closed."""
    return secrets.token_urlsafe(16)


def _advertised(addresses: tuple[RegionalAddress, ...]) -> tuple[AdvertisedAddress, ...]:
    return tuple(entry.address for entry in addresses[:MAX_ADVERTISED])


def _log_with(session_id: str) -> None:
    """Put the session into every log line of this request, the access log too.

    The session id opens nothing, and the transceiver's log has it as well; the sealed id, with which a caller's key
    controls the call, is never logged.
    """
    structlog.contextvars.bind_contextvars(session=session_id)


def _raise_control_error(error: TransceiverError) -> NoReturn:
    """Raise what the caller should learn of a request that concerned a running call."""
    if isinstance(error, RefusedError) and error.status == 404:
        raise call_not_found() from None
    if isinstance(error, RefusedError) and error.status in OFFER_FAULTS | {409}:
        raise ApiError(error.status, error.error.code, error.error.message, param=error.error.param) from None
    log.warning("the owner of a call did not do as asked", error=str(error))
    if isinstance(error, TimedOutError):
        raise ApiError(504, "transceiver_timeout", "The owner of this call did not answer in time.") from None
    raise ApiError(502, "transceiver_failed", "The owner of this call did not do as asked.") from None
