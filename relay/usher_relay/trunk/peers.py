"""Other clusters as the data path of an ingress relay sees them.

A peer has the addresses that its answers may come from, and 64 places, each with the address that the flows of this
place are sent to. Which addresses are up is found out elsewhere (`prober`); the data path gets the outcome.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from siphashc import siphash

from usher_core.hop import OVER_A_TRUNK, OVERHEAD, HopType
from usher_relay.endpoint import Endpoint
from usher_relay.hop_codec import hop_prefix
from usher_relay.trunk.rendezvous import PLACES

TRUNK_HOP_SIZE: Final = 1_232
"""UDP payload that every link of IPv6 carries (RFC 8200 section 5), and so any way between clusters."""
MAX_ROUTES_SEEN: Final = 4_096
MAX_ASKED: Final = 65_536
ASKED_FOR_S: Final = 10.0
_PLACE_KEY: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class PeerWays:
    """How a peer is reached: all its addresses, and the one of each place."""

    addresses: frozenset[Endpoint]
    places: tuple[Endpoint, ...]


class TrunkSend(NamedTuple):
    """A hop datagram for a peer. `path_key` is the client's: its datagrams leave in order, by one socket."""

    datagram: bytes
    address: Endpoint
    path_key: bytes


@dataclass(slots=True, eq=False)
class PeerRoute:
    """A transceiver of a peer, and how many client datagrams went there and came from there."""

    route: bytes
    peer: Peer = field(repr=False)
    uplink: int = 0
    downlink: int = 0
    room: int = TRUNK_HOP_SIZE - OVERHEAD
    """The longest client datagram that fits with one record."""
    prefix: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Build what each datagram needs."""
        self.prefix = hop_prefix(HopType.DATA, self.route, OVER_A_TRUNK)


class Peer:
    """One other cluster."""

    def __init__(self, ways: PeerWays) -> None:
        self.ways = ways
        self.routes: OrderedDict[bytes, PeerRoute] = OrderedDict()
        """Those that clients named lately; for reading only."""

    def route(self, route: bytes) -> PeerRoute:
        """Return the transceiver that a route (7 bytes) of this cluster names. 4,096 of them are remembered."""
        found = self.routes.get(route)
        if found is None:
            if len(self.routes) >= MAX_ROUTES_SEEN:
                self.routes.popitem(last=False)
            found = self.routes[route] = PeerRoute(route, self)
        return found

    def address(self, path_key: bytes) -> Endpoint:
        """Return where the datagrams of a client go now."""
        return self.ways.places[place_of(path_key)]


class AskedPeers:
    """Which peer was sent something of a client that has no flow there: its answer is let through, and no other's.

    Else a peer could have anything sent to anybody, and make any client its own. 65,536 clients are remembered, 10 s.
    """

    def __init__(self) -> None:
        self._asked: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()

    def note(self, path_key: bytes, cluster: bytes, now: float) -> None:
        """A datagram of a client goes to a peer."""
        self._asked[path_key] = (cluster, now)
        self._asked.move_to_end(path_key)
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)

    def may_answer(self, path_key: bytes, cluster: bytes, now: float) -> bool:
        """Tell whether a peer was the last one that was sent something of this client, within 10 s."""
        asked = self._asked.get(path_key)
        return asked is not None and asked[0] == cluster and now - asked[1] < ASKED_FOR_S


def place_of(path_key: bytes) -> int:
    """Return the place of a client, 0..63: the same in every relay, and after a restart."""
    # No secret: who chooses his own address and port chooses only which of the peer's relays carries him.
    return siphash(_PLACE_KEY, path_key) % PLACES
