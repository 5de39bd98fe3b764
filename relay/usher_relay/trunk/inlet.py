"""What a home relay takes from relays of other clusters (docs/wire.md sections 3 and 4).

Rules, in this order; what fails one is dropped and counted:
1. Version 1, direction *to transceiver*, type DATA or PROBE.
2. A live key of a trunk made its MAC, and its time is within 60 s of ours.
3. PROBE is answered to where it came from, with the ids of our keys for it, 1,000 a second of one trunk and each once;
   not one for a peer of ours, which came by a name that leads to us.
4. DATA has two hops left, and its route is in our own table: nothing goes on to another cluster, so there are no loops.
5. A Binding request in it names that route in its ufrag, and its integrity holds: an ingress relay need not have the
   password key.
6. It goes on with its records as they are, bundles and halves too: one hop less, the local key, our time, and the
   return slot of its source.

There are no flows here. No I/O, no clock: `now` is monotonic seconds, `unix_ms` Unix time in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from usher_core import hop, stun
from usher_core.datagram import DatagramClass, classify
from usher_core.errors import RemoteError
from usher_core.hop import OUTER_LENGTH, OVER_A_TRUNK, PROBED_LENGTH, HopDatagram, HopType, Record, RecordFlag
from usher_core.keys import HopKey
from usher_relay.checks import open_check
from usher_relay.counters import Drop
from usher_relay.endpoint import Endpoint
from usher_relay.hop_codec import NO_SLOT, ROUTE, Stamp, hop_prefix, record_spans, restamp, under_mac
from usher_relay.state import RelayState
from usher_relay.trunk.probe import NONCE_LENGTH, held_ids

_TAKEN = frozenset((HopType.DATA, HopType.PROBE))

MAX_BESIDE_FORGED = 7
"""Most records that are sent on of a datagram that has forged ones too."""

Sent: TypeAlias = tuple[bytes, Endpoint]
"""A hop datagram, and where it comes from or goes to."""


class _Opened(NamedTuple):
    """An authentic datagram, the trunk that it came over, and the key that made its MAC."""

    parsed: HopDatagram
    cluster: bytes
    key: HopKey


class Inlet:
    """Turns the datagrams of ingress relays into those for transceivers."""

    def __init__(self, state: RelayState) -> None:
        self._state = state

    def forward(self, now: float, unix_ms: int, stamp: Stamp, datagrams: Sequence[Sent]) -> list[Sent]:
        """Return the hop datagrams of one batch, each with its transceiver's address; the rules say what is dropped."""
        sends: list[Sent] = []
        for datagram, source in datagrams:
            opened = self._open(datagram, unix_ms)
            if isinstance(opened, Drop):
                refused: Drop | None = opened
            elif opened.parsed.outer.type is HopType.PROBE:
                refused = self._answer_probe(opened, source, now, unix_ms)
            else:
                refused = self._forward(sends, opened, datagram, source, stamp, now)
            if refused is not None:
                self._state.drop(refused)
        traffic = self._state.counters.uplink
        traffic.batches += 1
        traffic.received += len(datagrams)
        return sends

    def _open(self, datagram: bytes, unix_ms: int) -> _Opened | Drop:
        try:
            parsed = hop.parse(datagram)
        except RemoteError as error:
            return Drop.of_hop_fault(error)
        if parsed.outer.to_client:
            return Drop.HOP_DIRECTION
        if parsed.outer.type not in _TAKEN:
            return Drop.HOP_TYPE
        candidates = self._state.keys.trunk.candidates(parsed.outer.key_id)
        for cluster, key in candidates:
            if hop.verify(parsed, key.key):
                return _Opened(parsed, cluster, key) if hop.is_timely(parsed.outer.time_ms, unix_ms) else Drop.HOP_TIME
        return Drop.HOP_MAC if candidates else Drop.HOP_KEY

    def _forward(
        self, sends: list[Sent], opened: _Opened, datagram: bytes, source: Endpoint, stamp: Stamp, now: float
    ) -> Drop | None:
        state, outer, records = self._state, opened.parsed.outer, opened.parsed.records
        if outer.hops_left < OVER_A_TRUNK:
            return Drop.HOP_LOOP
        route = state.routes.get(datagram[ROUTE])
        if route is None:
            return Drop.NO_ROUTE
        kept = self._without_forged_checks(datagram, opened.parsed)
        if kept is None:
            return Drop.HOP_MALFORMED
        if len(kept) == OUTER_LENGTH:
            return None  # all of it was forged, and is counted
        if len(kept) > route.hop_size:
            return Drop.HOP_ROOM
        covered = under_mac(kept)
        slot = state.slots.take(source, opened.cluster, now)
        if not slot or covered is None:
            return Drop.HOP_SLOT
        head = hop_prefix(HopType.DATA, route.route, outer.hops_left - 1)
        tail = stamp.tail[: -len(NO_SLOT)] + slot.to_bytes(2)
        sends.append((restamp(kept, head, tail, stamp.key, covered), route.address))
        route.uplink += len(records)
        traffic = state.counters.uplink
        traffic.forwarded += len(records)
        traffic.forwarded_bytes += sum(len(record.payload) for record in records)
        return None

    def _without_forged_checks(self, datagram: bytes, parsed: HopDatagram) -> bytes | None:
        """Return the datagram, without the records that no client of ours can have sent: others must not suffer.

        None when it has more of both than an honest relay puts into one.
        """
        wanted = parsed.outer.cluster, parsed.outer.pod, parsed.outer.worker
        forged = [self._is_forged(record, wanted) for record in parsed.records]
        if not any(forged):
            return datagram
        if forged.count(False) > MAX_BESIDE_FORGED:
            return None
        kept = [datagram[span] for span, is_forged in zip(record_spans(datagram), forged, strict=True) if not is_forged]
        return datagram[:OUTER_LENGTH] + b"".join(kept)

    def _is_forged(self, record: Record, route: tuple[int, int, int]) -> bool:
        if record.flags & RecordFlag.SPLIT or classify(record.payload) is not DatagramClass.STUN:
            return False
        try:
            message = stun.parse(record.payload)
        except RemoteError:
            return self._drop(Drop.STUN_MALFORMED)
        if not message.is_binding_request or message.username is None:
            return False
        opened = open_check(self._state.keys.ice, message)
        if isinstance(opened, Drop):
            return self._drop(opened)
        named = opened.route.cluster, opened.route.pod, opened.route.worker
        if opened.password is None or named != route:
            return self._drop(Drop.INTEGRITY)
        return False

    def _drop(self, reason: Drop) -> bool:
        self._state.drop(reason)
        return True

    def _answer_probe(self, opened: _Opened, source: Endpoint, now: float, unix_ms: int) -> Drop | None:
        probe, key = opened.parsed, opened.key
        if probe.outer.cluster.to_bytes(2) in self._state.peers:
            return Drop.HOP_ROUTE
        record = probe.records[0]
        if len(probe.records) != 1 or len(record.payload) < PROBED_LENGTH:
            return Drop.HOP_MALFORMED
        is_new = self._state.probe_nonces.allow(opened.cluster + record.payload[:NONCE_LENGTH], now)
        if not (is_new and self._state.probes.allow(opened.cluster, now)):
            return Drop.LIMIT_PROBES
        outer = replace(probe.outer, type=HopType.PROBE_REPLY, to_client=True, time_ms=unix_ms, key_id=key.id)
        keys = self._state.keys
        ends = {int.from_bytes(opened.cluster), probe.outer.cluster}
        payload = record.payload[:PROBED_LENGTH] + held_ids(keys.held, ends, keys.trunk.of(opened.cluster))
        self._state.to_ingress.append((hop.encode(outer, (record._replace(payload=payload),), key.key), source))
        return None
