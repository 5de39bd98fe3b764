"""From clients to transceivers (docs/wire.md section 4).

Rules, by what a datagram is:
1. **Binding request with USERNAME**: opened by its ufrag, its integrity tried, and sent to the route that the ufrag names,
   whatever the flow map says. It makes, refreshes or moves a flow as `flows` allows. Without a password key (an ingress-only
   relay) it is forwarded and makes no flow; the alive answer does. Wrong in any way: dropped.
2. **Anything else of a known address** goes to its flow's transceiver, if that is live and has not said that the session is over.
3. **RTP and RTCP of an unknown address** (or one whose flow has ended): sent *tentatively* to the transceivers of the flows
   with the same SSRC, at most 4. No flow is made of it. DTLS never roams before a check.
4. Everything else is dropped.

Limits come after a request's integrity, never before. A datagram that does not fit its hop is cut in the middle; a STUN
request never is, as a check that crosses only in parts would promise a path that carries no whole packets.

No I/O, no clock: `now` is monotonic seconds, `stamp` carries the time on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence

from siphashc import siphash

from usher_core import stun
from usher_core.datagram import DatagramClass, classify
from usher_core.errors import RemoteError
from usher_core.hop import MAC_PAYLOAD_LENGTH, RecordFlag, split
from usher_core.rtp import is_rtcp, peek_ssrc
from usher_core.stun import StunClass
from usher_relay.counters import Drop
from usher_relay.flows import Flow
from usher_relay.hop_codec import LENGTHS, Stamp, encode_data, pack_mac, record_header, route_bytes
from usher_relay.state import Endpoint, LiveRoute, RelayState

MAX_CLIENT_DATAGRAM = 2_000
"""Ethernet and tunnels carry less; the engine's buffer is a little longer, so that a longer datagram shows."""

_OTHER, _STUN, _DTLS, _RTP = range(4)
_KIND_OF = {DatagramClass.STUN: _STUN, DatagramClass.DTLS: _DTLS, DatagramClass.RTP: _RTP}
_KINDS = tuple(_KIND_OF.get(classify(bytes((first,))), _OTHER) for first in range(256))
_UNKNOWN_TO_KEYS = frozenset(("ufrag_letter", "ufrag_check"))

Packet = tuple[bytes, object, bytes]
"""(path key, local address or None, datagram)."""
Send = tuple[bytes, Endpoint]


