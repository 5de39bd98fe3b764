"""What both directions of the path share: routes, keys, flows, limits, counters. Owned by one data thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from usher_core.errors import LocalError
from usher_core.hop import OVERHEAD, HopType
from usher_core.keys import HeldKey, HopKey, IceKeyRing, KeyFile, held_keys, index_by_id, newest_usable
from usher_core.peers import MAX_TRUNKS
from usher_relay.counters import Counters, Drop
from usher_relay.endpoint import Endpoint
from usher_relay.exchange import Exchange
from usher_relay.flows import PROBATION_PER_UFRAG, FlowMap
from usher_relay.hop_codec import Stamp, hop_prefix, make_stamp
from usher_relay.limits import AddressLimit, Buckets, Rate
from usher_relay.trunk.keys import TrunkKeys
from usher_relay.trunk.peers import AskedPeers, Peer, PeerRoute, PeerWays, TrunkSend
from usher_relay.trunk.return_slots import ReturnSlots
from usher_relay.waiting import Waiting

REMEMBERED_LOCALS = 4_096
PROBES_PER_TRUNK = 1_000
"""Answered per second: each relay at the other end sends 4 for each address of ours."""
PROBE_KNOWN_S = 120.0
"""After that a datagram is no longer timely, however its sender's clock goes: within 60 s, before or after."""
BUCKETS = 65_536
"""Senders and ufrags that a limit tells apart; about 10 MB when full."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a relay; `RelaySettings` says the reason of each."""

    max_flows: int = 100_000
    probation_per_ufrag: int = PROBATION_PER_UFRAG
    packets_per_client: int = 2_000
    packets_per_address: int = 50_000
    checks_per_client: int = 200
    checks_per_ufrag: int = 1_000
    tentative_per_client: int = 200
    tentative_per_second: int = 10_000
    who_has_limit: int = 64
    questions_per_second: int = 1_000


@dataclass(slots=True, eq=False)
class LiveRoute:
    """A transceiver as the data path sees it.

    `hop_size` is the most UDP payload that the way to it carries in one piece.
    """

    route: bytes
    address: Endpoint
    hop_size: int
    uplink: int = 0
    """Client datagrams sent there."""
    downlink: int = 0
    """Client datagrams that came from there."""
    prefix: bytes = field(init=False)
    room: int = field(init=False)
    """The longest client datagram that fits with one record."""

    def __post_init__(self) -> None:
        """Build what the hot path needs."""
        self.prefix = hop_prefix(HopType.DATA, self.route)
        self.set_hop_size(self.hop_size)

    def set_hop_size(self, size: int) -> None:
        """Take note of how much the way carries."""
        self.hop_size = size
        self.room = size - OVERHEAD


@dataclass(frozen=True, slots=True)
class RelayKeys:
    """The keys of a relay, ready for use. `hop` holds those of the local scope by id."""

    ice: IceKeyRing
    hop: dict[int, HopKey] = field(repr=False)
    trunk: TrunkKeys = field(repr=False)
    held: tuple[HeldKey, ...]

    @classmethod
    def of(cls, file: KeyFile, scope: Literal["local"] = "local") -> RelayKeys:
        """Take from a key file what a relay needs. Raises LocalError when it holds no usable keys."""
        hop = index_by_id(key for key in file.hop if key.scope == scope)
        if not file.ice or not hop:
            raise LocalError(
                "a relay needs at least one ice key and one local hop key", "make a file with `usher keys new`"
            )
        return cls(IceKeyRing(file.ice), hop, TrunkKeys(file.hop), held_keys(file))


class LiveRoutes:
    """Which routes (7 bytes) datagrams can go to: those of the table, and all of the clusters that are peers."""

    def __init__(self, routes: Mapping[bytes, LiveRoute], peers: Mapping[bytes, Peer]) -> None:
        self._routes = routes
        self._peers = peers

    def __contains__(self, route: object) -> bool:
        """Tell whether a route is live."""
        return route in self._routes or (isinstance(route, bytes) and route[:2] in self._peers)


