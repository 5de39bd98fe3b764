"""One call: a participant (the client's transport), its audio track, the backend that talks with it, and the events.

Life: `new` (answer given) → `connecting` (first valid check) → `connected` (DTLS done) → `ended`, from any of them,
once.

It ends when nobody checks within 15 s, when life ends (30 s), at its maximum age, when idle (if that is limited),
when the client says close_notify or aborts SCTP, when the backend ends or fails, by the API, and when this process
drains.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import structlog

from usher_core.errors import RemoteError
from usher_core.event_policy import OPEN, EventPolicy
from usher_core.ids import ClientPath, Route, join_host_port
from usher_core.internal_api import AdvertisedAddress, SessionInfo, SessionPath, State, Timings
from usher_core.json_values import write_json
from usher_core.rtp import is_rtcp
from usher_core.stun import StunMessage
from usher_transceiver.backend_call import LiveCall
from usher_transceiver.backends.faults import log_fault
from usher_transceiver.backends.protocol import AudioFrame, Backend, Event, ForwardingBackend
from usher_transceiver.backends.watch import BackendWatch
from usher_transceiver.dtls import Dtls
from usher_transceiver.events import ENVELOPE_BYTES, MAX_SESSION_BYTES, EventHub
from usher_transceiver.ice import CheckOutcome, Expiry, IceAgent
from usher_transceiver.media.codec import Codec
from usher_transceiver.media.frame import Origin
from usher_transceiver.media.level import level_dbov
from usher_transceiver.media.opus_packet import is_dtx
from usher_transceiver.media.sender import VOICE_DBOV
from usher_transceiver.media.stream import AudioStream, StreamParameters
from usher_transceiver.participant import Participant, SendDatagram
from usher_transceiver.paths import Via
from usher_transceiver.sdp import Offer

BACKEND_CLOSE_LIMIT_S = 5.0
SPEECH_LOOK_S = 0.5
FAREWELL_LIMIT_S = 2.0
"""That a client gets to open its channel and take the events that say why its call ends."""
HANDSHAKE_LIMIT_S = 30.0
"""From the first check to the end of DTLS: one that only checks must not hold a place for ever."""

log = structlog.get_logger()


class EndReason(StrEnum):
    """Why a session ended: a metric label, and `end_reason` of the API."""

    HANGUP = "hangup"
    CLIENT_CLOSED = "client_closed"
    NO_FIRST_CHECK = "no_first_check"
    SILENT = "silent"
    MAX_AGE = "max_age"
    IDLE = "idle"
    DRAIN_DEADLINE = "drain_deadline"
    SHUTDOWN = "shutdown"
    BACKEND_ENDED = "backend_ended"
    BACKEND_FAILED = "backend_failed"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_CLOSED = "upstream_closed"
    DTLS_FAILED = "dtls_failed"
    ABUSE = "abuse"
    INTERNAL_ERROR = "internal_error"


_GONE = {"client_closed": EndReason.CLIENT_CLOSED, "sctp_abuse": EndReason.ABUSE}
_BACKENDS_WORDS = frozenset({EndReason.BACKEND_FAILED, EndReason.UPSTREAM_FAILED, EndReason.UPSTREAM_CLOSED})
"""Reasons that a backend may give for itself; any other one is `backend_ended`."""
_EXPIRED = {Expiry.NO_FIRST_CHECK: EndReason.NO_FIRST_CHECK, Expiry.SILENT: EndReason.SILENT}


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What is known of a call when it is made."""

    session_id: str
    tenant: str
    backend: str
    route: Route
    offer: Offer
    advertise: tuple[AdvertisedAddress, ...]
    stream: StreamParameters
    session: Mapping[str, Any]
    metadata: Mapping[str, str] = field(default_factory=dict)
    traceparent: str | None = None
    event_policy: EventPolicy = OPEN


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, where 0 for `idle` means no limit; and how many may look on."""

    max_age: float
    idle: float
    backend_start: float
    observers: int = 8


class Surroundings(Protocol):
    """What a session needs of its process."""

    @property
    def backend_watch(self) -> BackendWatch:
        """Gets to know how long backends take."""

    def clock(self) -> float:
        """Seconds, monotonic."""

    def new_event_id(self) -> str:
        """Return an id that no event had."""

    def on_connected(self, session: Session) -> None:
        """The session has a way to its client, and audio begins."""

    def on_source(self, session: Session, ssrc: int) -> None:
        """An SSRC of the session's client authenticated."""

    def on_ended(self, session: Session) -> None:
        """The session has ended; it is to be forgotten."""


