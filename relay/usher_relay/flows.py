"""The flow map: which transceiver a client address belongs to (docs/wire.md section 4).

A flow is named by a *path key*, the 20 bytes that a hop record carries: listener 2, client port 2, client address 16.

Rules:
* A flow is made by a verified Binding request, or by an *alive* answer of a transceiver (roaming).
* It lives by verified requests for its own route and by *alive* answers of its own transceiver. Packets of the client
  never count: anybody can send them.
* It is *quiet* when it had neither for 7 s, and at once when its route is not live or its session has ended
  (UNKNOWN-FLOW). Only a quiet flow's address may move to another route; then it is a new flow.
* A flow that a request made is on *probation* until its transceiver has answered that address (alive), at most for 5 s:
  then it is removed, and the client's next check makes it anew. So a recorded check that is replayed from many
  addresses fills nothing: at most 16 flows of one ufrag are on probation (the oldest goes), and when the table is
  full they are evicted first. Only where they hold less than a tenth of the table, the flow that was quiet longest
  goes instead. A live confirmed flow is never evicted; when all are such, the new one is refused.
* Idle for 90 s: removed. No scan: flows wait in buckets of one second; a flow that turns out to have lived on is put
  into a later bucket.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from itertools import islice

from usher_relay.counters import Counters, FlowEvent
from usher_relay.flow import Flow
from usher_relay.ssrc import SsrcIndex

QUIET_AFTER = 7.0
IDLE_EXPIRY = 90.0
PROBATION = 5.0
PROBATION_PER_UFRAG = 16
EXPIRY_STEPS = 1_000
"""Flows looked at in one call of `expire`, so that it never holds up packets."""
EVICTION_TRIES = 32


class FlowMap:
    """All flows of one data thread.

    Args:
        capacity: most flows that are kept.
        live_routes: the routes (7 bytes) of the route table; read at every decision.
        counters: where events are counted.
        probation_per_ufrag: most flows of one ufrag on probation.

    `by_key` is for reading only.
    """

    def __init__(
        self,
        capacity: int,
        live_routes: Container[bytes],
        counters: Counters,
        probation_per_ufrag: int = PROBATION_PER_UFRAG,
    ) -> None:
        self.by_key: dict[bytes, Flow] = {}
        self.ssrcs = SsrcIndex()
        self.last_life = float("-inf")
        """When any flow last showed life."""
        self._capacity = capacity
        self._probation_share = max(1, capacity // 10)
        self._live_routes = live_routes
        self._events = counters.flow_events
        self._per_ufrag = probation_per_ufrag
        # Ordered dictionaries: a plain one takes ever longer to find its first key while it is eaten from the front.
        self._probation: OrderedDict[Flow, None] = OrderedDict()
        self._probation_by_ufrag: dict[bytes, dict[Flow, None]] = {}
        self._buckets: dict[int, OrderedDict[Flow, None]] = {}
        self._bucket_of: dict[Flow, int] = {}
        self._next_bucket = 0

    def __len__(self) -> int:
        """Return the number of flows."""
        return len(self.by_key)

    @property
    def on_probation(self) -> int:
        """The number of flows on probation."""
        return len(self._probation)

    def is_quiet(self, flow: Flow, now: float) -> bool:
        """Tell whether the flow's address may move to another route."""
        return flow.ended or now - flow.heard_at >= QUIET_AFTER or flow.route not in self._live_routes

    def on_verified(self, key: bytes, route: bytes, ufrag: bytes, local: object, now: float) -> None:
        """Take note of a Binding request with valid integrity from `key`, whose ufrag names the live `route`."""
        flow = self.by_key.get(key)
        if flow is not None and flow.route == route and not flow.ended:
            if self.is_quiet(flow, now):
                flow.local = local
            flow.verified_at = now
            self.last_life = now
            return
        if not self._vacate(flow, route, now):
            return
        self._add(Flow(key, route, local, now, ufrag=ufrag, probation_until=now + PROBATION), now)

    def on_alive(self, key: bytes, route: bytes, local: object, now: float) -> None:
        """Take note that the transceiver of `route` vouches for the client at `key`."""
        flow = self.by_key.get(key)
        if flow is not None and flow.route == route:
            flow.alive_at = now
            flow.ended = False
            self.last_life = now
            if flow.probation_until:
                self._confirm(flow)
            return
        if not self._vacate(flow, route, now):
            return
        if self._add(Flow(key, route, local, float("-inf"), alive_at=now), now):
            self._events[FlowEvent.ROAMED] += 1

    def on_unknown(self, key: bytes, route: bytes) -> None:
        """Take note that the transceiver of `route` does not know the client at `key`."""
        flow = self.by_key.get(key)
        if flow is not None and flow.route == route and not flow.ended:
            flow.ended = True
            self._events[FlowEvent.ENDED] += 1

    def expire(self, now: float) -> None:
        """Remove what is due. To be called at least once a second; the work of one call is bounded."""
        steps = EXPIRY_STEPS
        while self._probation and steps:
            flow = next(iter(self._probation))
            if flow.probation_until > now:
                break
            steps -= 1
            self._remove(flow, FlowEvent.PROBATION_OVER)
        while self._next_bucket <= now and steps:
            bucket = self._buckets.get(self._next_bucket)
            if not bucket:
                self._buckets.pop(self._next_bucket, None)
                self._next_bucket = min(self._buckets, default=int(now) + 1)
                continue
            steps -= 1
            flow = next(iter(bucket))
            if now - flow.heard_at >= IDLE_EXPIRY:
                self._remove(flow, FlowEvent.EXPIRED)
            else:
                self._schedule(flow)

    def first(self, limit: int) -> list[Flow]:
        """Return at most `limit` flows, the oldest first."""
        return list(islice(self.by_key.values(), limit))

    def _vacate(self, flow: Flow | None, route: bytes, now: float) -> bool:
        """Make the address free for `route`; False when its flow must stay."""
        if flow is None:
            return True
        if not self.is_quiet(flow, now):
            self._events[FlowEvent.KEPT] += 1
            return False
        self._remove(flow, FlowEvent.RENEWED if flow.route == route else FlowEvent.MOVED)
        return True

    def _add(self, flow: Flow, now: float) -> bool:
        if flow.ufrag:
            siblings = self._probation_by_ufrag.get(flow.ufrag)
            if siblings is not None and len(siblings) >= self._per_ufrag:
                self._remove(next(iter(siblings)), FlowEvent.EVICTED_PROBATION)
        if len(self.by_key) >= self._capacity and not self._evict(now):
            self._events[FlowEvent.REFUSED] += 1
            return False
        self.by_key[flow.key] = flow
        self.last_life = now
        self._events[FlowEvent.CREATED] += 1
        if flow.probation_until:
            self._probation[flow] = None
            self._probation_by_ufrag.setdefault(flow.ufrag, {})[flow] = None
        else:
            self._schedule(flow)
        return True

    def _confirm(self, flow: Flow) -> None:
        self._leave_probation(flow)
        self._schedule(flow)
        self._events[FlowEvent.CONFIRMED] += 1

    def _leave_probation(self, flow: Flow) -> None:
        del self._probation[flow]
        siblings = self._probation_by_ufrag[flow.ufrag]
        del siblings[flow]
        if not siblings:
            del self._probation_by_ufrag[flow.ufrag]
        flow.probation_until = 0.0
        flow.ufrag = b""

    def _schedule(self, flow: Flow) -> None:
        """Put a confirmed flow into the bucket of the second at which it would be idle for too long."""
        self._unschedule(flow)
        due = int(flow.heard_at + IDLE_EXPIRY) + 1
        self._buckets.setdefault(due, OrderedDict())[flow] = None
        self._bucket_of[flow] = due

    def _unschedule(self, flow: Flow) -> None:
        due = self._bucket_of.pop(flow, None)
        if due is not None:
            bucket = self._buckets[due]
            del bucket[flow]
            if not bucket:
                del self._buckets[due]

    def _evict(self, now: float) -> bool:
        if len(self._probation) <= self._probation_share:
            quiet = self._find_quiet(now)
            if quiet is not None:
                self._remove(quiet, FlowEvent.EVICTED_QUIET)
                return True
        if self._probation:
            self._remove(next(iter(self._probation)), FlowEvent.EVICTED_PROBATION)
            return True
        return False

    def _find_quiet(self, now: float) -> Flow | None:
        """Return the confirmed flow that was silent longest, if it is quiet."""
        for _ in range(EVICTION_TRIES):
            if not self._buckets:
                return None
            due = min(self._buckets)
            flow = next(iter(self._buckets[due]))
            if self.is_quiet(flow, now):
                return flow
            self._schedule(flow)
            if self._bucket_of[flow] == due:
                # It was last heard when its bucket says, so none was silent for longer.
                return None
        return None

    def _remove(self, flow: Flow, event: FlowEvent) -> None:
        del self.by_key[flow.key]
        self.ssrcs.forget(flow)
        if flow.probation_until:
            self._leave_probation(flow)
        else:
            self._unschedule(flow)
        self._events[event] += 1