class RelayState:
    """The state of one data thread. `routes` and `peers` are changed in place, so that the flow map sees the live ones.

    `exchange` is None where no store keeps mappings.
    """

    def __init__(self, limits: Limits, listeners: Iterable[int], keys: RelayKeys, *, with_store: bool = False) -> None:
        self.counters = Counters()
        self.exchange = Exchange(limits.max_flows, self.counters) if with_store else None
        self.listeners = frozenset(listener.to_bytes(2) for listener in listeners)
        self.routes: dict[bytes, LiveRoute] = {}
        self.peers: dict[bytes, Peer] = {}
        """By the 2 bytes of the cluster id."""
        self.trunk_keys: dict[bytes, HopKey] = {}
        """To send over a trunk with, by the cluster at its other end."""
        self.asked_peers = AskedPeers()
        self.slots = ReturnSlots()
        self.probes = Buckets(_rate(PROBES_PER_TRUNK), MAX_TRUNKS)
        self.probe_nonces = Buckets(Rate.once_in(PROBE_KNOWN_S), BUCKETS)
        """Of each trunk: a recorded probe takes nothing from those that come after it."""
        self.to_peers: list[TrunkSend] = []
        """What the data thread has still to send to relays of other clusters that own the session."""
        self.to_ingress: list[tuple[bytes, Endpoint]] = []
        """The same of answers to relays where the client entered."""
        live = LiveRoutes(self.routes, self.peers)
        self.flows = FlowMap(limits.max_flows, live, self.counters, limits.probation_per_ufrag, self.exchange)
        self.keys = keys
        self.client_rate = _rate(limits.packets_per_client)
        self.address_limit = AddressLimit(limits.packets_per_address, BUCKETS)
        self.checks_by_client = Buckets(_rate(limits.checks_per_client), BUCKETS)
        self.checks_by_ufrag = Buckets(_rate(limits.checks_per_ufrag), BUCKETS)
        self.tentative_by_client = Buckets(_rate(limits.tentative_per_client), BUCKETS)
        self.tentative = Buckets(_rate(limits.tentative_per_second), 1)
        self.who_has_limit = limits.who_has_limit
        self.waiting = Waiting(limits.questions_per_second, self.counters)
        self._locals: OrderedDict[bytes, object] = OrderedDict()
        self._hop_key = next(iter(keys.hop.values()))

    @property
    def transceivers_to_ask(self) -> int:
        """How many are asked whose a client is: all of them, or none where they are too many."""
        return len(self.routes) if len(self.routes) <= self.who_has_limit else 0

    def set_routes(self, routes: Iterable[LiveRoute]) -> None:
        """Swap the table; a route that stays keeps its counts."""
        fresh = {route.route: route for route in routes}
        for key, route in fresh.items():
            known = self.routes.get(key)
            if known is not None:
                route.uplink, route.downlink = known.uplink, known.downlink
        self.routes.clear()
        self.routes.update(fresh)

    def set_peers(self, ways: Mapping[bytes, PeerWays]) -> None:
        """Say which clusters are peers now, by the 2 bytes of the id; one that stays keeps its counts."""
        for cluster in self.peers.keys() - ways.keys():
            del self.peers[cluster]
        for cluster, reached in ways.items():
            if cluster in self.peers:
                self.peers[cluster].ways = reached
            else:
                self.peers[cluster] = Peer(reached)

    def find(self, route: bytes) -> LiveRoute | PeerRoute | None:
        """Return the transceiver of a live route, here or in another cluster."""
        own = self.routes.get(route)
        if own is not None or not self.peers:
            return own
        peer = self.peers.get(route[:2])
        return None if peer is None else peer.route(route)

    def choose_hop_keys(self, unix: float) -> None:
        """Choose the keys that are sent with at `unix`, Unix seconds: keys become active as time passes."""
        self.trunk_keys = self.keys.trunk.newest(unix)
        self._hop_key = newest_usable(self.keys.hop.values(), unix)

    def stamp(self, unix: float) -> Stamp:
        """Return the stamp of a batch at `unix`, Unix seconds."""
        return make_stamp(self._hop_key.id, self._hop_key.key, int(unix * 1000))

    def drop(self, reason: Drop) -> None:
        """Count a datagram that is not forwarded."""
        self.counters.drops[reason] += 1

    def remember_local(self, path_key: bytes, local: object) -> None:
        """Keep the local address of a request or tentative packet that made no flow, for its answer."""
        if local is None:
            return
        self._locals[path_key] = local
        self._locals.move_to_end(path_key)
        if len(self._locals) > REMEMBERED_LOCALS:
            self._locals.popitem(last=False)

    def remembered_local(self, path_key: bytes) -> object:
        """Return the local address kept for an answer to `path_key`, or None: the listener's own."""
        return self._locals.get(path_key)


def _rate(per_second: int) -> Rate:
    """A whole second's packets may come at once: what a stalled network lets through in one go is no attack."""
    return Rate(per_second, per_second)
