"""Which session a hop datagram is for, and how an answer leaves, without I/O (docs/wire.md sections 3 and 5).

Rules:
* Only version 1, towards us, with our own route, a MAC that holds and a time within 60 s.
* STUN goes by the server ufrag in USERNAME. All else goes by the client's path; if that is unknown, RTP and RTCP go
  by SSRC as a guess that SRTP authentication decides.
* A path belongs to one session. It goes to another one only by a valid unseen check or an authenticated packet, and
  only when it has been quiet for 7 s or its session has ended: nobody can take a live client's address.
* A client that nobody knows is reported to its relay (UNKNOWN-FLOW), at a bounded rate, unless its path is another
  session's.
* So is a path that its session gave up for a newer one, at a rate of its own: a client that sends from ever new
  addresses must not silence the other reports.
* WHO-HAS is answered HERE, or not at all. PROBE is answered, so that relays know how far we are.
* What leaves together shares hop datagrams (bundler.py).
* A process that is behind drops the RTP and RTCP that waited too long for it, and nothing else: what keeps a call
  alive is handled however late it is.
* One faulty packet or session never stops the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import structlog

from usher_core import hop, stun
from usher_core.datagram import DatagramClass, classify
from usher_core.errors import RemoteError
from usher_core.hop import PROBED_LENGTH, HopDatagram, HopType, Record, RecordFlag
from usher_core.ids import ClientPath, Route
from usher_core.rtp import peek_ssrc
from usher_transceiver.bundler import ActiveKey, Bundler, SendHop
from usher_transceiver.ice import CheckOutcome
from usher_transceiver.joiner import Joiner
from usher_transceiver.paths import Path, SocketAddress, Via
from usher_transceiver.rate import TokenBucket

MAX_SAME_SSRC = 4
"""Sessions that are tried for one SSRC."""
UNKNOWN_FLOW_RATE = 200.0
"""Reports per second: after a restart every client of the old process is unknown."""
GIVEN_UP_RATE = 1000.0
"""Reports per second of paths that were given up. What is not reported ends when it has been quiet for 7 s."""
WHO_HAS_RATE = 2000.0
PROBE_RATE = 200.0
"""Per second: each relay sends one in 5 s."""

# Plain numbers: operations on enum flags cost a microsecond each, and this is done per packet.
_THE_ADDRESS = bytes(4)
"""What HERE says of a client address, and WHO-HAS asks when it has no SSRC."""
_NO_KEYS = bytes(2)
"""In the answer to a PROBE: our keys are asked for by HTTP."""
_SPLIT = RecordFlag.SPLIT.value
_ALIVE = RecordFlag.ALIVE.value

log = structlog.get_logger()


class HopKeys(ActiveKey, Protocol):
    """What authenticates hop datagrams."""

    def verify(self, datagram: HopDatagram) -> bool:
        """Whether one of our keys made its MAC."""


class Owner(Protocol):
    """A session, as the mux sees it."""

    def on_check(
        self, now: float, request: stun.StunMessage, address: ClientPath, via: Via, *, usable: bool
    ) -> CheckOutcome:
        """Handle a Binding request that names one of its ufrags."""

    def on_packet(self, now: float, address: ClientPath, via: Via, packet: bytes) -> None:
        """Handle DTLS, SRTP or SRTCP. Raises RemoteError when it is refused."""

    def is_quiet_at(self, now: float, address: ClientPath) -> bool:
        """Whether the client has not been heard there for 7 s."""

    def forget(self, address: ClientPath) -> None:
        """The address is another session's now."""

    @property
    def has_ended(self) -> bool:
        """Whether it is over; a packet can end it."""

    def fail(self, error: Exception) -> None:
        """Handling a packet raised what it should not."""