class Session:
    """See the module. Belongs to the event loop's thread."""

    def __init__(
        self,
        facts: CallFacts,
        limits: Limits,
        agent: IceAgent,
        dtls: Dtls,
        backend: Backend,
        codec: Codec,
        send: SendDatagram,
        around: Surroundings,
    ) -> None:
        self.facts = facts
        self.state: State = "new"
        self.end_reason: EndReason | None = None
        self.sources: set[int] = set()
        self.remove_from_ticker: Callable[[], None] = lambda: None
        self.finished: asyncio.Task[None] | None = None
        """Set at the end: done when the backend has let go."""
        self._limits = limits
        self._backend = backend
        self._around = around
        self._watch = around.backend_watch
        now = around.clock()
        self._created = now
        self._active = now
        self._looked = now
        self._spoken = 0
        self._answered: float | None = None
        self._connected: float | None = None
        self._first_in: float | None = None
        self._first_out: float | None = None
        self._backend_ready = False
        self._farewell: tuple[EndReason, float] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._sends_audio = facts.offer.audio.sends
        self.participant = Participant(agent, dtls, facts.offer.data, send, self, around.clock)
        self.events = EventHub(
            _session_object(facts),
            around.new_event_id,
            self.participant.send_text,
            self._event_to_backend,
            limits.observers,
            room_for_session(facts.offer),
            self._event_to_server if isinstance(backend, ForwardingBackend) else None,
            facts.event_policy,
        )
        self.stream = AudioStream(facts.stream, codec, self._audio_to_backend, now)
        self._call = LiveCall(
            facts.session_id,
            facts.metadata,
            self.stream,
            self.events,
            self._backend_ends,
            self._backend_says_farewell,
            facts.session,
            lambda: self.participant.channel_bytes,
        )
        trace = {} if facts.traceparent is None else {"trace": facts.traceparent}
        self._log = log.bind(session=facts.session_id, backend=facts.backend, **trace)

    def start(self) -> None:
        """The answer is on its way: let the backend get ready. Needs a running loop."""
        self._answered = self._around.clock()
        self._starting = asyncio.get_running_loop().create_task(self._start_backend())

    # Packets: the session as mux.Owner sees it

    def on_check(
        self, now: float, request: StunMessage, address: ClientPath, via: Via, *, usable: bool
    ) -> CheckOutcome:
        """Handle a Binding request for one of our ufrags."""
        return self.participant.on_check(now, request, address, via, usable=usable)

    def on_packet(self, now: float, address: ClientPath, via: Via, packet: bytes) -> None:
        """Handle DTLS, SRTP or SRTCP. Raises RemoteError when it is refused."""
        self.participant.on_packet(now, address, via, packet)

    def is_quiet_at(self, now: float, address: ClientPath) -> bool:
        """Whether another session may have this address."""
        path = self.participant.agent.path(address)
        return path is None or path.is_quiet(now)

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self.state == "ended"

    def forget(self, address: ClientPath) -> None:
        """The address is another session's now."""
        self.participant.agent.forget(address)

    def fail(self, error: Exception) -> None:
        """Something of ours raised: end this call, not the process."""
        self._log.error("the session failed", exc_info=error)
        self.end(EndReason.INTERNAL_ERROR)

    # What the participant says: ParticipantListener

    def on_first_check(self, now: float) -> None:
        """The client reaches us."""
        if self.state == "new":
            self.state = "connecting"

    def on_connected(self, now: float) -> None:
        """DTLS is done."""
        self._connected = self._active = now
        self.state = "connected"
        self._log.info("connected", after_ms=round((now - self._created) * 1000))
        self._around.on_connected(self)

    def on_source(self, ssrc: int) -> None:
        """A new SSRC of the client."""
        self.sources.add(ssrc)
        self._around.on_source(self, ssrc)

    def on_rtp(self, now: float, packet: bytes) -> None:
        """Audio of the client."""
        if self._first_in is None:
            self._first_in = now
        self.stream.on_rtp(now, packet)

    def on_rtcp(self, now: float, packet: bytes) -> None:
        """A report of the client."""
        self.stream.on_rtcp(now, packet)

    def on_channel_open(self) -> None:
        """The events channel is open."""
        self.events.on_open()

    def on_message(self, message: str | bytes) -> None:
        """An event of the client."""
        if not self.take_message(message, self.facts.event_policy):
            self._log.warning("too many events")
            self.end(EndReason.ABUSE)

    def take_message(self, message: str | bytes, policy: EventPolicy) -> bool:
        """Handle an event of somebody with this policy; False when there are so many that the sender should go."""
        if self.state == "ended":
            return True
        now = self._active = self._around.clock()
        return self.events.on_message(now, message, policy)

    def on_gone(self, reason: str) -> None:
        """The client hung up, or DTLS failed."""
        self._log.info("the client is gone", why=reason)
        self.end(_GONE.get(reason, EndReason.DTLS_FAILED))

    # The backend

    async def _start_backend(self) -> None:
        try:
            async with asyncio.timeout(self._limits.backend_start):
                await self._backend.start(self._call)
        except Exception as error:  # noqa: BLE001 - a backend is somebody's code
            self._backend_failed("the backend did not start", error)
            return
        if self.state != "ended":
            self._backend_ready = True
            self.events.on_backend_ready()

    def _audio_to_backend(self, frame: AudioFrame) -> None:
        if self._limits.idle:
            self._look_for_speech(frame)
        if not self._backend_ready:
            return
        began = self._watch.clock()
        try:
            self._backend.on_audio(frame)
        except Exception as error:  # noqa: BLE001 - a backend is somebody's code
            self._backend_failed("the backend failed on audio", error)
        self._watch.took(began, "on_audio", self.facts.session_id, self.facts.backend)

    def _event_to_backend(self, event: Event) -> bool:
        began = self._watch.clock()
        try:
            return self._backend.on_event(event)
        except Exception as error:  # noqa: BLE001 - a backend is somebody's code
            self._backend_failed("the backend failed on an event", error)
            return True
        finally:
            self._watch.took(began, "on_event", self.facts.session_id, self.facts.backend)

    def _event_to_server(self, event: Event, text: str) -> None:
        assert isinstance(self._backend, ForwardingBackend)
        began = self._watch.clock()
        try:
            self._backend.on_client_event(event, text)
        except Exception as error:  # noqa: BLE001 - a backend is somebody's code
            self._backend_failed("the backend failed on an event", error)
        self._watch.took(began, "on_client_event", self.facts.session_id, self.facts.backend)

    def _backend_failed(self, message: str, error: Exception) -> None:
        log_fault(self._log, message, error)
        self.end(EndReason.BACKEND_FAILED)

    def _backend_ends(self, reason: str) -> None:
        self._log.info("the backend hangs up", why=reason[:64])
        self.end(_reason_of_backend(reason))

    def _backend_says_farewell(self, reason: str) -> None:
        self._log.info("the backend hangs up", why=reason[:64])
        self._farewell = _reason_of_backend(reason), self._around.clock() + FAREWELL_LIMIT_S

    def _is_told(self, now: float, until: float) -> bool:
        has_all = not self.events.is_waiting and self.participant.has_sent_all
        return now >= until or has_all or self.facts.offer.data is None

    async def _finish_backend(self, reason: EndReason) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait((self._starting,), timeout=BACKEND_CLOSE_LIMIT_S)
        try:
            async with asyncio.timeout(BACKEND_CLOSE_LIMIT_S):
                await self._backend.close(reason)
        except Exception as error:  # noqa: BLE001 - a backend is somebody's code
            log_fault(self._log, "the backend did not close", error)

    # Time

    def tick(self, now: float) -> None:
        """Every 20 ms: timers, and the audio of this frame."""
        expiry = self.participant.tick(now)
        if self.state == "ended":
            return
        if expiry is not None:
            self.end(_EXPIRED[expiry])
        elif now - self._created >= self._limits.max_age:
            self.end(EndReason.MAX_AGE)
        elif self._limits.idle and now - self._active >= self._limits.idle:
            self.end(EndReason.IDLE)
        elif self._farewell is not None and self._is_told(now, self._farewell[1]):
            self.end(self._farewell[0])
        elif self.participant.is_connected:
            self._send_audio(now)
        elif self._is_stuck(now):
            self.end(EndReason.DTLS_FAILED)

    def _is_stuck(self, now: float) -> bool:
        first_check = self.participant.agent.first_check
        return first_check is not None and now - first_check >= HANDSHAKE_LIMIT_S

    def _send_audio(self, now: float) -> None:
        packets = self.stream.tick(now)
        # The backend may have hung up on what it just heard.
        for packet in packets if self.state != "ended" else ():
            if is_rtcp(packet):
                self.participant.send_rtp(now, packet)
            elif self._sends_audio and self.participant.send_rtp(now, packet):
                if self._first_out is None:
                    self._first_out = now
                # DTX keeps a path alive, and no call.
                if self.stream.spoken != self._spoken:
                    self._spoken = self.stream.spoken
                    self._active = now

    def _look_for_speech(self, frame: AudioFrame) -> None:
        now = self._around.clock()
        # After speech that was found there is no hurry to find more, and a level costs as much as a packet.
        if frame.origin is not Origin.RECEIVED or now - self._looked < SPEECH_LOOK_S:
            return
        is_pcm = self.facts.stream.kind == "pcm"
        if level_dbov(frame.data) > VOICE_DBOV if is_pcm else not is_dtx(frame.data):
            self._active = self._looked = now

    # End

    def end(self, reason: EndReason) -> None:
        """End the call, once; the client is told, and everything is let go."""
        if self.state == "ended":
            return
        self.state = "ended"
        self.end_reason = reason
        now = self._around.clock()
        self._log.info("ended", reason=reason.value, age_s=round(now - self._created, 1))
        self.remove_from_ticker()
        self._call.detach()
        self.events.close(reason)
        try:
            self.participant.close(now, self.stream.goodbye(now))
        except Exception as error:  # noqa: BLE001 - whatever it is, the place has to become free
            self._log.error("saying goodbye failed", exc_info=error)
        self.finished = asyncio.get_running_loop().create_task(self._finish_backend(reason))
        self._around.on_ended(self)

    # What it looks like

    def info(self, now: float) -> SessionInfo:
        """Return what the internal API says about this session."""
        newest = self.participant.agent.newest
        first_check = self.participant.agent.first_check
        return SessionInfo(
            session_id=self.facts.session_id,
            tenant=self.facts.tenant,
            state=self.state,
            backend=self.facts.backend,
            path=self._path(),
            timings=Timings(
                answer_ms=self._since_offer(self._answered),
                ice_ms=self._since_offer(first_check),
                dtls_ms=self._since_offer(self._connected),
                first_audio_in_ms=self._since_offer(self._first_in),
                first_audio_out_ms=self._since_offer(self._first_out),
            ),
            age_s=round(now - self._created, 3),
            ufrag=newest.ufrag.decode("ascii"),
            remote_ufrags=tuple(ufrag.decode("ascii") for ufrag in newest.remote_ufrags),
            end_reason=self.end_reason,
            observers=self.events.observers,
        )

    def _since_offer(self, then: float | None) -> float | None:
        return None if then is None else round((then - self._created) * 1000, 2)

    def _path(self) -> SessionPath:
        sending = self.participant.agent.sending
        listener = None if sending is None else sending.address.listener
        # Where several addresses of a family share a listener, nobody here knows which of them the client uses.
        relays = [
            join_host_port(entry.host, entry.port)
            for entry in self.facts.advertise
            if sending is not None
            and entry.listener == sending.address.listener
            and (ipaddress.ip_address(entry.host).version == 6) == sending.address.is_ipv6
        ]
        relay = relays[0] if len(relays) == 1 else None
        route = self.facts.route
        return SessionPath(relay=relay, listener=listener, cluster=route.cluster, pod=route.pod, worker=route.worker)


def _reason_of_backend(reason: str) -> EndReason:
    return EndReason(reason) if reason in _BACKENDS_WORDS else EndReason.BACKEND_ENDED


def room_for_session(offer: Offer) -> int:
    """Return the most bytes that a session object may have: it goes to the client in one message."""
    theirs = offer.data.max_message_size if offer.data is not None else 0
    return min(MAX_SESSION_BYTES, theirs - ENVELOPE_BYTES) if theirs else MAX_SESSION_BYTES


def check_session(facts: CallFacts) -> None:
    """Raises RemoteError `session_too_large` when `session.created` would not fit the client's channel."""
    room = room_for_session(facts.offer)
    size = len(write_json(_session_object(facts)))
    if size > room:
        raise RemoteError(
            "session_too_large",
            f"the session has {size} bytes, but the client takes messages of {room + ENVELOPE_BYTES} bytes at most "
            f"(a=max-message-size), which leaves {max(0, room)}",
        )


def _session_object(facts: CallFacts) -> Event:
    fixed = {"id": f"sess_{facts.session_id}", "object": "realtime.session", "type": "realtime"}
    return {"model": facts.backend, **facts.session, **fixed}
