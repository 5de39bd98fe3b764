"""Datagrams between clusters: an ingress relay, the trunk, a home relay, and back."""

from __future__ import annotations

import pytest

from tests.relay_rig import DTLS, HOP_KEY, POD_A, POD_B, client, path_of, rtp, session
from tests.trunk_rig import (
    HOME_ADDRESS,
    HOME_NAME,
    INGRESS_ADDRESS,
    INGRESS_CLUSTER,
    TRUNK_KEY,
    TRUNK_KEY_ID,
    TrunkRig,
    trunk_keys,
    ways,
)
from usher_core import hop
from usher_core.hop import HopType, Outer, Record, RecordFlag
from usher_core.ids import Route
from usher_core.keys import HopKey
from usher_relay.counters import Drop
from usher_relay.hop_codec import route_bytes
from usher_relay.state import RelayKeys
from usher_relay.trunk.peers import place_of
from usher_relay.trunk.rendezvous import PLACES

CLIENT = client(4000)
OTHER = client(4001)


def connect(rig: TrunkRig, path_key: bytes = CLIENT, route: Route = POD_A) -> None:
    assert rig.round(path_key, session(route).check()) == [(path_key, b"answer", None)]


# The way there


def test_a_check_reaches_the_transceiver_of_another_cluster_with_its_client_and_a_return_slot() -> None:
    rig = TrunkRig()
    check = session(POD_A).check()
    (asked,) = rig.send(CLIENT, check)
    assert (asked.route, asked.record.payload) == (POD_A, check)
    assert (asked.record.path.port, asked.record.path.listener) == (4000, 1)
    assert (asked.outer.hops_left, asked.outer.return_slot) == (1, 1)


def test_what_crosses_a_trunk_has_two_hops_and_the_key_of_that_trunk_alone() -> None:
    rig = TrunkRig()
    (datagram,) = rig.enter(CLIENT, session(POD_A).check())
    parsed = hop.parse(datagram)
    assert (parsed.outer.hops_left, parsed.outer.return_slot) == (2, 0)
    assert hop.verify(parsed, TRUNK_KEY)
    assert not hop.verify(parsed, HOP_KEY)


def test_media_follows_its_flow_and_each_datagram_its_client() -> None:
    rig = TrunkRig()
    connect(rig)
    connect(rig, OTHER, POD_B)
    assert [sent.route for sent in rig.send(CLIENT, rtp(7), DTLS)] == [POD_A, POD_A]
    assert [sent.route for sent in rig.send(OTHER, rtp(8))] == [POD_B]


def test_a_datagram_that_does_not_fit_the_trunk_crosses_in_two_halves_that_nobody_joins() -> None:
    rig = TrunkRig()
    connect(rig)
    hello = b"\x16\xfe\xfd" + bytes(range(256)) * 5 + bytes(125)  # as long as Firefox's
    first, last = rig.send(CLIENT, hello)
    assert first.record.payload + last.record.payload == hello
    assert (first.record.flags, last.record.flags) == (RecordFlag.SPLIT, RecordFlag.SPLIT | RecordFlag.LAST_PART)
    assert first.record.split_id == last.record.split_id


def test_a_client_that_roams_is_tried_over_the_trunk_by_its_ssrc() -> None:
    rig = TrunkRig()
    connect(rig)
    rig.send(CLIENT, rtp(7))
    (tried,) = rig.send(client(5000), rtp(7))
    assert (tried.route, tried.record.flags) == (POD_A, RecordFlag.TENTATIVE)
    ((back, _),) = rig.answer(tried)
    assert rig.leave(back) == [(client(5000), b"answer", None)]
    assert [sent.record.flags for sent in rig.send(client(5000), rtp(7))] == [0]


def test_a_client_has_one_of_64_places_and_clients_behind_one_nat_have_all_of_them() -> None:
    places = [place_of(client(port)) for port in range(2_000, 10_000)]
    counts = [places.count(place) for place in range(PLACES)]
    assert min(counts) > 80, counts
    hosts = [place_of(client(4000, f"192.0.{number >> 8}.{number & 255}")) for number in range(8_000)]
    assert min(hosts.count(place) for place in range(PLACES)) > 80


