"""The other regions as signaling uses them: who is asked at all, what came of it, and the books.

Rules:
* Offers to a region that failed go by the rules of `breaker`, so that a dead region costs a few of them its time-out.
* One that has no room says so; for a second nobody asks it again.
* A request about a call has one region to go to, so it is tried whatever the breaker says. Its answer does not close
  the breaker: a region that tells of calls at once may be too slow to place one.
* Each region has at most `MAX_UNDER_WAY` requests of ours.
* An offer that was not answered in time, or whose answer makes no sense, is closed: it may have made a call. A close
  that fails is counted and logged; the call then ends by itself, as no client checks it.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom

import httpx
import structlog
from starlette.datastructures import Headers
from websockets.asyncio.client import ClientConnection

from usher_core.errors import LocalError
from usher_shell.watched_file import WatchedFile
from usher_signaling.background import BackgroundTasks
from usher_signaling.breaker import Breaker
from usher_signaling.calls import new_request_id
from usher_signaling.errors import ApiError, unavailable
from usher_signaling.metrics import Metrics
from usher_signaling.peer_regions.client import (
    CONTROL_S,
    Passed,
    PeerAnswer,
    PeerClient,
    PeerError,
    PeerRefusedUsError,
    PeerTimedOutError,
    UnsendableError,
)
from usher_signaling.peer_regions.origin import Origin, RegionTokens, read_origin
from usher_signaling.peer_regions.table import PeerRegion, RegionTable
from usher_signaling.tracing import Tracer

log = structlog.get_logger()

MAX_UNDER_WAY = 256
MAX_CLOSING = 1000
"""Closes under way, those of all regions together."""
FULL_S = 1.0
DEADLINE_SHARE = 0.8
"""Of the time that we wait for an offer, a peer may use so much: the rest is for the way there and back. So it has
given up, and begins nothing new, when we tell it to close what it may have made."""
WORN_OUT_KEYS = frozenset(("client_secret_expired", "client_secret_used", "token_expired"))
FULL_CODES = frozenset(("no_transceiver", "too_many_requests"))


class PassedOverError(Exception):
    """A region was not asked, or took no call: another place is to be tried. `refusal`: its words, if it had any."""

    def __init__(self, refusal: ApiError | None = None) -> None:
        super().__init__()
        self.refusal = refusal


@dataclass(slots=True)
class _State:
    breaker: Breaker
    under_way: int = 0
    full_until: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Peers:
    """All peers. `table` and `tokens` give what the files say now, `now` monotonic seconds."""

    table: Callable[[], RegionTable]
    tokens: Callable[[], RegionTokens] | None
    client: PeerClient
    metrics: Metrics
    now: Callable[[], float]
    _states: dict[str, _State] = field(default_factory=dict)
    _closing: BackgroundTasks = field(default_factory=lambda: BackgroundTasks(MAX_CLOSING))

    async def close(self) -> None:
        """End what is under way and close all connections."""
        await self._closing.wait()
        await self.client.close()

    def origin(self, headers: Headers) -> Origin | None:
        """Return what a peer says of the request that it hands on, None for others. Raises ApiError 403 or 400."""
        if self.tokens is None:
            return None
        try:
            origin = read_origin(self.tokens(), headers)
        except ApiError as error:
            self.metrics.from_regions.labels(error.code).inc()
            raise
        if origin is not None:
            self.metrics.from_regions.labels("taken").inc()
        return origin

    async def offer(self, name: str, passed: Passed, region: str, within: float) -> PeerAnswer:
        """Hand an offer of a client of `region` to a peer.

        Raises PassedOverError when another place is to be tried, and ApiError for what the caller is to hear.
        """
        peer, state, now = self.table().find(name), self._state(name), self.now()
        if peer is None or now < state.full_until or state.under_way >= MAX_UNDER_WAY:
            raise self._skipped(name)
        attempt = state.breaker.begin(now)
        if attempt is None:
            raise self._skipped(name)
        origin = Origin(region, new_request_id(), within * DEADLINE_SHARE)
        well: bool | None = None
        try:
            with self._books(name, "offer"):
                answer = await self._place(peer, passed, origin, within)
                _log_with(name)
                well = True
                return answer
        except PeerError as error:
            well = False
            log.warning("another region took no call", region=name, outcome=error.outcome, error=str(error))
            raise PassedOverError from None
        except ApiError as error:
            well = None if isinstance(error, UnsendableError) else True
            if _is_for_caller(error):
                raise
            if error.code in FULL_CODES:
                state.full_until = self.now() + FULL_S
            log.warning("another region took no call", region=name, outcome="refused", code=error.code)
            raise PassedOverError(error) from None
        finally:
            if state.breaker.end(attempt, self.now(), well=well):
                log.warning(
                    "another region is away" if state.breaker.is_away else "another region is back", region=name
                )

    async def pass_on(self, peer: PeerRegion, passed: Passed, own: str) -> PeerAnswer:
        """Hand on a request about a call. Raises ApiError."""
        with self._for_caller(peer.name, "request"):
            return await self.client.ask(peer.url, passed, Origin(own), CONTROL_S)

    async def observe(self, peer: PeerRegion, path: str, authorization: str, own: str) -> ClientConnection:
        """Open a side-band of a call; the caller closes the connection. Raises ApiError."""
        with self._for_caller(peer.name, "side_band"):
            return await self.client.observe(peer.url, path, authorization, Origin(own))

    def away_count(self) -> int:
        """How many regions are asked seldom, because they failed a moment ago."""
        now = self.now()
        return sum(state.breaker.failed_lately(now) for state in self._states.values())

    def keep(self) -> None:
        """Forget regions that the file names no more."""
        for name in self._states.keys() - set(self.table().names):
            del self._states[name]

    async def _place(self, peer: PeerRegion, passed: Passed, origin: Origin, within: float) -> PeerAnswer:
        try:
            return await self.client.ask(peer.url, passed, origin, within)
        except (PeerRefusedUsError, ApiError):
            raise
        except BaseException:
            if not self._closing.start(self._close_request(peer, origin)):
                self.metrics.region_forwards.labels(peer.name, "close", "skipped").inc()
                _log_not_closed(peer.name, f"{MAX_CLOSING} closes are under way")
            raise

    async def _close_request(self, peer: PeerRegion, origin: Origin) -> None:
        try:
            with self._counted(peer.name, "close"):
                await self.client.close_request(peer.url, origin)
        except (PeerError, ApiError) as error:
            _log_not_closed(peer.name, str(error))

    def _state(self, name: str) -> _State:
        return self._states.setdefault(name, _State(Breaker(SystemRandom())))

    def _skipped(self, name: str) -> PassedOverError:
        self.metrics.region_forwards.labels(name, "offer", "skipped").inc()
        return PassedOverError()

    @contextlib.contextmanager
    def _for_caller(self, name: str, kind: str) -> Iterator[None]:
        """Hold a place, and make of a failure what the caller should learn of it."""
        _log_with(name)
        if self._state(name).under_way >= MAX_UNDER_WAY:
            self.metrics.region_forwards.labels(name, kind, "skipped").inc()
            raise unavailable("too_many_requests", "Too many requests to the region of this call are under way.")
        try:
            with self._books(name, kind):
                yield
        except PeerError as error:
            log.warning("the region of a call did not do as asked", region=name, error=str(error))
            if isinstance(error, PeerTimedOutError):
                raise ApiError(504, "region_timeout", "The region of this call did not answer in time.") from None
            raise ApiError(502, "region_failed", "The region of this call could not be reached, or failed.") from None

    @contextlib.contextmanager
    def _books(self, name: str, kind: str) -> Iterator[None]:
        """Take a place, and count what came of it."""
        state = self._state(name)
        state.under_way += 1
        try:
            with self._counted(name, kind):
                yield
        finally:
            state.under_way -= 1

    @contextlib.contextmanager
    def _counted(self, name: str, kind: str) -> Iterator[None]:
        outcome = "cancelled"
        try:
            yield
            outcome = "answered"
        except PeerError as error:
            outcome = error.outcome
            raise
        except ApiError:
            outcome = "refused"
            raise
        except Exception:
            outcome = "own_fault"
            raise
        finally:
            self.metrics.region_forwards.labels(name, kind, outcome).inc()


def build_peers(
    table: Callable[[], RegionTable],
    tokens: Callable[[], RegionTokens] | None,
    ca_file: Path | None,
    metrics: Metrics,
    now: Callable[[], float],
    transport: httpx.AsyncBaseTransport | None,
    tracer: Tracer,
) -> Peers:
    """Make the client and what uses it. Raises LocalError when the file of certificates can't be read."""
    client = PeerClient(tokens or _no_tokens, _tls(ca_file, used=tokens is not None), transport, tracer)
    return Peers(table, tokens, client, metrics, now)