class Uplink:
    """Turns client datagrams into hop datagrams."""

    def __init__(self, state: RelayState) -> None:
        self._state = state
        self._split_id = 0

    def forward(self, now: float, stamp: Stamp, packets: Sequence[Packet]) -> list[Send]:
        """Return the hop datagrams for one batch of client datagrams. Never raises for what they hold."""
        state = self._state
        flows, routes = state.flows.by_key, state.routes
        interval, tolerance = state.client_rate.interval, state.client_rate.tolerance
        key_bytes, tail, tail_without_mac = stamp
        traffic = state.counters.uplink
        traffic.received += len(packets)
        crowded = state.address_limit.begin(now, len(packets))
        sends: list[Send] = []
        for path_key, local, datagram in packets:
            length = len(datagram)
            kind = _KINDS[datagram[0]] if 0 < length <= MAX_CLIENT_DATAGRAM else _OTHER
            if kind < _DTLS:
                if kind == _STUN:
                    self._on_stun(now, stamp, path_key, local, datagram, crowded, sends)
                else:
                    known = 0 < length <= MAX_CLIENT_DATAGRAM
                    state.drop(Drop.PROTOCOL if known else Drop.CLIENT_LENGTH)
                continue
            if crowded and not state.address_limit.allow(path_key[4:]):
                state.drop(Drop.LIMIT_ADDRESS)
                continue
            flow = flows.get(path_key)
            route = None if flow is None or flow.ended else routes.get(flow.route)
            if flow is None or route is None:
                self._roam(now, stamp, path_key, local, datagram, flow, sends)
                continue
            full_at = flow.limit_full_at
            if full_at < now:
                full_at = now
            elif full_at - now > tolerance:
                state.drop(Drop.LIMIT_CLIENT)
                continue
            flow.limit_full_at = full_at + interval
            if kind == _RTP and datagram[8:12] != flow.ssrc:
                self._learn_ssrc(flow, datagram)
            if length > route.room:
                self._send_halves(stamp, route, path_key, datagram, sends)
                continue
            # `encode_data`, spelled out: a call would cost as much as the MAC.
            header = LENGTHS[length] + flow.record
            mac = siphash(key_bytes, b"".join((route.prefix, tail_without_mac, header, datagram[:MAC_PAYLOAD_LENGTH])))
            sends.append((b"".join((route.prefix, tail, pack_mac(mac), header, datagram)), route.address))
            route.uplink += 1
            traffic.forwarded += 1
            traffic.forwarded_bytes += length
        return sends

    def _on_stun(
        self,
        now: float,
        stamp: Stamp,
        path_key: bytes,
        local: object,
        datagram: bytes,
        crowded: bool,
        sends: list[Send],
    ) -> None:
        state = self._state
        try:
            message = stun.parse(datagram)
        except RemoteError:
            return state.drop(Drop.STUN_MALFORMED)
        if not message.is_binding_request or message.username is None:
            return self._by_flow_map(now, stamp, path_key, message, crowded, sends)
        ufrag = message.server_ufrag
        if ufrag is None:
            return state.drop(Drop.UFRAG_SHAPE)
        try:
            opened = state.keys.ice.open(ufrag)
        except RemoteError as error:
            return state.drop(Drop.UFRAG_UNKNOWN if error.reason in _UNKNOWN_TO_KEYS else Drop.UFRAG_SHAPE)
        if opened.password is not None and not message.verify_integrity(opened.password):
            return state.drop(Drop.INTEGRITY)
        name = route_bytes(opened.route)
        route = state.routes.get(name)
        if route is None:
            return state.drop(Drop.ROUTE_NOT_LIVE)
        if crowded and not state.address_limit.allow(path_key[4:]):
            return state.drop(Drop.LIMIT_ADDRESS)
        if not self._may_check(path_key, name, ufrag, now):
            return state.drop(Drop.LIMIT_CHECKS)
        if len(datagram) > route.room:
            return state.drop(Drop.HOP_ROOM)
        if opened.password is not None:
            state.flows.on_verified(path_key, name, ufrag, local, now)
        flow = state.flows.by_key.get(path_key)
        if flow is None or flow.route != name:
            state.remember_local(path_key, local)
        self._send(stamp, route, record_header(path_key, 0), datagram, sends)

    def _may_check(self, path_key: bytes, route: bytes, ufrag: bytes, now: float) -> bool:
        """Whether one more valid request may go on; a client that was answered does not suffer from replays of its ufrag."""
        state = self._state
        if not state.checks_by_client.allow(path_key, now):
            return False
        flow = state.flows.by_key.get(path_key)
        if flow is not None and flow.route == route and not flow.probation_until:
            return True
        return state.checks_by_ufrag.allow(ufrag, now)

    def _by_flow_map(
        self,
        now: float,
        stamp: Stamp,
        path_key: bytes,
        message: stun.StunMessage,
        crowded: bool,
        sends: list[Send],
    ) -> None:
        """Send on STUN that names no session: indications (all that libnice sends after set-up), answers, requests without USERNAME."""
        state = self._state
        flow = state.flows.by_key.get(path_key)
        if flow is None:
            return state.drop(Drop.UNKNOWN_ADDRESS)
        if flow.ended:
            return state.drop(Drop.SESSION_ENDED)
        route = state.routes.get(flow.route)
        if route is None:
            return state.drop(Drop.ROUTE_NOT_LIVE)
        if crowded and not state.address_limit.allow(path_key[4:]):
            return state.drop(Drop.LIMIT_ADDRESS)
        if not state.checks_by_client.allow(path_key, now):
            return state.drop(Drop.LIMIT_CLIENT)
        if len(message.raw) <= route.room:
            return self._send(stamp, route, flow.record, message.raw, sends)
        if message.cls is StunClass.REQUEST:
            return state.drop(Drop.HOP_ROOM)
        return self._send_halves(stamp, route, path_key, message.raw, sends)

    def _roam(
        self,
        now: float,
        stamp: Stamp,
        path_key: bytes,
        local: object,
        datagram: bytes,
        flow: Flow | None,
        sends: list[Send],
    ) -> None:
        state = self._state
        routes = self._routes_by_ssrc(path_key, datagram)
        if not routes:
            if flow is None:
                return state.drop(Drop.UNKNOWN_ADDRESS)
            return state.drop(Drop.SESSION_ENDED if flow.ended else Drop.ROUTE_NOT_LIVE)
        if not (state.tentative_by_client.allow(path_key, now) and state.tentative.allow(b"", now)):
            return state.drop(Drop.LIMIT_TENTATIVE)
        state.remember_local(path_key, local)
        state.counters.tentative += 1
        for route in routes:
            if len(datagram) > route.room:
                self._send_halves(stamp, route, path_key, datagram, sends, RecordFlag.TENTATIVE)
            else:
                header = record_header(path_key, RecordFlag.TENTATIVE)
                self._send(stamp, route, header, datagram, sends)

    def _routes_by_ssrc(self, path_key: bytes, datagram: bytes) -> list[LiveRoute]:
        """Return the live transceivers of the flows that send the datagram's SSRC, each once."""
        if _KINDS[datagram[0]] != _RTP:
            return []
        ssrc = peek_ssrc(datagram)
        if ssrc is None:
            return []
        candidates = self._state.flows.ssrcs.candidates(ssrc.to_bytes(4), path_key[4:])
        names = dict.fromkeys(flow.route for flow in candidates if not flow.ended)
        return [route for route in map(self._state.routes.get, names) if route is not None]

    def _learn_ssrc(self, flow: Flow, datagram: bytes) -> None:
        # On probation the packet may be anybody's; and RTCP of a client that also sends RTP would only swap the two.
        if flow.probation_until or (flow.ssrc and is_rtcp(datagram)):
            return
        ssrc = peek_ssrc(datagram)
        if ssrc is not None:
            self._state.flows.ssrcs.learn(flow, ssrc.to_bytes(4))

    def _send(self, stamp: Stamp, route: LiveRoute, record: bytes, datagram: bytes, sends: list[Send]) -> None:
        sends.append((encode_data(route.prefix, stamp, record, datagram), route.address))
        self._count(route, len(datagram))

    def _send_halves(
        self,
        stamp: Stamp,
        route: LiveRoute,
        path_key: bytes,
        datagram: bytes,
        sends: list[Send],
        flags: int = 0,
    ) -> None:
        halves = split(datagram, route.room)
        if halves is None:
            return self._state.drop(Drop.HOP_ROOM)
        self._split_id = (self._split_id + 1) & 0xFFFF
        flags |= RecordFlag.SPLIT
        for half, last in zip(halves, (0, RecordFlag.LAST_PART), strict=True):
            record = record_header(path_key, flags | last, self._split_id)
            sends.append((encode_data(route.prefix, stamp, record, half), route.address))
        self._state.counters.split += 1
        return self._count(route, len(datagram))

    def _count(self, route: LiveRoute, length: int) -> None:
        traffic = self._state.counters.uplink
        route.uplink += 1
        traffic.forwarded += 1
        traffic.forwarded_bytes += length