def test_a_flow_stays_with_its_endpoint_and_moves_when_its_place_does() -> None:
    rig = TrunkRig()
    there, elsewhere = HOME_ADDRESS, ("198.51.100.8", 3479)
    connect(rig)
    packets = [(CLIENT, None, rtp(7))]
    rig.ingress.from_clients(rig.now, rig.unix, packets)
    assert [send.address for send in rig.ingress.take_for_peers()] == [there]
    rig.ingress.set_peers({HOME_NAME: ways(elsewhere)})
    rig.ingress.from_clients(rig.now, rig.unix, packets)
    assert [send.address for send in rig.ingress.take_for_peers()] == [elsewhere]


def test_a_cluster_that_is_no_peer_any_more_gets_nothing_and_its_clients_may_move() -> None:
    rig = TrunkRig()
    connect(rig)
    rig.ingress.set_peers({})
    assert rig.enter(CLIENT, rtp(7)) == []
    assert rig.enter(CLIENT, session(POD_A).check()) == []
    assert rig.drops(rig.ingress) == {Drop.NO_ROUTE: 2}


def test_without_a_key_for_the_trunk_nothing_leaves() -> None:
    rig = TrunkRig()
    rig.ingress.set_keys(RelayKeys.of(trunk_keys(77)))
    rig.tick()
    assert rig.enter(CLIENT, session(POD_A).check()) == []
    assert rig.drops(rig.ingress) == {Drop.PEER_KEY: 1}


# At an ingress relay without the password key


def test_an_ingress_only_relay_makes_a_flow_of_the_answer_and_the_home_relay_refuses_forged_checks() -> None:
    rig = TrunkRig(with_password=False)
    forged = session(POD_A).check(password="wrong")
    assert rig.arrive(*rig.enter(CLIENT, forged)) == []
    assert rig.drops(rig.home) == {Drop.INTEGRITY: 1}
    assert rig.enter(CLIENT, rtp(7)) == []
    connect(rig)
    assert len(rig.send(CLIENT, rtp(7))) == 1


def test_a_forged_check_in_a_bundle_costs_the_others_nothing() -> None:
    rig = TrunkRig()
    good, forged = session(POD_A).check(1), session(POD_A).check(2, password="wrong")
    bundle = rig.trunk_datagram(POD_A, (CLIENT, good), (OTHER, forged), (CLIENT, rtp(7)))
    ((datagram, _),) = rig.home.from_ingress(rig.now, rig.unix, [(bundle, INGRESS_ADDRESS)])
    parsed = hop.parse(datagram)
    assert hop.verify(parsed, HOP_KEY)
    assert [record.payload for record in parsed.records] == [good, rtp(7)]
    assert rig.drops(rig.home) == {Drop.INTEGRITY: 1}


def test_a_check_for_another_transceiver_than_the_datagram_names_is_forged() -> None:
    rig = TrunkRig()
    assert rig.arrive(rig.trunk_datagram(POD_A, (CLIENT, session(POD_B).check()))) == []
    assert rig.drops(rig.home) == {Drop.INTEGRITY: 1}


# What a home relay refuses


@pytest.mark.parametrize(
    ("outer", "reason"),
    [
        ({"hops_left": 1}, Drop.HOP_LOOP),
        ({"hops_left": 0}, Drop.HOP_LOOP),
        ({"to_client": True}, Drop.HOP_DIRECTION),
        ({"type": HopType.WHO_HAS}, Drop.HOP_TYPE),
        ({"type": HopType.HERE}, Drop.HOP_TYPE),
        ({"type": HopType.UNKNOWN_FLOW}, Drop.HOP_TYPE),
        ({"type": HopType.PROBE_REPLY}, Drop.HOP_TYPE),
        ({"key_id": 200}, Drop.HOP_KEY),
        ({"time_ms": 0}, Drop.HOP_TIME),
        ({"key": HOP_KEY}, Drop.HOP_MAC),
        ({"cluster": 2}, Drop.NO_ROUTE),
        ({"pod": 99}, Drop.NO_ROUTE),
    ],
)
def test_what_does_not_belong_on_a_trunk_is_dropped_and_gets_no_slot(outer: dict[str, int], reason: Drop) -> None:
    rig = TrunkRig()
    assert rig.arrive(rig.trunk_datagram(POD_A, (CLIENT, rtp(7)), **outer)) == []  # type: ignore[arg-type]
    assert rig.drops(rig.home) == {reason: 1}
    assert len(rig.home.state.slots) == 0
    assert rig.home.take_for_ingress() == []