class Mux:
    """The one door for all datagrams of this process.

    Args:
        route: ours.
        keys: ours.
        send: sends a hop datagram to a relay.
        wall: Unix seconds.
    """

    def __init__(
        self,
        route: Route,
        keys: HopKeys,
        send: SendHop,
        wall: Callable[[], float],
    ) -> None:
        self._route = route
        self._keys = keys
        self._wall = wall
        self._bundler = Bundler(route, keys, send, wall)
        self._by_ufrag: dict[bytes, Owner] = {}
        self._by_path: dict[ClientPath, Owner] = {}
        self._by_ssrc: dict[int, list[Owner]] = {}
        self.joiner = Joiner()
        self._unknown_flow = TokenBucket(UNKNOWN_FLOW_RATE)
        self._given_up = TokenBucket(GIVEN_UP_RATE)
        self._who_has = TokenBucket(WHO_HAS_RATE)
        self._probe = TokenBucket(PROBE_RATE)
        self.received = 0
        self.records = 0
        self.time_offset_ms = 0
        """Of the last datagram with a MAC that held: how far its sender's clock was ahead."""
        self.drops: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()
        self.reports: Counter[str] = Counter()
        """UNKNOWN-FLOW, by its two reasons, and HERE that were sent."""

    # Sessions

    def ufrags_by_letter(self) -> Counter[str]:
        """Return how many live ufrags each key letter has made."""
        return Counter(chr(ufrag[0]) for ufrag in self._by_ufrag)

    def knows_ufrag(self, ufrag: bytes) -> bool:
        """Whether a ufrag names a live session."""
        return ufrag in self._by_ufrag

    def add_ufrag(self, ufrag: bytes, owner: Owner) -> None:
        """Send checks for `ufrag` to `owner`."""
        self._by_ufrag[ufrag] = owner

    def remove_ufrag(self, ufrag: bytes) -> None:
        """Answer checks for `ufrag` no more."""
        self._by_ufrag.pop(ufrag, None)

    def release_path(self, address: ClientPath, owner: Owner) -> None:
        """The owner has forgotten the address."""
        if self._by_path.get(address) is owner:
            del self._by_path[address]

    def give_up_path(self, now: float, path: Path, owner: Owner) -> None:
        """The owner has forgotten this path to make room: its relay need not keep it either."""
        self.release_path(path.address, owner)
        if self._given_up.take(now):
            self.reports["path_given_up"] += 1
            self._send_unknown_flow(path.address, path.via)

    def add_source(self, ssrc: int, owner: Owner) -> None:
        """An SSRC authenticated for `owner`."""
        owners = self._by_ssrc.setdefault(ssrc, [])
        if owner not in owners and len(owners) < MAX_SAME_SSRC:
            owners.append(owner)

    def remove(self, owner: Owner, ufrags: tuple[bytes, ...], paths: tuple[ClientPath, ...], sources: set[int]) -> None:
        """Forget a session that has ended."""
        for ufrag in ufrags:
            self.remove_ufrag(ufrag)
        for path in paths:
            self.release_path(path, owner)
        for ssrc in sources:
            owners = self._by_ssrc.get(ssrc, [])
            if owner in owners:
                owners.remove(owner)
            if not owners:
                self._by_ssrc.pop(ssrc, None)

    @property
    def paths(self) -> int:
        """Client addresses that belong to a session."""
        return len(self._by_path)

    # In

    def on_datagram(self, now: float, datagram: bytes, relay: SocketAddress, *, late: bool = False) -> None:
        """Handle what came in on the hop socket; raises nothing. Of what is `late`, media is dropped."""
        self.received += 1
        try:
            parsed = self._open(datagram)
        except RemoteError as error:
            self.drops[error.reason] += 1
            return
        match parsed.outer.type:
            case HopType.DATA:
                via = Via(relay, parsed.outer.return_slot)
                for record in parsed.records:
                    self._on_record(now, record, via, late)
            case HopType.WHO_HAS:
                self._on_who_has(now, parsed, relay)
            case HopType.PROBE:
                self._on_probe(now, parsed, relay)
            case _:
                self.drops["hop_type"] += 1

    def _open(self, datagram: bytes) -> HopDatagram:
        parsed = hop.parse(datagram)
        outer, route = parsed.outer, self._route
        if outer.to_client:
            raise RemoteError("hop_direction", "a datagram towards clients came to a transceiver")
        if (outer.cluster, outer.pod, outer.worker) != (route.cluster, route.pod, route.worker):
            raise RemoteError("hop_not_our_route", "this datagram is for another transceiver")
        if not self._keys.verify(parsed):
            raise RemoteError("hop_mac", "no hop key of ours made this MAC")
        wall_ms = int(self._wall() * 1000)
        # Told also when it is refused: then above all somebody wants to know.
        self.time_offset_ms = hop.time_offset_ms(outer.time_ms, wall_ms)
        if not hop.is_timely(outer.time_ms, wall_ms):
            raise RemoteError("hop_time", "older or newer than 60 s")
        return parsed

    def _on_record(self, now: float, record: Record, via: Via, late: bool) -> None:
        self.records += 1
        payload = record.payload
        if record.flags & _SPLIT:
            joined = self.joiner.join(now, via.relay, record)
            if joined is None:
                return
            payload = joined
        try:
            kind = classify(payload)
            if kind is DatagramClass.STUN:
                self._on_stun(now, record.path, via, payload)
            elif late and kind is DatagramClass.RTP:
                raise RemoteError("late", "speech that waited too long for us")
            else:
                self._on_packet(now, record.path, via, payload)
        except RemoteError as error:
            self.drops[error.reason] += 1

    def _on_stun(self, now: float, address: ClientPath, via: Via, payload: bytes) -> None:
        request = stun.parse(payload)
        if not request.is_binding_request:
            raise RemoteError("stun_not_a_request", "indications and responses mean nothing to an ICE-lite agent")
        ufrag = request.server_ufrag
        if ufrag is None:
            raise RemoteError("stun_username", "a check has a USERNAME")
        owner = self._by_ufrag.get(ufrag)
        if owner is None:
            self._report_unknown(now, address, via)
            raise RemoteError("ice_ufrag", "no live session has this ufrag")
        usable = self._is_free(now, address, owner)
        try:
            outcome = owner.on_check(now, request, address, via, usable=usable)
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001 - one session's fault must not stop the others
            owner.fail(error)
            return
        self.checks[outcome] += 1
        if outcome is CheckOutcome.FRESH and not owner.has_ended:
            self._claim(address, owner)

    def _on_packet(self, now: float, address: ClientPath, via: Via, payload: bytes) -> None:
        owner = self._by_path.get(address)
        if owner is not None:
            try:
                self._hand_over(now, owner, address, via, payload)
                return
            except RemoteError as error:
                # It may be another session's client behind a NAT that gave it this port: see below.
                if error.reason != "srtp_authentication":
                    raise
        ssrc = peek_ssrc(payload) if classify(payload) is DatagramClass.RTP else None
        candidates = self._by_ssrc.get(ssrc, ()) if ssrc is not None else ()
        for candidate in tuple(candidates):
            if candidate is owner or not self._is_free(now, address, candidate):
                continue
            try:
                taken = self._hand_over(now, candidate, address, via, payload)
            except RemoteError as error:
                self.drops[error.reason] += 1
                continue
            if taken:
                self._claim(address, candidate)
            return
        if owner is None:
            self._report_unknown(now, address, via)
            raise RemoteError("unknown_client", "no session has this client")
        raise RemoteError("srtp_authentication", "forged, replayed or too old")

    def _hand_over(self, now: float, owner: Owner, address: ClientPath, via: Via, payload: bytes) -> bool:
        """Return whether the owner took it and lives on. Raises RemoteError when it refused it."""
        try:
            owner.on_packet(now, address, via, payload)
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001 - one session's fault must not stop the others
            owner.fail(error)
            return False
        return not owner.has_ended

    def _is_free(self, now: float, address: ClientPath, wanted_by: Owner) -> bool:
        holder = self._by_path.get(address)
        return holder is None or holder is wanted_by or holder.is_quiet_at(now, address)

    def _claim(self, address: ClientPath, owner: Owner) -> None:
        holder = self._by_path.get(address)
        if holder is owner:
            return
        if holder is not None:
            holder.forget(address)
        self._by_path[address] = owner

    def _on_who_has(self, now: float, question: HopDatagram, relay: SocketAddress) -> None:
        record = question.records[0]
        if len(record.payload) != 4:
            self.drops["hop_who_has"] += 1
            return
        if record.path in self._by_path:
            here = _THE_ADDRESS  # says more than an SSRC: the relay makes the flow at once
        elif record.payload != _THE_ADDRESS and int.from_bytes(record.payload) in self._by_ssrc:
            here = record.payload
        else:
            return
        if not self._who_has.take(now):
            self.drops["hop_who_has_rate"] += 1
        else:
            self.reports["here"] += 1
            via = Via(relay, question.outer.return_slot)
            self._bundler.send_other(HopType.HERE, Record(record.path, here), via)

    def _on_probe(self, now: float, probe: HopDatagram, relay: SocketAddress) -> None:
        record = probe.records[0]
        if len(record.payload) < PROBED_LENGTH + len(_NO_KEYS):
            self.drops["hop_probe"] += 1
        elif not self._probe.take(now):
            self.drops["hop_probe_rate"] += 1
        else:
            answer = Record(record.path, record.payload[:PROBED_LENGTH] + _NO_KEYS)
            self._bundler.send_other(HopType.PROBE_REPLY, answer, Via(relay, probe.outer.return_slot))

    # Out

    def batch(self) -> AbstractContextManager[None]:
        """What is sent to clients within it leaves at its end at the latest, bundled by relay."""
        return self._bundler.batch()

    @property
    def sent(self) -> int:
        """Hop datagrams sent."""
        return self._bundler.datagrams

    @property
    def sent_records(self) -> int:
        """Records in them."""
        return self._bundler.records

    def send_to_client(self, address: ClientPath, via: Via, payload: bytes, alive: bool) -> None:
        """Send a datagram to a client by the way it came."""
        self._bundler.send_data(Record(address, payload, _ALIVE if alive else 0), via)

    def _report_unknown(self, now: float, address: ClientPath, via: Via) -> None:
        if address in self._by_path or not self._unknown_flow.take(now):
            return
        self.reports["unknown_flow"] += 1
        self._send_unknown_flow(address, via)

    def _send_unknown_flow(self, address: ClientPath, via: Via) -> None:
        self._bundler.send_other(HopType.UNKNOWN_FLOW, Record(address, b""), via)
