"""Two clusters without sockets: an ingress relay of cluster 9, and a home relay of cluster 1 with its transceivers."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, replace

from tests.relay_rig import (
    ADDRESSES,
    HOP_KEY,
    LISTENER,
    LISTENER_V6,
    PASSWORD_KEY,
    POD_A,
    POD_B,
    UFRAG_KEY,
    ToPod,
    path_of,
    read_hop,
)
from usher_core import hop
from usher_core.hop import HopType, Outer, Record
from usher_core.ids import Route
from usher_core.keys import KeyFile, parse_key_file
from usher_relay.counters import Drop
from usher_relay.endpoint import Endpoint
from usher_relay.forwarder import Forwarder
from usher_relay.hop_codec import route_bytes
from usher_relay.state import Limits, LiveRoute, RelayKeys
from usher_relay.trunk.peers import PeerWays
from usher_relay.trunk.rendezvous import PLACES

INGRESS_CLUSTER, HOME_CLUSTER = 9, 1
TRUNK_KEY = bytes(range(40, 56))
TRUNK_KEY_ID = 3  # as the local key's: scopes keep them apart
HOME_ADDRESS: Endpoint = ("198.51.100.7", 3479)
INGRESS_ADDRESS: Endpoint = ("203.0.113.5", 40001)
HOP_SIZE = 1_472
HOME_NAME = HOME_CLUSTER.to_bytes(2)


def trunk_keys(scope: int, *, with_password: bool = True, trunk_key: bytes = TRUNK_KEY) -> KeyFile:
    """The key file of a relay whose trunk leads to cluster `scope`."""

    def text(key: bytes) -> str:
        return base64.b64encode(key).decode()

    ice = {"letter": "u", "clusters": [HOME_CLUSTER], "ufrag_key": text(UFRAG_KEY)}
    if with_password:
        ice["password_key"] = text(PASSWORD_KEY)
    hops = [{"id": 3, "key": text(HOP_KEY)}, {"id": TRUNK_KEY_ID, "scope": scope, "key": text(trunk_key)}]
    return parse_key_file(json.dumps({"version": 1, "ice": [ice], "hop": hops}))


def ways(*addresses: Endpoint) -> PeerWays:
    """How a peer is reached: the places go round among its addresses."""
    return PeerWays(frozenset(addresses), tuple(addresses[place % len(addresses)] for place in range(PLACES)))


@dataclass
class TrunkRig:
    """Time stands still. What either relay sends is kept until it is handed over."""

    with_password: bool = True
    with_store: bool = False
    """Whether the ingress relay asks a store of mappings."""
    now: float = 1_000.0
    unix: float = 1_800_000_000.0
    source: Endpoint = INGRESS_ADDRESS
    """Where the ingress relay's datagrams come from, as the home relay sees them."""
    ingress: Forwarder = field(init=False)
    home: Forwarder = field(init=False)

    def __post_init__(self) -> None:
        limits = Limits()
        keys = RelayKeys.of(trunk_keys(HOME_CLUSTER, with_password=self.with_password))
        self.ingress = Forwarder(limits, (LISTENER, LISTENER_V6), keys, with_store=self.with_store)
        self.ingress.set_peers({HOME_NAME: ways(HOME_ADDRESS)})
        self.home = Forwarder(limits, (), RelayKeys.of(trunk_keys(INGRESS_CLUSTER)))
        self.home.set_routes(LiveRoute(route_bytes(pod), ADDRESSES[pod], HOP_SIZE) for pod in (POD_A, POD_B))
        self.tick()

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass."""
        self.now += seconds
        self.unix += seconds
        for relay in (self.ingress, self.home):
            relay.tick(self.now, self.unix)

    def enter(self, path_key: bytes, *datagrams: bytes) -> list[bytes]:
        """Let a client send; return what leaves over the trunk. Nothing may go anywhere else."""
        packets = [(path_key, None, datagram) for datagram in datagrams]
        assert self.ingress.from_clients(self.now, self.unix, packets) == []
        sends = self.ingress.take_for_peers()
        assert all(send.path_key == path_key for send in sends)
        return [send.datagram for send in sends]

    def arrive(self, *datagrams: bytes, source: Endpoint | None = None) -> list[ToPod]:
        """Let datagrams reach the home relay's trunk listener; return what goes to transceivers."""
        came = [(datagram, source or self.source) for datagram in datagrams]
        return [read_hop(*sent) for sent in self.home.from_ingress(self.now, self.unix, came)]

    def send(self, path_key: bytes, *datagrams: bytes) -> list[ToPod]:
        """Let a client's datagrams go all the way."""
        return self.arrive(*self.enter(path_key, *datagrams))

    def answer(
        self, asked: ToPod, payload: bytes = b"answer", flags: int = hop.RecordFlag.ALIVE, **outer: int | HopType
    ) -> list[tuple[bytes, Endpoint]]:
        """Let the transceiver answer what it got; return what leaves over the trunk, with its destination."""
        head = replace(asked.outer, to_client=True, hops_left=2, time_ms=int(self.unix * 1000))
        head = replace(head, **outer)  # type: ignore[arg-type]  # names and types are checked by the class
        datagram = hop.encode(head, (asked.record._replace(payload=payload, flags=flags),), HOP_KEY)
        answers = self.home.from_transceivers(self.now, self.unix, [(datagram, ADDRESSES[asked.route])])
        assert answers.to_clients == []
        return self.home.take_for_ingress()

    def leave(self, *datagrams: bytes, source: Endpoint = HOME_ADDRESS) -> list[tuple[bytes, bytes, object]]:
        """Let datagrams come back to the ingress relay; return what goes to clients: (path key, datagram, local)."""
        return self.ingress.from_peers(self.now, self.unix, [(datagram, source) for datagram in datagrams])

    def round(self, path_key: bytes, datagram: bytes, payload: bytes = b"answer") -> list[tuple[bytes, bytes, object]]:
        """Let a client's datagram go all the way, and its answer come back."""
        (asked,) = self.send(path_key, datagram)
        ((back, to),) = self.answer(asked, payload)
        assert to == self.source
        return self.leave(back)

    def trunk_datagram(
        self, route: Route, *records: tuple[bytes, bytes], key: bytes = TRUNK_KEY, **outer: int | bool | HopType
    ) -> bytes:
        """A datagram as an ingress relay sends it: (path key, payload) of each record; `outer` overrides fields."""
        head = Outer(
            HopType.DATA, False, route.cluster, route.pod, route.worker, TRUNK_KEY_ID, int(self.unix * 1000), 2
        )
        head = replace(head, **outer)  # type: ignore[arg-type]  # names and types are checked by the class
        return hop.encode(head, tuple(Record(path_of(path_key), payload) for path_key, payload in records), key)

    @staticmethod
    def drops(relay: Forwarder) -> dict[Drop, int]:
        """What a relay dropped so far, by reason."""
        return {reason: count for reason, count in relay.counters.drops.items() if count}