def test_nothing_goes_on_to_a_third_cluster_so_there_are_no_loops() -> None:
    rig = TrunkRig()
    rig.home.set_peers({(2).to_bytes(2): ways(INGRESS_ADDRESS)})
    assert rig.arrive(rig.trunk_datagram(Route(2, 5), (CLIENT, rtp(7)), hops_left=9)) == []
    assert rig.home.take_for_peers() == []
    assert rig.drops(rig.home) == {Drop.NO_ROUTE: 1}


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_datagram_that_is_cut_short_is_dropped(cut: int) -> None:
    rig = TrunkRig()
    datagram = rig.trunk_datagram(POD_A, (CLIENT, rtp(7, 20)))
    assert rig.arrive(datagram[:cut]) == []
    assert rig.drops(rig.home) == {Drop.HOP_MALFORMED: 1}


def test_a_recorded_datagram_is_of_no_use_after_a_minute() -> None:
    rig = TrunkRig()
    datagram = rig.trunk_datagram(POD_A, (CLIENT, rtp(7)))
    rig.tick(61)
    assert rig.arrive(datagram) == []
    assert rig.drops(rig.home) == {Drop.HOP_TIME: 1}


# The way back


def test_an_answer_comes_back_to_the_relay_that_asked_and_to_no_other() -> None:
    rig = TrunkRig()
    (first,) = rig.send(CLIENT, session(POD_A).check())
    rig.source = ("203.0.113.6", 40002)
    (second,) = rig.send(OTHER, session(POD_A).check())
    assert first.outer.return_slot != second.outer.return_slot
    ((_, to_first),) = rig.answer(first)
    ((_, to_second),) = rig.answer(second)
    assert (to_first, to_second) == (INGRESS_ADDRESS, rig.source)


def test_an_answer_is_restamped_with_the_trunk_key_and_one_hop_less() -> None:
    rig = TrunkRig()
    (asked,) = rig.send(CLIENT, session(POD_A).check())
    ((back, _),) = rig.answer(asked)
    parsed = hop.parse(back)
    assert hop.verify(parsed, TRUNK_KEY)
    assert (parsed.outer.hops_left, parsed.outer.return_slot, parsed.outer.to_client) == (1, 0, True)


def test_unknown_flow_crosses_the_trunk_and_ends_the_flow() -> None:
    rig = TrunkRig()
    connect(rig)
    (asked,) = rig.send(CLIENT, rtp(7))
    ((back, _),) = rig.answer(asked, b"", 0, type=HopType.UNKNOWN_FLOW)
    assert rig.leave(back) == []
    assert rig.enter(CLIENT, DTLS) == []
    assert rig.drops(rig.ingress) == {Drop.SESSION_ENDED: 1}


@pytest.mark.parametrize(
    ("outer", "reason"),
    [
        ({"return_slot": 9}, Drop.HOP_SLOT),
        ({"hops_left": 1}, Drop.HOP_LOOP),
        ({"type": HopType.HERE}, Drop.HOP_TYPE),
    ],
)
def test_an_answer_that_can_not_go_back_is_dropped(outer: dict[str, int], reason: Drop) -> None:
    rig = TrunkRig()
    (asked,) = rig.send(CLIENT, session(POD_A).check())
    assert rig.answer(asked, b"1234", 0, **outer) == []
    assert rig.drops(rig.home) == {reason: 1}


