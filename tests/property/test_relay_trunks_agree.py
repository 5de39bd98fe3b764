"""Both engines do the same at either end of a trunk: calls that work, and whatever else may come there."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.relay_rig import (
    ADDRESSES,
    DTLS,
    HOP_KEY,
    INDICATION,
    POD_A,
    POD_B,
    POD_C,
    Session,
    client,
    path_of,
    rtp,
    session,
)
from tests.trunk_rig import (
    HOME_CLUSTER,
    INGRESS_CLUSTER,
    TRUNK_KEY,
    TRUNK_KEY_ID,
    trunk_keys,
)
from usher_core import hop
from usher_core.hop import HopType, Outer, Record, RecordFlag
from usher_core.ids import Route
from usher_core.keys import HopKey
from usher_core.stun import StunClass, build
from usher_relay.counters import Drop
from usher_relay.endpoint import Endpoint
from usher_relay.hop_codec import route_bytes
from usher_relay.state import Limits
from usher_relay.trunk.peer_table import PeerAddresses
from usher_relay.trunk.rendezvous import PLACES

pytestmark = pytest.mark.needs("native engine")

HOMES = (("198.51.100.7", 3479), ("198.51.100.8", 3479))
SOURCES: tuple[Endpoint, ...] = (("203.0.113.5", 40001), ("203.0.113.6", 40002))
OTHER_TRUNK = HopKey(id=TRUNK_KEY_ID + 1, scope=8, key=bytes(range(70, 86)))
STEPS = 200


class World:
    """An ingress relay of cluster 9 and a home relay of cluster 1, each twice: once of either engine."""

    def __init__(self, seed: int) -> None:
        from tests.relay_both import Both  # it needs the native engine

        self.random = random.Random(seed)
        self.now, self.unix = 1_000.0, 1_800_000_000.0
        limits = Limits(max_flows=self.random.choice((16, 60)), packets_per_client=self.random.choice((100, 2_000)))
        self.with_password = self.random.random() < 0.6
        self.with_store = self.random.random() < 0.5
        keys = trunk_keys(HOME_CLUSTER, with_password=self.with_password)
        self.ingress = Both(limits, keys, with_store=self.with_store)
        # Another cluster has a trunk to the same home relay.
        held = trunk_keys(INGRESS_CLUSTER)
        self.home = Both(limits, held.model_copy(update={"hop": (*held.hop, OTHER_TRUNK)}))
        self.home.set_routes([(pod, ADDRESSES[pod], 1_472) for pod in (POD_A, POD_B)])
        # A pod of its own at the ingress relay, of another cluster than its peer.
        self.sessions = [session(pod, number) for number, pod in enumerate((POD_A, POD_B, POD_C, POD_A))]
        self.clients = [client(4_000 + number) for number in range(6)]
        self.seen: list[bytes] = []
        """Trunk datagrams that may come again."""
        self.asked: list[bytes] = []
        self.change_peers()
        self.tick(0.1)

    def change_peers(self) -> None:
        draw = self.random
        places = tuple(draw.randrange(2) for _ in range(PLACES))
        self.ingress.set_peers({HOME_CLUSTER: PeerAddresses(HOMES, places)} if draw.random() < 0.9 else {})

    def change_keys(self) -> None:
        scope = self.random.choice((HOME_CLUSTER, HOME_CLUSTER, 77))
        self.ingress.set_keys(trunk_keys(scope, with_password=self.with_password))
        self.tick(0.1)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.unix += seconds
        for both in (self.ingress, self.home):
            both.tick(self.now, self.unix)

    def step(self) -> None:
        action = self.random.choices(
            (
                self.enter,
                self.cross,
                self.answer,
                self.ask_store,
                self.wait,
                self.change_peers,
                self.change_keys,
                self.nonsense,
            ),
            (40, 25, 25, 15, 6, 1, 1, 6),
        )[0]
        action()

    def wait(self) -> None:
        self.tick(self.random.choice((0.02, 0.3, 2.0, 8.0, 61.0, 125.0)))

    def check(self, at: Session) -> bytes:
        draw = self.random
        return at.check(
            draw.randrange(1 << 30),
            password="wrong" if draw.random() < 0.1 else None,
            ufrag="A" * 24 if draw.random() < 0.05 else None,
            size=1_300 if draw.random() < 0.03 else 0,
        )

    def payload(self) -> bytes:
        draw = self.random
        return draw.choice(
            (
                self.check(draw.choice(self.sessions)),
                rtp(draw.randrange(1, 4), draw.choice((12, 160, 1_200))),
                DTLS,
                b"\x16\xfe\xfd" + bytes(1_405),
                INDICATION,
                build(StunClass.REQUEST, bytes(12), [], None),
                b"",
                b"\xff" * 30,
            )
        )

    def enter(self) -> None:
        draw = self.random
        packets = [(draw.choice(self.clients), 0, self.payload()) for _ in range(draw.randrange(1, 6))]
        self.ingress.from_clients(self.now, self.unix, packets)
        self.take_for_peers()

    def take_for_peers(self) -> None:
        self.seen += [datagram for datagram, _ in self.ingress.take_for_peers()]
        del self.seen[:-200]

    def ask_store(self) -> None:
        """What the store of the ingress relay's region says, of clients asked for and of others."""
        draw = self.random
        if not self.with_store:
            return
        asked = [*self.ingress.take_questions(), *draw.sample(self.clients, draw.randrange(2))]
        routes = [route_bytes(route) for route in (POD_A, POD_B, POD_C, Route(2, 5))]
        if draw.random() < 0.2:
            self.ingress.load([(path, draw.choice(routes)) for path in draw.sample(self.clients, 2)], self.now)
        answers = [(path, draw.choice((None, *routes))) for path in asked]
        self.ingress.from_store(self.now, self.unix, answers)
        self.take_for_peers()

    def trunk_datagram(self) -> bytes:
        """What an ingress relay may send, honest or not: bundles, forged checks, other types."""
        draw = self.random
        route = draw.choice((POD_A, POD_B, POD_C, Route(2, 5)))
        kind = draw.choices((HopType.DATA, HopType.PROBE, draw.choice(list(HopType))), (8, 1, 1))[0]
        outer = Outer(kind, draw.random() < 0.05, route.cluster, route.pod, route.worker, TRUNK_KEY_ID, 0, 2)
        outer = replace(
            outer,
            key_id=draw.choices((TRUNK_KEY_ID, 99), (20, 1))[0],
            hops_left=draw.choices((2, 0, 1, 9), (20, 1, 1, 1))[0],
            time_ms=int(self.unix * 1000) + draw.choices((0, 59_000, -61_000), (20, 1, 1))[0],
        )
        records = tuple(
            Record(
                path_of(draw.choice(self.clients)), self.payload(), draw.choice((0, 0, 0, 1, 4, 12)), draw.randrange(9)
            )
            for _ in range(draw.choice((1, 1, 2, 5, 12)))
        )
        if draw.random() < 0.1:
            return hop.encode(replace(outer, key_id=OTHER_TRUNK.id), records, OTHER_TRUNK.key)
        return hop.encode(outer, records, draw.choices((TRUNK_KEY, HOP_KEY), (20, 1))[0])

    def cross(self) -> None:
        draw = self.random
        waiting = [draw.choice(self.seen) for _ in range(3) if self.seen] + [self.trunk_datagram()]
        came = [(self.broken(datagram), draw.choice(SOURCES)) for datagram in waiting]
        sends = self.home.from_ingress(self.now, self.unix, came)
        self.asked += [datagram for datagram, _ in sends]
        del self.asked[:-100]

    def broken(self, datagram: bytes) -> bytes:
        draw = self.random
        if draw.random() > 0.08:
            return datagram
        cut = bytearray(datagram[: draw.randrange(len(datagram) + 1)] if draw.random() < 0.5 else datagram)
        if cut:
            cut[draw.randrange(len(cut))] ^= 1 << draw.randrange(8)
        return bytes(cut)

    def answer(self) -> None:
        draw = self.random
        if not self.asked:
            return
        parsed = hop.parse(draw.choice(self.asked))
        kind = draw.choices((HopType.DATA, HopType.UNKNOWN_FLOW, HopType.HERE, HopType.PROBE_REPLY), (20, 2, 1, 1))[0]
        outer = replace(
            parsed.outer,
            type=kind,
            to_client=True,
            hops_left=draw.choices((2, 1, 0), (20, 1, 1))[0],
            time_ms=int(self.unix * 1000),
            return_slot=draw.choices((parsed.outer.return_slot, 0, 777), (20, 2, 1))[0],
        )
        flags = draw.choice((0, RecordFlag.ALIVE, RecordFlag.ALIVE, RecordFlag.SPLIT))
        payload = b"" if kind is HopType.UNKNOWN_FLOW else draw.choice((b"", b"answer", bytes(1_200), b"\0\0\0\1"))
        records = tuple(record._replace(payload=payload, flags=flags) for record in parsed.records)
        route = Route(outer.cluster, outer.pod, outer.worker)
        datagram = self.broken(hop.encode(outer, records, HOP_KEY))
        back = self.home.from_transceivers(self.now, self.unix, [(datagram, ADDRESSES[route])])
        came = [(self.broken(sent), draw.choices((draw.choice(HOMES), SOURCES[0]), (20, 1))[0]) for sent, _ in back]
        self.ingress.from_peers(self.now, self.unix, came)

    def nonsense(self) -> None:
        draw = self.random
        datagram = draw.randbytes(draw.choice((0, 5, 11, 26, 51, 80)))
        self.home.from_ingress(self.now, self.unix, [(datagram, SOURCES[0])])
        self.ingress.from_peers(self.now, self.unix, [(datagram, HOMES[0])])


