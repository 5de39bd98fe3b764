"""From clients to transceivers (docs/wire.md section 4).

Rules, by what a datagram is:
1. **Binding request with USERNAME**: opened by its ufrag, its integrity tried, and sent to the route that the ufrag
   names, whatever the flow map says; of another cluster, over the trunk to it. It makes, refreshes or moves a flow as
   `flows` allows. Without a password key (an ingress-only relay) it is forwarded and makes no flow; the alive answer
   does. Wrong in any way: dropped.
2. **Anything else of a known address** goes to its flow's transceiver, if that is live and has not said that the
   session is over.
3. **RTP and RTCP of an unknown address** (or one whose flow is over): sent *tentatively* to the transceivers of the
   flows with the same SSRC, at most 4. No flow is made of it. DTLS never roams before a check.
4. **RTP, RTCP and DTLS of an address without flow**, where no flow has the SSRC either, wait (`waiting`) until the
   store of mappings knows the address, or else a transceiver has said that the client is its own. All live ones are
   asked, if they are no more than the limit. What the store knows, and HERE for the address, make a flow on probation
   and let go what waits; HERE for the SSRC lets its packets go *tentatively*.
   They are looked up after all others of their batch, which may have made them known, and questions leave last: they
   hold up no call.
5. Everything else is dropped.

Limits come after a request's integrity, never before. A datagram that does not fit its hop is cut in the middle; a STUN
request never is, as a check that crosses only in parts would promise a path that carries no whole packets.

No I/O, no clock: `now` is monotonic seconds, `stamp` carries the time on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from usher_core import stun
from usher_core.datagram import DatagramClass, classify
from usher_core.errors import RemoteError
from usher_core.hop import RecordFlag, split
from usher_core.rtp import RTP_HEADER_LENGTH, is_rtcp, peek_ssrc
from usher_core.stun import StunClass, StunMessage
from usher_relay.bundle import Gram, HopSend, bundle, each_alone
from usher_relay.checks import open_check
from usher_relay.counters import Drop
from usher_relay.downlink import Here
from usher_relay.flow import Flow
from usher_relay.hop_codec import LENGTHS, Stamp, encode_data, encode_question, record_header, route_bytes
from usher_relay.state import LiveRoute, RelayState
from usher_relay.trunk.peers import PeerRoute, TrunkSend
from usher_relay.waiting import MAX_FOUND, NO_SSRC, Question

MAX_CLIENT_DATAGRAM = 2_000
"""Ethernet and tunnels carry less; the engine's buffer is a little longer, so that a longer datagram shows."""

_OTHER, _STUN, _DTLS, _RTP = range(4)
_KIND_OF = {DatagramClass.STUN: _STUN, DatagramClass.DTLS: _DTLS, DatagramClass.RTP: _RTP}
_KINDS = tuple(_KIND_OF.get(classify(bytes((first,))), _OTHER) for first in range(256))

Packet: TypeAlias = tuple[bytes, object, bytes]
"""(path key, local address or None, datagram)."""


@dataclass(slots=True)
class _Batch:
    """What all packets of one batch share. `crowded`: whole addresses have to be counted."""

    now: float
    stamp: Stamp
    crowded: bool
    grams: list[Gram] = field(default_factory=list)
    unknown: list[Packet] | None = field(default_factory=list)
    """Takes the packets whose clients are unknown; None: they are looked up at once."""
    questions: list[HopSend] = field(default_factory=list)