def test_the_ingress_relay_believes_only_its_peers_addresses_and_keys() -> None:
    rig = TrunkRig()
    (asked,) = rig.send(CLIENT, session(POD_A).check())
    ((back, _),) = rig.answer(asked)
    assert rig.leave(back, source=("198.51.100.66", 3479)) == []
    assert rig.leave(back[:20] + bytes((back[20] ^ 1,)) + back[21:]) == []
    stranger = hop.parse(back).outer
    foreign = hop.encode(
        hop.Outer(HopType.DATA, True, 2, 5, 0, stranger.key_id, stranger.time_ms), (asked.record,), TRUNK_KEY
    )
    assert rig.leave(foreign) == []
    assert rig.drops(rig.ingress) == {Drop.HOP_SOURCE: 1, Drop.HOP_MAC: 1, Drop.HOP_ROUTE: 1}
    assert rig.leave(back) == [(CLIENT, b"answer", None)]


# Rotation of the trunk's key under a call


def test_a_new_trunk_key_is_opened_before_it_is_used_and_the_old_one_until_it_is_retired() -> None:
    rig = TrunkRig()
    connect(rig)
    new = bytes(range(60, 76))
    rig.home.set_keys(RelayKeys.of(trunk_keys(9, trunk_key=new)))
    rig.tick()
    assert rig.send(CLIENT, rtp(7)) == []
    assert rig.drops(rig.home) == {Drop.HOP_MAC: 1}
    rig.ingress.set_keys(RelayKeys.of(trunk_keys(1, trunk_key=new)))
    rig.tick()
    assert len(rig.send(CLIENT, rtp(7))) == 1


# What a peer may say


def test_a_peer_speaks_of_its_own_callers_and_to_nobody_else() -> None:
    rig = TrunkRig()
    connect(rig)
    stranger = client(6000)
    alive = Record(path_of(stranger), b"to anybody", RecordFlag.ALIVE)
    outer = Outer(HopType.DATA, True, POD_A.cluster, POD_A.pod, POD_A.worker, TRUNK_KEY_ID, int(rig.unix * 1000))
    assert rig.leave(hop.encode(outer, (alive,), TRUNK_KEY)) == []
    assert rig.drops(rig.ingress) == {Drop.HOP_UNASKED: 1}
    assert rig.ingress.state.flows.by_key.keys() == {CLIENT}
    # Whom something was sent of may be answered, for a while.
    rig.enter(stranger, session(POD_A).check(password="wrong"))
    assert rig.leave(hop.encode(outer, (alive,), TRUNK_KEY)) == [], "a forged check was not sent there"
    rig.enter(stranger, session(POD_A).check())
    assert rig.leave(hop.encode(outer, (alive,), TRUNK_KEY)) == [(stranger, b"to anybody", None)]


def test_without_a_flow_a_peer_may_answer_for_10_seconds() -> None:
    rig = TrunkRig(with_password=False)
    (asked,) = rig.send(CLIENT, session(POD_A).check())
    rig.tick(11)
    ((back, _),) = rig.answer(asked)
    assert rig.leave(back) == []
    assert rig.drops(rig.ingress) == {Drop.HOP_UNASKED: 1}


def test_a_probe_for_a_peer_that_comes_to_us_is_not_answered() -> None:
    rig = TrunkRig()
    rig.home.set_peers({(9).to_bytes(2): ways(INGRESS_ADDRESS)})
    payload = bytes(16) + b"\0\0"
    assert rig.arrive(rig.trunk_datagram(Route(9, 0), (bytes(20), payload), type=HopType.PROBE)) == []
    assert rig.home.take_for_ingress() == []
    assert rig.drops(rig.home) == {Drop.HOP_ROUTE: 1}


def probe(rig: TrunkRig, number: int) -> bytes:
    """A probe with a nonce of its own."""
    payload = number.to_bytes(8) + bytes(10)
    return rig.trunk_datagram(Route(1, 0), (bytes(20), payload), type=HopType.PROBE)