def run(seed: int) -> World:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    for both in (world.ingress, world.home):
        both.compare_flows(world.now)
    return world


@pytest.mark.timeout(180)
@given(st.integers(0, 1 << 32))
def test_both_engines_do_the_same_at_both_ends_of_a_trunk(seed: int) -> None:
    run(seed)


def test_both_engines_find_the_key_of_a_trunk_among_hundreds() -> None:
    world = World(2)
    held = trunk_keys(INGRESS_CLUSTER)
    # 64 trunks with 8 keys each; 8 of all have one id.
    others = tuple(
        HopKey(id=(cluster % 32 * 8 + nth) % 256, scope=cluster, key=bytes([cluster, nth] * 8))
        for cluster in range(100, 164)
        for nth in range(8)
    )
    world.home.set_keys(held.model_copy(update={"hop": (held.hop[0], *others)}))
    world.tick(0.1)
    for number, key in enumerate(others):
        outer = Outer(HopType.DATA, False, 1, POD_A.pod, 0, key.id, int(world.unix * 1000), 2)
        made = hop.encode(outer, (Record(path_of(client(number)), rtp(number)),), key.key)
        forged = hop.encode(outer, (Record(path_of(client(number)), rtp(number)),), HOP_KEY)
        source = ("203.0.113.7", 1_000 + number % 50)
        assert len(world.home.from_ingress(world.now, world.unix, [(made, source), (forged, source)])) == 1
    assert world.home.counters.drops[Drop.HOP_MAC] == len(others)