class Uplink:
    """Turns client datagrams into hop datagrams.

    Args:
        state: of this data thread.
        bundles: whether several records may share a hop datagram.

    The handlers return why they dropped a datagram, or None when it was sent.
    """

    def __init__(self, state: RelayState, *, bundles: bool = False) -> None:
        self._state = state
        self._build = bundle if bundles else each_alone
        self._split_id = 0

    def forward(self, now: float, stamp: Stamp, packets: Sequence[Packet]) -> list[HopSend]:
        """Return the hop datagrams for one batch of client datagrams. Never raises for what they hold."""
        state = self._state
        flows, routes, drops = state.flows.by_key, state.routes, state.counters.drops
        interval, tolerance = state.client_rate.interval, state.client_rate.tolerance
        traffic = state.counters.uplink
        traffic.batches += 1
        traffic.received += len(packets)
        batch = _Batch(now, stamp, crowded=state.address_limit.begin(now, len(packets)))
        crowded, grams = batch.crowded, batch.grams
        for path_key, local, datagram in packets:
            length = len(datagram)
            kind = _KINDS[datagram[0]] if 0 < length <= MAX_CLIENT_DATAGRAM else _OTHER
            flow = flows.get(path_key)
            route = None if flow is None or flow.ended else routes.get(flow.route)
            if kind < _DTLS or crowded or flow is None or route is None or length > route.room:
                refused = self._take_the_long_way(batch, path_key, local, datagram)
                if refused is not None:
                    drops[refused] += 1
                continue
            full_at = flow.limit_full_at
            if full_at < now:
                full_at = now
            elif full_at - now > tolerance:
                drops[Drop.LIMIT_CLIENT] += 1
                continue
            flow.limit_full_at = full_at + interval
            if kind == _RTP and datagram[8:12] != flow.ssrc:
                self._learn_ssrc(flow, datagram)
            grams.append((route, LENGTHS[length] + flow.record, datagram))
            route.uplink += 1
            traffic.forwarded += 1
            traffic.forwarded_bytes += length
        sends = self._build(grams, stamp)
        if batch.unknown:
            unknown, batch.unknown = batch.unknown, None
            batch.grams = []
            state.waiting.expire(now)
            for path_key, local, datagram in unknown:
                self._count(self._on_media(batch, path_key, local, datagram))
            sends += self._build(batch.grams, stamp) + batch.questions
        return sends

    def release(self, now: float, stamp: Stamp, heres: Sequence[Here]) -> list[HopSend]:
        """Return the hop datagrams that had waited for what these HERE say."""
        batch = _Batch(now, stamp, crowded=False, unknown=None)
        self._state.waiting.expire(now)
        for here in heres:
            self._count(self._on_here(batch, *here))
        return self._build(batch.grams, stamp)

    def on_stored(self, now: float, stamp: Stamp, answers: Iterable[tuple[bytes, bytes | None]]) -> list[HopSend]:
        """Return what the store's answers, (path key, route or None), let go, and the questions that they raise."""
        batch = _Batch(now, stamp, crowded=False, unknown=None)
        self._state.waiting.expire(now)
        for path_key, route in answers:
            self._take_answer(batch, path_key, route)
        return self._build(batch.grams, stamp) + batch.questions

    def _take_the_long_way(self, batch: _Batch, path_key: bytes, local: object, datagram: bytes) -> Drop | None:
        """Handle what is not simply the next packet of a live flow."""
        if not 0 < len(datagram) <= MAX_CLIENT_DATAGRAM:
            return Drop.CLIENT_LENGTH
        kind = _KINDS[datagram[0]]
        if kind == _OTHER:
            return Drop.PROTOCOL
        if kind == _STUN:
            return self._on_stun(batch, path_key, local, datagram)
        if not self._address_may(batch, path_key):
            return Drop.LIMIT_ADDRESS
        return self._on_media(batch, path_key, local, datagram)

    def _on_media(self, batch: _Batch, path_key: bytes, local: object, datagram: bytes) -> Drop | None:
        flow = self._state.flows.by_key.get(path_key)
        route = None if flow is None or flow.ended else self._state.find(flow.route)
        if flow is None or route is None:
            return self._roam(batch, path_key, local, datagram, flow)
        if not self._flow_may(batch, flow):
            return Drop.LIMIT_CLIENT
        if _KINDS[datagram[0]] == _RTP and datagram[8:12] != flow.ssrc:
            self._learn_ssrc(flow, datagram)
        return self._send(batch, route, path_key, datagram)

    def _on_stun(self, batch: _Batch, path_key: bytes, local: object, datagram: bytes) -> Drop | None:
        try:
            message = stun.parse(datagram)
        except RemoteError:
            return Drop.STUN_MALFORMED
        if message.is_binding_request and message.username is not None:
            return self._on_check(batch, path_key, local, message)
        # Indications (all that libnice sends after set-up), answers, requests that name no session.
        if not self._address_may(batch, path_key):
            return Drop.LIMIT_ADDRESS
        flow = self._state.flows.by_key.get(path_key)
        if flow is None:
            return Drop.UNKNOWN_ADDRESS
        if flow.ended:
            return Drop.SESSION_ENDED
        route = self._state.find(flow.route)
        if route is None:
            return Drop.NO_ROUTE
        if not self._flow_may(batch, flow):
            return Drop.LIMIT_CLIENT
        if message.cls is StunClass.REQUEST and len(datagram) > route.room:
            return Drop.HOP_ROOM
        return self._send(batch, route, path_key, datagram)

    def _on_check(self, batch: _Batch, path_key: bytes, local: object, message: StunMessage) -> Drop | None:
        state = self._state
        opened = open_check(state.keys.ice, message)
        if isinstance(opened, Drop):
            return opened
        ufrag = message.server_ufrag or b""
        name = route_bytes(opened.route)
        route = state.find(name)
        if route is None:
            return Drop.NO_ROUTE
        if not self._address_may(batch, path_key):
            return Drop.LIMIT_ADDRESS
        if not self._may_check(batch.now, path_key, name, ufrag):
            return Drop.LIMIT_CHECKS
        if len(message.raw) > route.room:
            return Drop.HOP_ROOM
        if opened.password is not None:
            state.flows.on_verified(path_key, name, ufrag, local, batch.now)
        flow = state.flows.by_key.get(path_key)
        if flow is None or flow.route != name:
            state.remember_local(path_key, local)
        return self._send(batch, route, path_key, message.raw)

    def _roam(self, batch: _Batch, path_key: bytes, local: object, datagram: bytes, flow: Flow | None) -> Drop | None:
        ssrc = _ssrc(datagram)
        if ssrc is not None and _KINDS[datagram[0]] == _RTP:
            candidates = self._state.flows.ssrcs.candidates(ssrc, path_key[4:])
            routes = self._live(candidate.route for candidate in candidates if not candidate.ended)
            if routes:
                return self._try(batch, path_key, local, datagram, routes)
        if flow is not None:
            return Drop.SESSION_ENDED if flow.ended else Drop.NO_ROUTE
        if ssrc is None:
            return Drop.UNKNOWN_ADDRESS
        if batch.unknown is None:
            return self._look_up(batch, path_key, local, datagram, ssrc)
        batch.unknown.append((path_key, local, datagram))
        return None

    def _look_up(self, batch: _Batch, path_key: bytes, local: object, datagram: bytes, ssrc: bytes) -> Drop | None:
        """Ask whose an unknown address is, or do what was answered before."""
        state, now = self._state, batch.now
        waiting = state.waiting
        question = waiting.find(path_key)
        if question is None:
            if self._was_loaded(path_key, local, now):
                return self._on_media(batch, path_key, local, datagram)
            # The store may know clients of other clusters as well; transceivers are asked in our own alone.
            if not (state.transceivers_to_ask if state.exchange is None else state.routes or state.peers):
                return Drop.UNKNOWN_ADDRESS
            asked = state.transceivers_to_ask if state.exchange is None else 0
            question = waiting.ask(path_key, ssrc, local, asked, now)
            if question is None:
                return Drop.LIMIT_QUESTIONS
            if state.exchange is None:
                self._ask_all(batch, question)
            elif state.exchange.ask(path_key):
                question.awaits_store = True
            else:
                self._ask_further(batch, question)
        elif ssrc != NO_SSRC and question.ssrc == NO_SSRC and not question.is_answered:
            if question.awaits_store or not state.transceivers_to_ask:
                question.ssrc = ssrc
            elif waiting.ask_for_ssrc(question, ssrc, state.transceivers_to_ask, now):
                self._ask_all(batch, question)
            else:
                return Drop.LIMIT_QUESTIONS
        elif question.found and ssrc == question.ssrc:
            routes = self._live(question.found)
            if routes:
                return self._try(batch, path_key, local, datagram, routes)
        return waiting.hold(question, ssrc, datagram, now)

    def _was_loaded(self, path_key: bytes, local: object, now: float) -> bool:
        """Make a flow of what was loaded for an address at the start."""
        state = self._state
        route = None if state.exchange is None else state.exchange.loaded(path_key)
        if route is None or state.find(route) is None:
            return False
        state.counters.store_loaded += 1
        state.flows.on_here(path_key, route, local, now)
        return path_key in state.flows.by_key  # a full table refuses it

    def _take_answer(self, batch: _Batch, path_key: bytes, route: bytes | None) -> None:
        """Take the store's word for a client, or ask the transceivers when it has none."""
        state = self._state
        question = state.waiting.find(path_key)
        if question is None or not question.awaits_store:
            return
        question.awaits_store = False
        live = None if route is None else state.find(route)
        if live is None:
            self._ask_further(batch, question)
        elif state.flows.on_here(path_key, live.route, question.local, batch.now):
            question.is_answered = True
            state.counters.store_found += 1
            for datagram in state.waiting.release(question):
                self._count(self._send(batch, live, path_key, datagram))

    def _ask_further(self, batch: _Batch, question: Question) -> None:
        """Ask the transceivers what the store does not know."""
        if self._state.waiting.ask_further(question, self._state.transceivers_to_ask, batch.now):
            self._ask_all(batch, question)

    def _ask_all(self, batch: _Batch, question: Question) -> None:
        if not self._state.transceivers_to_ask:
            return
        self._state.counters.questions += 1
        for route in self._state.routes.values():
            asked = encode_question(route.route, batch.stamp, question.path_key, question.ssrc)
            batch.questions.append((asked, route.address))

    def _on_here(self, batch: _Batch, path_key: bytes, ssrc: bytes, route: LiveRoute) -> Drop | None:
        """Take a transceiver's word for a client, if it was asked for it."""
        state = self._state
        question = state.waiting.find(path_key)
        if question is None or question.is_answered:
            return Drop.HOP_HERE
        if ssrc == NO_SSRC:
            if not state.flows.on_here(path_key, route.route, question.local, batch.now):
                return Drop.HOP_HERE
            question.is_answered = True
            state.counters.found_by_address += 1
            for datagram in state.waiting.release(question):
                self._count(self._send(batch, route, path_key, datagram))
        elif ssrc == question.ssrc and route.route not in question.found and len(question.found) < MAX_FOUND:
            question.found.append(route.route)
            state.counters.found_by_ssrc += 1
            for datagram in state.waiting.release(question, ssrc):
                self._count(self._try(batch, path_key, question.local, datagram, [route]))
        else:
            return Drop.HOP_HERE
        return None

    def _try(
        self, batch: _Batch, path_key: bytes, local: object, datagram: bytes, routes: Sequence[LiveRoute | PeerRoute]
    ) -> Drop | None:
        """Send tentatively."""
        state = self._state
        if not state.tentative_by_client.allow(path_key, batch.now) or not state.tentative.allow(b"", batch.now):
            return Drop.LIMIT_TENTATIVE
        state.remember_local(path_key, local)
        state.counters.tentative += 1
        refused = None
        for route in routes:
            refused = self._send(batch, route, path_key, datagram, RecordFlag.TENTATIVE)
        return refused

    def _live(self, routes: Iterable[bytes]) -> list[LiveRoute | PeerRoute]:
        """Return those of `routes` that are live, each once."""
        return [route for route in map(self._state.find, dict.fromkeys(routes)) if route is not None]

    def _count(self, refused: Drop | None) -> None:
        if refused is not None:
            self._state.drop(refused)

    def _learn_ssrc(self, flow: Flow, datagram: bytes) -> None:
        # On probation the packet may be anybody's; and RTCP of a client that also sends RTP would only swap the two.
        if flow.probation_until or (flow.ssrc and is_rtcp(datagram)):
            return
        # What is too short to be either, SRTCP with its tag included (RFC 3711 section 3.4), says nothing.
        if len(datagram) < RTP_HEADER_LENGTH:
            return
        ssrc = peek_ssrc(datagram)
        if ssrc is not None:
            self._state.flows.ssrcs.learn(flow, ssrc.to_bytes(4))

    def _address_may(self, batch: _Batch, path_key: bytes) -> bool:
        return not batch.crowded or self._state.address_limit.allow(path_key[4:])

    def _flow_may(self, batch: _Batch, flow: Flow) -> bool:
        full_at = max(flow.limit_full_at, batch.now)
        if full_at - batch.now > self._state.client_rate.tolerance:
            return False
        flow.limit_full_at = full_at + self._state.client_rate.interval
        return True

    def _may_check(self, now: float, path_key: bytes, route: bytes, ufrag: bytes) -> bool:
        """Whether one more valid request may go on. A client that was answered does not suffer from replays."""
        state = self._state
        if not state.checks_by_client.allow(path_key, now):
            return False
        flow = state.flows.by_key.get(path_key)
        if flow is not None and flow.route == route and not flow.probation_until and not flow.ended:
            return True
        return state.checks_by_ufrag.allow(ufrag, now)

    def _send(
        self, batch: _Batch, route: LiveRoute | PeerRoute, path_key: bytes, datagram: bytes, flags: int = 0
    ) -> Drop | None:
        state = self._state
        key = None if isinstance(route, LiveRoute) else state.trunk_keys.get(route.route[:2])
        if key is None and isinstance(route, PeerRoute):
            return Drop.PEER_KEY
        if len(datagram) <= route.room:
            parts = [(record_header(path_key, flags), datagram)]
        else:
            halves = split(datagram, route.room)
            if halves is None:
                return Drop.HOP_ROOM
            self._split_id = (self._split_id + 1) & 0xFFFF
            state.counters.split += 1
            first, last = flags | RecordFlag.SPLIT, flags | RecordFlag.SPLIT | RecordFlag.LAST_PART
            parts = [
                (record_header(path_key, first, self._split_id), halves[0]),
                (record_header(path_key, last, self._split_id), halves[1]),
            ]
        if isinstance(route, LiveRoute):
            batch.grams += [(route, LENGTHS[len(payload)] + record, payload) for record, payload in parts]
        elif key is not None:
            state.asked_peers.note(path_key, route.route[:2], batch.now)
            stamp, address = batch.stamp.of(key.id, key.key), route.peer.address(path_key)
            state.to_peers += [
                TrunkSend(encode_data(route.prefix, stamp, record, payload), address, path_key)
                for record, payload in parts
            ]
        traffic = state.counters.uplink
        route.uplink += 1
        traffic.forwarded += 1
        traffic.forwarded_bytes += len(datagram)
        return None


def _ssrc(datagram: bytes) -> bytes | None:
    """Return the SSRC of RTP or RTCP, NO_SSRC for DTLS, and None for what is too short for an SSRC."""
    if _KINDS[datagram[0]] != _RTP:
        return NO_SSRC
    ssrc = peek_ssrc(datagram)
    return None if ssrc is None else ssrc.to_bytes(4)