def test_probes_of_a_trunk_are_answered_1_000_times_a_second_and_those_of_another_all_the_same() -> None:
    rig = TrunkRig()
    rig.arrive(*(probe(rig, number) for number in range(1_500)))
    assert 1_000 <= len(rig.home.take_for_ingress()) <= 1_001
    assert rig.drops(rig.home)[Drop.LIMIT_PROBES] >= 499
    rig.tick(0.5)
    rig.arrive(*(probe(rig, number) for number in range(2_000, 3_000)))
    assert 499 <= len(rig.home.take_for_ingress()) <= 501


def test_a_recorded_probe_that_comes_again_and_again_is_answered_once_and_takes_no_answer_of_others() -> None:
    rig = TrunkRig()
    recorded = probe(rig, 0)
    for second in range(58):
        # Of many addresses, as if they were faked.
        for host in range(1, 5):
            rig.source = (f"203.0.113.{host}", 40_000)
            rig.arrive(*[recorded] * 500)
        rig.source = INGRESS_ADDRESS
        rig.arrive(probe(rig, 1 + second))
        assert len(rig.home.take_for_ingress()) == (2 if second == 0 else 1)
        rig.tick(1)
    assert set(rig.drops(rig.home)) == {Drop.LIMIT_PROBES}
    rig.tick(3)
    rig.arrive(recorded)
    assert rig.drops(rig.home)[Drop.HOP_TIME] == 1


def test_a_faked_source_with_the_key_of_another_trunk_takes_no_answers_of_an_ingress_relay() -> None:
    rig = TrunkRig()
    other_key = bytes(range(70, 86))
    held = trunk_keys(INGRESS_CLUSTER)
    more = HopKey(id=TRUNK_KEY_ID + 1, scope=8, key=other_key)
    rig.home.set_keys(RelayKeys.of(held.model_copy(update={"hop": (*held.hop, more)})))
    rig.tick()
    connect(rig)
    (asked,) = rig.send(CLIENT, rtp(7))
    faked = rig.trunk_datagram(POD_A, (client(6000), rtp(9)), key=other_key, key_id=TRUNK_KEY_ID + 1)
    assert len(rig.arrive(faked)) == 1
    ((back, to),) = rig.answer(asked)
    assert to == INGRESS_ADDRESS
    assert [path for path, *_ in rig.leave(back)] == [CLIENT]


# Mappings


def test_a_client_of_another_cluster_is_found_in_the_store_of_its_region() -> None:
    before, after = TrunkRig(with_store=True), TrunkRig(with_store=True)
    connect(before)
    assert before.ingress.state.exchange is not None
    assert after.ingress.state.exchange is not None
    kept = before.ingress.state.exchange.take_named()
    assert kept == [(CLIENT, route_bytes(POD_A))]
    assert after.enter(CLIENT, rtp(7)) == []
    assert after.ingress.state.exchange.take_questions() == [CLIENT]
    assert after.ingress.from_store(after.now, after.unix, kept) == []
    (sent,) = after.ingress.take_for_peers()
    (asked,) = after.arrive(sent.datagram)
    assert asked.record.payload == rtp(7)
    ((back, _),) = after.answer(asked)
    assert [path for path, *_ in after.leave(back)] == [CLIENT]


def test_a_client_of_another_cluster_that_was_loaded_at_the_start_needs_no_question() -> None:
    rig = TrunkRig(with_store=True)
    assert rig.ingress.state.exchange is not None
    rig.ingress.state.exchange.load([(CLIENT, route_bytes(POD_A))], rig.now)
    assert len(rig.send(CLIENT, rtp(7))) == 1
    assert rig.ingress.state.exchange.take_questions() == []


def test_a_mapping_to_a_cluster_that_is_no_peer_is_not_believed() -> None:
    rig = TrunkRig(with_store=True)
    rig.enter(CLIENT, rtp(7))
    assert rig.ingress.from_store(rig.now, rig.unix, [(CLIENT, route_bytes(Route(2, 5)))]) == []
    assert rig.ingress.take_for_peers() == []
    rig.ingress.set_peers({})
    assert rig.enter(client(6000), rtp(8)) == []
    assert rig.ingress.counters.drops[Drop.UNKNOWN_ADDRESS] == 1, "there is nobody to ask about"
