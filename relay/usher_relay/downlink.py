"""From transceivers to clients (docs/wire.md sections 3 and 4).

Rules, in this order; what fails one is dropped and counted:
1. Its route is in the route table, and it came from that route's address.
2. Version 1, direction *to client*, type DATA, UNKNOWN-FLOW or HERE, at least one hop left.
3. A live hop key made its MAC, and its time is within 60 s of ours.
4. DATA: each record goes to the client address it names, through the listener it names. No flow is needed: an answer
   to another session's check goes to where the check came from. *alive* lets the flow of that address live, ends its
   probation, and makes the flow where there is none (roaming).
5. UNKNOWN-FLOW: the flow of that address has ended, if it is of this route.
6. HERE has one record, with an SSRC or zeros; what it changes is in `uplink`, where the question was asked.
7. With a return slot: DATA and UNKNOWN-FLOW go on to the ingress relay that has it, under the key of that trunk, with
   one hop less; nothing here is changed by them.
What comes over a trunk is judged the same way: its cluster is a peer, it came from one of that peer's addresses, and a
key of that trunk made its MAC. HERE does not cross trunks. And each record has to be about a client that has a flow to
that cluster, or of whom something was sent there within 10 s: a peer speaks of its own callers, and to nobody else.

No I/O, no clock: `now` is monotonic seconds, `unix_ms` Unix time in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from usher_core import hop
from usher_core.errors import RemoteError
from usher_core.hop import (
    LAST_HOP,
    OUTER_LENGTH,
    OVERHEAD,
    RECORD_LENGTH,
    TIME_WINDOW_MS,
    TO_CLIENT,
    HopType,
    RecordFlag,
)
from usher_core.keys import HopKey
from usher_relay.counters import Drop
from usher_relay.endpoint import Endpoint
from usher_relay.flow import Flow
from usher_relay.hop_codec import (
    CLUSTER,
    DATA_TO_CLIENT,
    HOPS_LEFT_AT,
    KEY_ID_AT,
    NO_SLOT,
    PATH_KEY,
    RECORD_FLAGS_AT,
    ROUTE,
    SLOT,
    TIME,
    holds_one_record,
    hop_prefix,
    is_authentic,
    make_stamp,
    record_spans,
    restamp,
    under_mac,
)
from usher_relay.state import LiveRoute, RelayState
from usher_relay.trunk.peers import Peer, PeerRoute

_TAKEN = frozenset(TO_CLIENT | kind for kind in (HopType.DATA, HopType.UNKNOWN_FLOW, HopType.HERE))
SSRC_LENGTH = 4
# Plain numbers: an operation on flags costs more than the MAC.
_ALIVE = int(RecordFlag.ALIVE)
_PARTS = int(RecordFlag.SPLIT | RecordFlag.LAST_PART)

ClientSend: TypeAlias = tuple[bytes, bytes, object]
"""(path key, datagram, local address or None)."""
Here: TypeAlias = tuple[bytes, bytes, LiveRoute]
"""(path key, SSRC or zeros, whose transceiver knows it)."""


@dataclass(slots=True)
class _Batch:
    now: float
    unix_ms: int
    sends: list[ClientSend] = field(default_factory=list)
    heres: list[Here] = field(default_factory=list)


class Downlink:
    """Turns hop datagrams into client datagrams.

    The handlers return why they dropped a datagram, or None when it was taken.
    """

    def __init__(self, state: RelayState) -> None:
        self._state = state

    def forward(
        self, now: float, unix_ms: int, datagrams: Sequence[tuple[bytes, Endpoint]]
    ) -> tuple[list[ClientSend], list[Here]]:
        """Return the client datagrams of one batch, and every HERE. Never raises for what it holds."""
        state = self._state
        routes, keys, drops = state.routes, state.keys.hop, state.counters.drops
        batch = _Batch(now, unix_ms)
        timely = b""
        for datagram, source in datagrams:
            route = routes.get(datagram[ROUTE])
            if route is None or source != route.address:
                drops[Drop.HOP_ROUTE if route is None else Drop.HOP_SOURCE] += 1
            elif len(datagram) < OVERHEAD:
                drops[Drop.HOP_MALFORMED] += 1
            elif (key := keys.get(datagram[KEY_ID_AT])) is None:
                drops[Drop.HOP_KEY] += 1
            elif (
                datagram[1] != DATA_TO_CLIENT
                or datagram[0] != hop.VERSION
                or not datagram[HOPS_LEFT_AT]
                or datagram[SLOT] != NO_SLOT
                or not holds_one_record(datagram)
            ):
                refused = self._take_the_long_way(batch, datagram, route, key)
                timely = b""
                if refused is not None:
                    drops[refused] += 1
            elif not is_authentic(datagram, key.key):
                drops[Drop.HOP_MAC] += 1
            elif datagram[TIME] != timely and not self._is_timely(int.from_bytes(datagram[TIME]), unix_ms):
                timely = b""
                drops[Drop.HOP_TIME] += 1
            else:
                timely = datagram[TIME]
                refused = self._on_record(
                    batch, route, datagram[PATH_KEY], datagram[RECORD_FLAGS_AT], datagram[OVERHEAD:]
                )
                if refused is not None:
                    drops[refused] += 1
        traffic = state.counters.downlink
        traffic.batches += 1
        traffic.received += len(datagrams)
        return batch.sends, batch.heres

    def from_peers(self, now: float, unix_ms: int, datagrams: Sequence[tuple[bytes, Endpoint]]) -> list[ClientSend]:
        """Return the client datagrams of one batch that came over trunks. Never raises for what it holds."""
        state = self._state
        batch = _Batch(now, unix_ms)
        for datagram, source in datagrams:
            peer = state.peers.get(datagram[CLUSTER])
            if peer is None or source not in peer.ways.addresses:
                refused: Drop | None = Drop.HOP_ROUTE if peer is None else Drop.HOP_SOURCE
            elif len(datagram) < OVERHEAD:
                refused = Drop.HOP_MALFORMED
            elif (key := state.keys.trunk.of(datagram[CLUSTER]).get(datagram[KEY_ID_AT])) is None:
                refused = Drop.HOP_KEY
            else:
                refused = self._take_the_long_way(batch, datagram, peer, key)
            if refused is not None:
                state.drop(refused)
        traffic = state.counters.downlink
        traffic.batches += 1
        traffic.received += len(datagrams)
        return batch.sends

    def _take_the_long_way(self, batch: _Batch, datagram: bytes, sender: LiveRoute | Peer, key: HopKey) -> Drop | None:
        """Handle several records, UNKNOWN-FLOW, HERE, what is for an ingress relay or comes from a peer, and faults."""
        try:
            parsed = hop.parse(datagram)
        except RemoteError as error:
            return Drop.of_hop_fault(error)
        if not parsed.outer.to_client:
            return Drop.HOP_DIRECTION
        if datagram[1] not in _TAKEN:
            return Drop.HOP_TYPE
        if not parsed.outer.hops_left:
            return Drop.HOP_LOOP
        if not hop.verify(parsed, key.key):
            return Drop.HOP_MAC
        if not self._is_timely(parsed.outer.time_ms, batch.unix_ms):
            return Drop.HOP_TIME
        kind, refused = parsed.outer.type, None
        if isinstance(sender, Peer):
            if kind is HopType.HERE:
                return Drop.HOP_TYPE
            route: LiveRoute | PeerRoute = sender.route(datagram[ROUTE])
        else:
            route = sender
            if parsed.outer.return_slot:
                return self._to_ingress(datagram, sender, parsed.outer, batch.unix_ms)
        if kind is HopType.HERE and (len(parsed.records) != 1 or len(parsed.records[0].payload) != SSRC_LENGTH):
            return Drop.HOP_MALFORMED
        for record in parsed.records:
            path = record.path
            path_key = path.listener.to_bytes(2) + path.port.to_bytes(2) + path.address
            if kind is HopType.UNKNOWN_FLOW:
                self._state.flows.on_unknown(path_key, route.route, batch.now)
            elif kind is HopType.HERE and isinstance(route, LiveRoute):
                batch.heres.append((path_key, record.payload, route))
            else:
                refused = self._on_record(batch, route, path_key, record.flags, record.payload) or refused
        return refused

    def _to_ingress(self, datagram: bytes, route: LiveRoute, outer: hop.Outer, unix_ms: int) -> Drop | None:
        """Send an answer on to the relay where its client entered; the records stay as they are."""
        if outer.type is HopType.HERE:
            return Drop.HOP_TYPE
        if outer.hops_left <= LAST_HOP:
            return Drop.HOP_LOOP
        state = self._state
        found, covered = state.slots.find(outer.return_slot), under_mac(datagram)
        key = None if found is None else state.trunk_keys.get(found[1])
        if found is None or key is None or covered is None:
            return Drop.HOP_SLOT
        head = hop_prefix(datagram[1], route.route, outer.hops_left - 1)
        state.to_ingress.append(
            (restamp(datagram, head, make_stamp(key.id, key.key, unix_ms).tail, key.key, covered), found[0])
        )
        count = sum(1 for _ in record_spans(datagram)) if outer.type is HopType.DATA else 0
        route.downlink += count
        traffic = state.counters.downlink
        traffic.forwarded += count
        traffic.forwarded_bytes += len(datagram) - OUTER_LENGTH - count * RECORD_LENGTH if count else 0
        return None

    def _is_timely(self, sent_ms: int, unix_ms: int) -> bool:
        counters = self._state.counters
        offset = hop.time_offset_ms(sent_ms, unix_ms)
        if offset != counters.hop_time_offset_ms:
            counters.hop_time_offset_ms = offset
            counters.hop_time_offset_max_ms = max(counters.hop_time_offset_max_ms, abs(offset))
        return -TIME_WINDOW_MS <= offset <= TIME_WINDOW_MS

    def _may_answer(self, cluster: bytes, path_key: bytes, flow: Flow | None, now: float) -> bool:
        """Whether a peer may say anything of a client: it has a flow there, or something of it was just sent there."""
        if flow is not None and flow.route[:2] == cluster:
            return True
        return self._state.asked_peers.may_answer(path_key, cluster, now)

    def _on_record(
        self, batch: _Batch, route: LiveRoute | PeerRoute, path_key: bytes, flags: int, payload: bytes
    ) -> Drop | None:
        state = self._state
        flow = state.flows.by_key.get(path_key)
        if isinstance(route, PeerRoute) and not self._may_answer(route.route[:2], path_key, flow, batch.now):
            return Drop.HOP_UNASKED
        if flow is not None and flow.route == route.route:
            local = flow.local
        elif path_key[:2] not in state.listeners:
            return Drop.HOP_LISTENER
        else:
            # The answer to a check that made no flow, or to a tentative packet.
            local = state.remembered_local(path_key)
            if local is None and flow is not None:
                local = flow.local
        if flags & _ALIVE:
            state.flows.on_alive(path_key, route.route, local, batch.now)
        if flags & _PARTS:
            return Drop.HOP_SPLIT
        if payload:
            batch.sends.append((path_key, payload, local))
            route.downlink += 1
            traffic = state.counters.downlink
            traffic.forwarded += 1
            traffic.forwarded_bytes += len(payload)
        return None