def test_relays_that_are_each_others_peers_send_nothing_back_and_forth() -> None:
    from tests.relay_both import Both  # it needs the native engine

    world = World(3)
    keys = trunk_keys(INGRESS_CLUSTER)
    there = Both(Limits(), keys.model_copy(update={"hop": (*keys.hop, OTHER_TRUNK)}))
    # Both name the other for a cluster that neither has, and for each other's.
    nowhere = PeerAddresses(HOMES, (0,) * PLACES)
    for both in (world.home, there):
        both.set_peers(dict.fromkeys((1, 2, 8, INGRESS_CLUSTER), nowhere))
        both.tick(world.now, world.unix)
    for route in (Route(1, 999), Route(2, 5), Route(8, 1), Route(INGRESS_CLUSTER, 1)):
        for hops in (2, 3, 255):
            outer = Outer(HopType.DATA, False, route.cluster, route.pod, 0, TRUNK_KEY_ID, int(world.unix * 1000), hops)
            made = hop.encode(outer, (Record(path_of(client(1)), rtp(1)),), TRUNK_KEY)
            for both in (world.home, there):
                assert both.from_ingress(world.now, world.unix, [(made, HOMES[0])]) == []
                assert both.take_for_peers() == []
    assert world.home.counters.drops[Drop.NO_ROUTE] == 12


def test_both_engines_answer_as_many_probes_of_a_trunk_and_no_more() -> None:
    world = World(1)
    outer = Outer(HopType.PROBE, False, 1, 0, 0, TRUNK_KEY_ID, int(world.unix * 1000), 2)

    def probe(number: int) -> bytes:
        return hop.encode(outer, (Record(path_of(client(1)), number.to_bytes(8) + bytes(10)),), TRUNK_KEY)

    recorded, number = probe(0), 0
    for seconds in (0.0, 0.25, 3.0):
        world.tick(seconds)
        for _ in range(20):
            numbers = range(number, number + 64)
            number += 64
            world.home.from_ingress(world.now, world.unix, [(probe(each), SOURCES[0]) for each in numbers])
            world.home.from_ingress(world.now, world.unix, [(recorded, source) for source in SOURCES])
    assert world.home.counters.drops[Drop.LIMIT_PROBES] > 1_000


def test_the_traffic_reaches_what_trunks_add() -> None:
    worlds = [run(seed) for seed in range(45)]
    ingress = [world.ingress.counters for world in worlds]
    home = [world.home.counters for world in worlds]
    assert sum(counters.uplink.forwarded for counters in home) > 500
    assert sum(counters.downlink.forwarded for counters in ingress) > 200
    assert sum(counters.store_found for counters in ingress) > 20
    assert sum(counters.store_loaded for counters in ingress) > 5
    for reason in (
        Drop.PEER_KEY,
        Drop.HOP_UNASKED,
        Drop.HOP_ROUTE,
        Drop.HOP_SOURCE,
        Drop.HOP_KEY,
        Drop.HOP_MAC,
        Drop.NO_ROUTE,
    ):
        assert any(counters.drops[reason] for counters in (*ingress, *home)), reason
    wanted = (Drop.HOP_LOOP, Drop.HOP_SLOT, Drop.HOP_TYPE, Drop.HOP_DIRECTION, Drop.HOP_TIME, Drop.INTEGRITY)
    for reason in (*wanted, Drop.HOP_MALFORMED, Drop.HOP_ROOM, Drop.UFRAG_SHAPE):
        assert any(counters.drops[reason] for counters in home), reason