def _tls(ca_file: Path | None, *, used: bool) -> ssl.SSLContext:
    if not used:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # believes nobody, and reads no file of the system
    if ca_file is None:
        return ssl.create_default_context()
    return WatchedFile(ca_file, _trusting, "file of --region-ca-file", fix="give certificates in PEM").value


def _trusting(certificates: str) -> ssl.SSLContext:
    """Return what believes those that these certificates sign, and nobody else."""
    pem = certificates.encode("ascii", "ignore").decode("ascii")  # comments may be in any language
    try:
        return ssl.create_default_context(cadata=pem or " ")  # "" would mean those that the system trusts
    except OSError as error:  # SSLError is one
        raise LocalError(f"--region-ca-file can't be used: {error}", "give certificates in PEM") from None


def _no_tokens() -> RegionTokens:
    raise LocalError("there is no region token", "give --region-token-file")


def _is_for_caller(error: ApiError) -> bool:
    """Whether a refusal is the caller's fault or its limit, so that no other place would do better.

    A key that we know and a peer does not (401, 403) is a fault of the files, and an address that is none (404, 405)
    one of the regions file.
    """
    if error.code in WORN_OUT_KEYS or error.code == "backend_failed":
        return True
    return 400 <= error.status < 500 and error.status not in (401, 403, 404, 405)


def _log_not_closed(region: str, why: str) -> None:
    log.warning("could not close an offer that another region may have answered", region=region, error=why)


def _log_with(region: str) -> None:
    """Say in this request's line of the log where it went."""
    structlog.contextvars.bind_contextvars(handed_on_to=region)
