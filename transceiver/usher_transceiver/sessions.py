"""All sessions of this process: admission, creation, idempotence, and how it drains.

Rules:
* Admission is one step without a wait in it, so there are never more than `max_sessions`, however many ask at once.
* A request id gets the same answer for 60 s. One that was closed makes no session any more.
* While draining, nothing is admitted; what runs goes on, until the deadline if there is one. `undrain` calls both off.
* An ended session can be looked at for 60 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from usher_core.errors import LocalError, RemoteError
from usher_core.ice_attributes import Candidate, candidate_values
from usher_core.ids import Route
from usher_core.internal_api import (
    REQUEST_ID_LIFE_S,
    CreateSession,
    HeldKeys,
    IceRestarted,
    Load,
    RestartIce,
    SessionCreated,
    SessionInfo,
    SessionList,
)
from usher_transceiver.aiortc_adapter import MAX_MESSAGE_SIZE
from usher_transceiver.audio_parameters import stream_parameters
from usher_transceiver.backends.protocol import Backend, BackendConfig, BackendFactory
from usher_transceiver.backends.registry import BackendFailedError, load_backends, make_backend
from usher_transceiver.backends.watch import BackendWatch
from usher_transceiver.certificate import Certificate
from usher_transceiver.dtls import Dtls
from usher_transceiver.expiring import ExpiringMap
from usher_transceiver.ice import Generation, IceAgent
from usher_transceiver.media.codec import Codec, EncoderSettings
from usher_transceiver.media.ticker import Ticker
from usher_transceiver.mux import Mux
from usher_transceiver.paths import Path
from usher_transceiver.sdp import LocalDescription, Offer, build_answer, parse_offer
from usher_transceiver.session import BACKEND_CLOSE_LIMIT_S, CallFacts, EndReason, Limits, Session, check_session
from usher_transceiver.totals import Totals
from usher_transceiver.transceiver_keys import TransceiverKeys

RETRY_AFTER_S = 1
"""Seconds a caller that was refused should leave this transceiver alone."""
ENDED_LIFE_S = 60.0
MAX_ENDED = 1024
MAX_REQUESTS = 16_384
MAX_REMOTE_UFRAGS = 16
OBSERVERS_TOLD_WITHIN_S = 1.0
"""Below the 3 s in which `usher up` ends."""

_UFRAG_LINE = re.compile(r"^a=ice-ufrag:([A-Za-z0-9+/]{4,256})\r?$", re.MULTILINE)


class NotAdmittedError(Exception):
    """No room (`full`) or no new calls (`draining`)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Request:
    """What a request id led to; no session when it was closed before it came."""

    session_id: str | None
    answer: SessionCreated | None


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """What the registry needs of the program's settings."""

    max_sessions: int
    backend: str
    backend_config: BackendConfig
    encoder: EncoderSettings
    limits: Limits
    built_in: Mapping[str, BackendFactory] = field(default_factory=dict)
    """Backends beside the installed ones."""


