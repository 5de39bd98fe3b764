"""From transceivers to clients (docs/wire.md sections 3 and 4).

Rules, in this order; what fails one is dropped and counted:
1. Version 1, direction *to client*, type DATA or UNKNOWN-FLOW.
2. Its route is in the route table, and it came from that route's address.
3. A live hop key made its MAC, and its time is within 60 s of ours.
4. DATA: each record goes to the client address it names, through the listener it names. No flow is needed: an answer to
   another session's check goes to where the check came from. *alive* lets the flow of that address live, ends its
   probation, and makes the flow where there is none (roaming).
5. UNKNOWN-FLOW: the flow of that address has ended, if it is of this route.

No I/O, no clock: `now` is monotonic seconds, `unix_ms` Unix time in ms.
"""

from __future__ import annotations

from collections.abc import Iterable

from usher_core import hop
from usher_core.errors import RemoteError
from usher_core.hop import OVERHEAD, TIME_WINDOW_MS, TO_CLIENT, HopType, RecordFlag
from usher_core.keys import HopKey
from usher_relay.counters import Drop
from usher_relay.hop_codec import (
    DATA_TO_CLIENT,
    KEY_ID_AT,
    PATH_KEY,
    RECORD_FLAGS_AT,
    ROUTE,
    TIME,
    holds_one_record,
    is_authentic,
)
from usher_relay.state import Endpoint, LiveRoute, RelayState

_UNKNOWN_TO_CLIENT = TO_CLIENT | HopType.UNKNOWN_FLOW
_PARTS = RecordFlag.SPLIT | RecordFlag.LAST_PART

Send = tuple[bytes, bytes, object]
"""(path key, datagram, local address or None)."""


class Downlink:
    """Turns hop datagrams into client datagrams."""

    def __init__(self, state: RelayState) -> None:
        self._state = state

    def forward(self, now: float, unix_ms: int, datagrams: Iterable[tuple[bytes, Endpoint]]) -> list[Send]:
        """Return the client datagrams of one batch. Never raises for what it holds."""
        state = self._state
        sends: list[Send] = []
        received = 0
        for datagram, source in datagrams:
            received += 1
            if len(datagram) < OVERHEAD:
                state.drop(Drop.HOP_MALFORMED)
                continue
            route = state.routes.get(datagram[ROUTE])
            if route is None or source != route.address:
                state.drop(Drop.HOP_ROUTE if route is None else Drop.HOP_SOURCE)
                continue
            key = state.keys.hop.get(datagram[KEY_ID_AT])
            if key is None:
                state.drop(Drop.HOP_KEY)
                continue
            if datagram[0] != hop.VERSION or datagram[1] != DATA_TO_CLIENT or not holds_one_record(datagram):
                self._on_other(now, unix_ms, datagram, route, key, sends)
            elif not is_authentic(datagram, key.key):
                state.drop(Drop.HOP_MAC)
            elif self._is_timely(int.from_bytes(datagram[TIME]), unix_ms):
                self._on_record(now, route, datagram[PATH_KEY], datagram[RECORD_FLAGS_AT], datagram[OVERHEAD:], sends)
        state.counters.downlink.received += received
        return sends

    def _is_timely(self, sent_ms: int, unix_ms: int) -> bool:
        counters = self._state.counters
        offset = hop.time_offset_ms(sent_ms, unix_ms)
        counters.hop_time_offset_ms = offset
        counters.hop_time_offset_max_ms = max(counters.hop_time_offset_max_ms, abs(offset))
        if -TIME_WINDOW_MS <= offset <= TIME_WINDOW_MS:
            return True
        self._state.drop(Drop.HOP_TIME)
        return False

    def _on_record(
        self, now: float, route: LiveRoute, path_key: bytes, flags: int, payload: bytes, sends: list[Send]
    ) -> None:
        state = self._state
        if path_key[:2] not in state.listeners:
            return state.drop(Drop.HOP_LISTENER)
        flow = state.flows.by_key.get(path_key)
        if flow is None or flow.route != route.route:
            local = state.remembered_local(path_key)
            if flow is not None and local is None:
                local = flow.local
        else:
            local = flow.local
        if flags & RecordFlag.ALIVE:
            state.flows.on_alive(path_key, route.route, local, now)
        if flags & _PARTS:
            return state.drop(Drop.HOP_SPLIT)
        if payload:
            sends.append((path_key, payload, local))
            route.downlink += 1
            traffic = state.counters.downlink
            traffic.forwarded += 1
            traffic.forwarded_bytes += len(payload)
        return None

    def _on_other(
        self, now: float, unix_ms: int, datagram: bytes, route: LiveRoute, key: HopKey, sends: list[Send]
    ) -> None:
        """Take what the quick way does not: several records, UNKNOWN-FLOW, and what is wrong."""
        state = self._state
        try:
            parsed = hop.parse(datagram)
        except RemoteError as error:
            return state.drop(_PARSE_DROPS.get(error.reason, Drop.HOP_MALFORMED))
        if not parsed.outer.to_client:
            return state.drop(Drop.HOP_DIRECTION)
        if datagram[1] not in (DATA_TO_CLIENT, _UNKNOWN_TO_CLIENT):
            return state.drop(Drop.HOP_TYPE)
        if not hop.verify(parsed, key.key):
            return state.drop(Drop.HOP_MAC)
        if not self._is_timely(parsed.outer.time_ms, unix_ms):
            return None
        for record in parsed.records:
            path = record.path
            path_key = path.listener.to_bytes(2) + path.port.to_bytes(2) + path.address
            if parsed.outer.type is HopType.UNKNOWN_FLOW:
                state.flows.on_unknown(path_key, route.route)
            else:
                self._on_record(now, route, path_key, record.flags, record.payload, sends)
        return None


_PARSE_DROPS = {"hop_version": Drop.HOP_VERSION, "hop_type": Drop.HOP_TYPE}
