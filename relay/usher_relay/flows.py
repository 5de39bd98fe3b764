"""The flow map: which transceiver a client address belongs to (docs/wire.md section 4).

A flow is named by a *path key*, the 20 bytes that a hop record carries: listener 2, client port 2, client address 16.

Rules:
* A flow is made by a verified Binding request, by an *alive* answer of a transceiver (roaming), or by its HERE for an
  address that has none (another relay's flow), or by what another relay has kept of it.
* It lives by verified requests for its own route and by *alive* answers of its own transceiver. Packets of the client
  never count: anybody can send them.
* It is *quiet* when it had neither for 7 s, and at once when its route is not live or its transceiver has given it up
  (UNKNOWN-FLOW: the session has ended, or has newer paths). Only a quiet flow's address may move to another route; then
  it is a new flow.
* A flow that a request or HERE made is on *probation* until its transceiver has answered that address (alive), at most
  for 5 s: then it is removed, and the client's next check makes it anew. So a recorded check that is replayed from many
  addresses fills nothing: at most 16 flows of one ufrag are on probation (the oldest goes). Nor does what fakes the
  addresses of live clients: HERE says that a client was there, alive that what came from there was its own.
* Of one ufrag at most 16 flows are *confirmed*: beyond, the one of them that was silent longest goes. So fresh checks
  of somebody with a session of his own fill nothing either. Transceivers keep 16 paths of a session and give up the
  others, which bounds what comes by roaming and by ICE restarts: those flows are *ended*.
* When the table is full, room is made by the first of these that there is: the flow that ended first; the oldest on
  probation, if those hold more than a tenth of the table; the confirmed flow that was silent longest, if it is quiet;
  the oldest on probation. A live confirmed flow never makes room; when all are such, the new one is refused.
* Removed: confirmed flows after 90 s without life, ended ones 30 s after their end.
* Where mappings are kept, a confirmed flow is named to their store at once, and again every 30 s in which its
  transceiver vouched for it.
* No scan: the flows of each state wait in order. A confirmed flow moves to the end of its line at most once a second,
  so that it is cheap for each packet; what is looked for at the front is found at most a second late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from itertools import islice

from usher_relay.counters import Counters, FlowEvent
from usher_relay.exchange import Exchange, refresh_is_due
from usher_relay.flow import Flow
from usher_relay.ssrc import SsrcIndex

QUIET_AFTER = 7.0
IDLE_EXPIRY = 90.0
ENDED_KEPT = 30.0
"""A client whose consent ran out stops within it (RFC 7675); until then its drops say why."""
PROBATION = 5.0
PROBATION_PER_UFRAG = 16
CONFIRMED_PER_UFRAG = 16
"""The paths that a transceiver keeps of a session: no flow of a path that it knows has to go."""
ORDER_EVERY = 1.0
"""Seconds between two moves of a confirmed flow to the end of its line."""
EXPIRY_STEPS = 1_000
"""Flows looked at in one call of `expire`, so that it never holds up packets."""


class _Line:
    """The flows of one state, in order, and by ufrag where they have one."""

    def __init__(self) -> None:
        # A plain dictionary takes ever longer to find its first key while it is eaten from the front.
        self.flows: OrderedDict[Flow, None] = OrderedDict()
        self.by_ufrag: dict[bytes, dict[Flow, None]] = {}

    def __len__(self) -> int:
        return len(self.flows)

    @property
    def first(self) -> Flow | None:
        return next(iter(self.flows), None)

    def siblings(self, ufrag: bytes) -> dict[Flow, None]:
        """The flows that checks of `ufrag` made, the oldest first."""
        return self.by_ufrag.get(ufrag, {}) if ufrag else {}

    def add(self, flow: Flow) -> None:
        self.flows[flow] = None
        if flow.ufrag:
            self.by_ufrag.setdefault(flow.ufrag, {})[flow] = None

    def remove(self, flow: Flow) -> None:
        del self.flows[flow]
        if flow.ufrag:
            siblings = self.by_ufrag[flow.ufrag]
            del siblings[flow]
            if not siblings:
                del self.by_ufrag[flow.ufrag]

    def move_to_end(self, flow: Flow) -> None:
        self.flows.move_to_end(flow)


class FlowMap:
    """All flows of one data thread.

    Args:
        capacity: most flows that are kept.
        live_routes: the routes (7 bytes) of the route table; read at every decision.
        counters: where events are counted.
        probation_per_ufrag: most flows of one ufrag on probation.
        exchange: to whom confirmed flows are named, None where nobody keeps them.

    `by_key` is for reading only.
    """

    def __init__(
        self,
        capacity: int,
        live_routes: Container[bytes],
        counters: Counters,
        probation_per_ufrag: int = PROBATION_PER_UFRAG,
        exchange: Exchange | None = None,
    ) -> None:
        self.by_key: dict[bytes, Flow] = {}
        self.ssrcs = SsrcIndex()
        self.last_life = float("-inf")
        """When any flow last showed life."""
        self._capacity = capacity
        self._probation_share = max(1, capacity // 10)
        self._live_routes = live_routes
        self._events = counters.flow_events
        self._probation_per_ufrag = probation_per_ufrag
        self._exchange = exchange
        self._probation = _Line()
        self._confirmed = _Line()
        self._ended = _Line()

    def __len__(self) -> int:
        """Return the number of flows."""
        return len(self.by_key)

    @property
    def on_probation(self) -> int:
        """The number of flows on probation."""
        return len(self._probation)

    @property
    def ended(self) -> int:
        """The number of flows whose transceiver has given them up."""
        return len(self._ended)

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
            if not flow.probation_until:
                self._keep_order(flow, now)
            return
        if not self._vacate(flow, route, now):
            return
        siblings = self._probation.siblings(ufrag)
        if len(siblings) >= self._probation_per_ufrag:
            self._remove(next(iter(siblings)), FlowEvent.EVICTED_PROBATION)
        self._add(Flow(key, route, local, now, ufrag=ufrag, probation_until=now + PROBATION), now)

    def on_alive(self, key: bytes, route: bytes, local: object, now: float) -> None:
        """Take note that the transceiver of `route` vouches for the client at `key`."""
        flow = self.by_key.get(key)
        if flow is not None and flow.route == route:
            before, flow.alive_at = flow.alive_at, now
            self.last_life = now
            if flow.probation_until or flow.ended:
                self._confirm(flow, now)
            else:
                self._keep_order(flow, now)
                if self._exchange is not None and refresh_is_due(key, before, now):
                    self._exchange.name(key, route)
            return
        if not self._vacate(flow, route, now):
            return
        roamed = Flow(key, route, local, float("-inf"), alive_at=now)
        if self._add(roamed, now):
            self._events[FlowEvent.ROAMED] += 1
            self._name(roamed)

    def on_here(self, key: bytes, route: bytes, local: object, now: float) -> bool:
        """Take note that the transceiver of `route` knows the client at `key`, or that another relay had a flow of it.
        False when that is another's by now.
        """
        flow = self.by_key.get(key)
        if flow is not None:
            return flow.route == route and not flow.ended
        self._add(Flow(key, route, local, float("-inf"), alive_at=now, probation_until=now + PROBATION), now)
        return True

    def on_unknown(self, key: bytes, route: bytes, now: float) -> None:
        """Take note that the transceiver of `route` does not know the client at `key`, or not any more."""
        flow = self.by_key.get(key)
        if flow is not None and flow.route == route and not flow.ended:
            self._line_of(flow).remove(flow)
            flow.probation_until = 0.0
            flow.ended = True
            flow.ordered_at = now
            self._ended.add(flow)
            self._events[FlowEvent.ENDED] += 1

    def expire(self, now: float) -> None:
        """Remove what is due. To be called at least once a second; the work of one call is bounded."""
        for _ in range(EXPIRY_STEPS):
            due = self._due(now)
            if due is None:
                return
            self._remove(*due)

    def first(self, limit: int) -> list[Flow]:
        """Return at most `limit` flows, the oldest first."""
        return list(islice(self.by_key.values(), limit))

    def _due(self, now: float) -> tuple[Flow, FlowEvent] | None:
        waiting, ended, silent = self._probation.first, self._ended.first, self._confirmed.first
        if waiting is not None and now >= waiting.probation_until:
            return waiting, FlowEvent.PROBATION_OVER
        if ended is not None and now - ended.ordered_at >= ENDED_KEPT:
            return ended, FlowEvent.EXPIRED
        if silent is not None and now - silent.heard_at >= IDLE_EXPIRY:
            return silent, FlowEvent.EXPIRED
        return None

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
        if len(self.by_key) >= self._capacity and not self._evict(now):
            self._events[FlowEvent.REFUSED] += 1
            return False
        self.by_key[flow.key] = flow
        self.last_life = flow.ordered_at = now
        self._events[FlowEvent.CREATED] += 1
        self._line_of(flow).add(flow)
        return True

    def _confirm(self, flow: Flow, now: float) -> None:
        self._line_of(flow).remove(flow)
        flow.probation_until = 0.0
        flow.ended = False
        flow.ordered_at = now
        siblings = self._confirmed.siblings(flow.ufrag)
        if len(siblings) >= CONFIRMED_PER_UFRAG:
            self._remove(min(siblings, key=lambda sibling: sibling.heard_at), FlowEvent.EVICTED_SURPLUS)
        self._confirmed.add(flow)
        self._events[FlowEvent.CONFIRMED] += 1
        self._name(flow)

    def _name(self, flow: Flow) -> None:
        """Have a confirmed flow kept."""
        if self._exchange is not None:
            self._exchange.name(flow.key, flow.route)

    def _keep_order(self, flow: Flow, now: float) -> None:
        """Note life of a confirmed flow."""
        if now - flow.ordered_at >= ORDER_EVERY:
            flow.ordered_at = now
            self._confirmed.move_to_end(flow)

    def _line_of(self, flow: Flow) -> _Line:
        if flow.ended:
            return self._ended
        return self._probation if flow.probation_until else self._confirmed

    def _evict(self, now: float) -> bool:
        ended, waiting, silent = self._ended.first, self._probation.first, self._confirmed.first
        if ended is not None:
            self._remove(ended, FlowEvent.EVICTED_ENDED)
        elif waiting is not None and len(self._probation) > self._probation_share:
            self._remove(waiting, FlowEvent.EVICTED_PROBATION)
        elif silent is not None and self.is_quiet(silent, now):
            self._remove(silent, FlowEvent.EVICTED_QUIET)
        elif waiting is not None:
            self._remove(waiting, FlowEvent.EVICTED_PROBATION)
        else:
            return False
        return True

    def _remove(self, flow: Flow, event: FlowEvent) -> None:
        del self.by_key[flow.key]
        self.ssrcs.forget(flow)
        self._line_of(flow).remove(flow)
        self._events[event] += 1