class SessionRegistry:
    """See the module. Belongs to the event loop's thread.

    Args:
        route: ours.
        keys: make ufrags.
        mux: routes packets to sessions.
        ticker: calls each session every 20 ms.
        codec: of this process.
        certificate: of this process.
        settings: see RegistrySettings.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        route: Route,
        keys: TransceiverKeys,
        mux: Mux,
        ticker: Ticker,
        codec: Codec,
        certificate: Certificate,
        settings: RegistrySettings,
        clock: Callable[[], float],
    ) -> None:
        self.clock = clock
        self.draining = False
        self._ends = False
        self._deadline: asyncio.TimerHandle | None = None
        self.created = 0
        self.refused: Counter[str] = Counter()
        self.observers_dropped: Counter[str] = Counter()
        self._route = route
        self._keys = keys
        self._mux = mux
        self._ticker = ticker
        self._codec = codec
        self._certificate = certificate
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self.totals = Totals(self._sessions.values, clock)
        self._empty = asyncio.Event()
        self._empty.set()
        self._requests: ExpiringMap[str, Request] = ExpiringMap(REQUEST_ID_LIFE_S, MAX_REQUESTS)
        self._ended: ExpiringMap[str, SessionInfo] = ExpiringMap(ENDED_LIFE_S, MAX_ENDED)
        self.backend_watch = BackendWatch(clock)
        self._backends = load_backends(settings.backend, self.backend_watch, settings.built_in)
        self._finishing: set[asyncio.Task[None]] = set()
        self._observing: set[asyncio.Task[Any]] = set()
        self._hash_key = secrets.token_bytes(16)
        self._event_prefix = secrets.token_hex(4)
        self._events = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Any:
        return iter(tuple(self._sessions.values()))

    # Admission

    def load(self) -> Load:
        """Return what placement and scale-down need."""
        count, limit = len(self._sessions), self._settings.max_sessions
        return Load(
            sessions=count,
            max_sessions=limit,
            draining=self.draining,
            accepts=count < limit and not self.draining,
            created=self.created,
        )

    def load_by_tenant(self) -> Load:
        """Return the load with the live sessions of each tenant."""
        tenants = Counter(session.facts.tenant for session in self._sessions.values())
        return self.load().model_copy(update={"tenants": dict(tenants)})

    def held_keys(self) -> HeldKeys:
        """Return which keys are in use, and by how many ufrags."""
        return HeldKeys(keys=self._keys.held, ufrags=self._mux.ufrags_by_letter())

    def create(self, request: CreateSession) -> SessionCreated:
        """Make a session and its answer.

        Raises NotAdmittedError; RemoteError `bad_sdp`, `bad_advertise`, `session_too_large` or `request_closed`;
        LocalError for an unknown backend; BackendFailedError for one that can't be made.
        """
        now = self.clock()
        known = self._requests.get(now, request.request_id)
        if known is not None:
            if known.answer is None:
                raise RemoteError("request_closed", "this request was closed before it arrived")
            return known.answer
        self._admit()
        created = self._create(request)
        self._requests.put(now, request.request_id, Request(created.session_id, created))
        return created

    def _admit(self) -> None:
        if self.draining:
            self.refused["draining"] += 1
            raise NotAdmittedError("draining", "this transceiver takes no new calls; try another one")
        if len(self._sessions) >= self._settings.max_sessions:
            self.refused["full"] += 1
            raise NotAdmittedError("full", f"all {self._settings.max_sessions} sessions are taken; try another one")

    def _create(self, request: CreateSession) -> SessionCreated:
        offer = parse_offer(request.offer)
        name = request.backend or self._settings.backend
        candidates = _candidates(request)
        backend = self._make_backend(name)
        ufrag, password = self._keys.make_ufrag(self._mux.knows_ufrag)
        session_id = secrets.token_hex(8)
        stream = stream_parameters(offer.audio, backend.audio, self._settings.encoder)
        facts = CallFacts(
            session_id=session_id,
            tenant=request.tenant,
            backend=name,
            route=self._route,
            offer=offer,
            advertise=request.advertise,
            stream=stream,
            session=request.session,
            metadata=request.metadata,
            traceparent=request.traceparent,
            event_policy=request.event_policy,
        )
        check_session(facts)
        local = LocalDescription(
            ufrag=ufrag,
            pwd=password,
            fingerprint=self._certificate.fingerprint,
            candidates=candidates,
            ssrc=stream.ssrc,
            cname=stream.cname,
            stream_id=f"usher-{session_id}",
            track_id="audio",
            session_id=secrets.randbits(62),
            max_message_size=MAX_MESSAGE_SIZE,
        )
        answer = build_answer(offer, local)
        generation = Generation(ufrag.encode(), password.encode(), _remote_ufrags(offer, request.offer))
        self._add(facts, generation, backend)
        self.created += 1
        return SessionCreated(session_id=session_id, answer=answer, ufrag=ufrag, load=self.load())

    def _make_backend(self, name: str) -> Backend:
        try:
            return make_backend(name, self._factory(name), self._settings.backend_config)
        except BackendFailedError:
            self.refused["backend_failed"] += 1
            raise

    def _factory(self, name: str) -> BackendFactory:
        try:
            return self._backends[name]
        except KeyError:
            known = ", ".join(sorted(self._backends))
            raise LocalError(f"there is no backend {name[:64]!r}", f"known here: {known}") from None

    def _add(self, facts: CallFacts, generation: Generation, backend: Backend) -> None:
        session: Session

        def on_evict(path: Path) -> None:
            self._mux.give_up_path(self.clock(), path, session)

        agent = IceAgent(generation, self._hash_key, self.clock(), on_evict)
        dtls = Dtls(self._certificate, facts.offer.role, facts.offer.fingerprints)
        session = Session(
            facts, self._settings.limits, agent, dtls, backend, self._codec, self._mux.send_to_client, self
        )
        self._sessions[facts.session_id] = session
        self._empty.clear()
        self._mux.add_ufrag(generation.ufrag, session)
        session.remove_from_ticker = self._ticker.add(session.tick, session.fail)
        session.start()

    # Running sessions

    def get(self, session_id: str) -> Session | None:
        """Return a live session, or None."""
        return self._sessions.get(session_id)

    def info(self, session_id: str) -> SessionInfo | None:
        """Return what is known of a session, live or ended within the last minute."""
        now = self.clock()
        session = self._sessions.get(session_id)
        return session.info(now) if session is not None else self._ended.get(now, session_id)

    def page(self, tenant: str, limit: int, after: str) -> SessionList:
        """Return a tenant's live sessions whose id is greater than `after`, the first `limit` by id."""
        found = (
            session_id
            for session_id, session in self._sessions.items()
            if session_id > after and session.facts.tenant == tenant
        )
        ids = heapq.nsmallest(limit + 1, found)
        now = self.clock()
        infos = tuple(self._sessions[session_id].info(now) for session_id in ids[:limit])
        return SessionList(sessions=infos, has_more=len(ids) > limit)

    def restart_ice(self, session: Session, request: RestartIce) -> IceRestarted:
        """Add a generation to a session (RFC 8445 section 9); the old ones go on until the client uses it."""
        ufrag, password = self._keys.make_ufrag(self._mux.knows_ufrag)
        remote = (request.ufrag.encode(),)
        gone = session.participant.agent.add_generation(Generation(ufrag.encode(), password.encode(), remote))
        if gone is not None:
            self._mux.remove_ufrag(gone)
        self._mux.add_ufrag(ufrag.encode(), session)
        offer = session.facts.offer
        candidates = tuple(Candidate(entry.host, entry.port) for entry in session.facts.advertise)
        accepted = (offer.audio.mid, None if offer.data is None else offer.data.mid)
        return IceRestarted(
            ufrag=ufrag,
            pwd=password,
            candidates=candidate_values(candidates),
            mids=tuple(mid for mid in accepted if mid is not None),
        )

    def close_request(self, request_id: str) -> tuple[str, str] | None:
        """End what a create made and return (session id, reason); None when it made nothing, and then it never will."""
        now = self.clock()
        known = self._requests.get(now, request_id)
        self._requests.put(now, request_id, Request(None, None))
        if known is None or known.session_id is None:
            return None
        session = self._sessions.get(known.session_id)
        if session is not None:
            session.end(EndReason.HANGUP)
        info = self._ended.get(now, known.session_id)
        return known.session_id, (info.end_reason if info is not None else None) or EndReason.HANGUP

    # Surroundings of a session (session.Surroundings)

    def new_event_id(self) -> str:
        """Return an id that no event of this process had."""
        self._events += 1
        return f"event_{self._event_prefix}{self._events:08x}"

    def on_connected(self, session: Session) -> None:
        """Let its audio leave at the same time as that of others by the same relay."""
        path = session.participant.agent.sending
        if path is not None:
            session.remove_from_ticker()
            session.remove_from_ticker = self._ticker.add(session.tick, session.fail, path.via)

    def on_source(self, session: Session, ssrc: int) -> None:
        """Let packets of that SSRC be tried with this session."""
        self._mux.add_source(ssrc, session)

    def on_ended(self, session: Session) -> None:
        """Forget a session."""
        agent = session.participant.agent
        self._mux.remove(session, agent.ufrags, agent.addresses, session.sources)
        self._sessions.pop(session.facts.session_id, None)
        if session.finished is not None:
            self._finishing.add(session.finished)
            session.finished.add_done_callback(self._finishing.discard)
        now = self.clock()
        info = session.info(now)
        self.totals.keep(session, info, now)
        self._ended.put(now, session.facts.session_id, info)
        if not self._sessions:
            self._empty.set()

    # Drain

    def drain(self, deadline: float | None = None) -> None:
        """Admit nothing from now on; end what still runs in `deadline` seconds. None leaves an earlier one alone."""
        self.draining = True
        if deadline is not None:
            self._forget_deadline()
            self._deadline = asyncio.get_running_loop().call_later(deadline, self._end_drained)

    def drain_for_good(self) -> None:
        """The same, and no `undrain` changes it: this process ends."""
        self._ends = self.draining = True

    def undrain(self) -> None:
        """Admit again and let all calls go on, unless this process ends."""
        if not self._ends:
            self.draining = False
            self._forget_deadline()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_drained(self) -> None:
        self._deadline = None
        for session in tuple(self._sessions.values()):
            session.end(EndReason.DRAIN_DEADLINE)

    async def wait_empty(self) -> None:
        """Wait until no session runs."""
        await self._empty.wait()

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Hold while the current task serves an observer, who is to learn how its call ended."""
        task = asyncio.current_task()
        assert task is not None
        self._observing.add(task)
        try:
            yield
        finally:
            self._observing.discard(task)

    async def end_all(self, reason: EndReason) -> None:
        """End all sessions; wait until observers were told and all backends have let go, also of calls ended before."""
        for session in tuple(self._sessions.values()):
            session.end(reason)
        if self._observing:
            await asyncio.wait(self._observing, timeout=OBSERVERS_TOLD_WITHIN_S)
        if self._finishing:
            # Each gives up by itself; one that holds on nevertheless must not hold up the process.
            await asyncio.wait(self._finishing, timeout=2 * BACKEND_CLOSE_LIMIT_S + 1)


def _candidates(request: CreateSession) -> tuple[Candidate, ...]:
    try:
        return tuple(Candidate(entry.host, entry.port) for entry in request.advertise)
    except ValueError as error:
        raise RemoteError("bad_advertise", str(error)) from None


def _remote_ufrags(offer: Offer, text: str) -> tuple[bytes, ...]:
    # Checks may carry the ufrag of any section, since the client learns only from the answer which one is used.
    others = dict.fromkeys(_UFRAG_LINE.findall(text))
    return tuple(ufrag.encode() for ufrag in {offer.ufrag: None, **others})[:MAX_REMOTE_UFRAGS]
