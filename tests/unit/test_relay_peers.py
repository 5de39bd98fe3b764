"""Peers of a relay: their file, which endpoint has which clients, probes, and slots for answers."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.relay_rig import HOP_KEY, POD_A
from tests.trunk_rig import HOME_CLUSTER, INGRESS_ADDRESS, TRUNK_KEY_ID, TrunkRig, trunk_keys
from usher_core import hop
from usher_core.errors import LocalError, RemoteError
from usher_core.ids import Route
from usher_core.keys import HeldKey, HopKey, KeyState, held_keys
from usher_core.peers import parse_peer_file
from usher_relay.counters import Drop
from usher_relay.trunk.endpoints import PeerEndpoints, Way
from usher_relay.trunk.keys import TrunkKeys
from usher_relay.trunk.peer_table import PeerAddresses, reachable
from usher_relay.trunk.probe import (
    DOWN_AFTER_S,
    PROBE_EVERY_S,
    EndpointHealth,
    HeldIds,
    Reply,
    build_probe,
    held_ids,
    read_held_ids,
    read_reply,
)
from usher_relay.trunk.rendezvous import PLACES, place_endpoints
from usher_relay.trunk.return_slots import MAX_SLOTS, ReturnSlots

TRUNK = (9).to_bytes(2)
NONCE = b"12345678"


# The file


def peers(*endpoints: dict[str, Any], cluster: int = 2) -> str:
    return json.dumps({"version": 1, "peers": [{"cluster": cluster, "endpoints": list(endpoints)}]})


def test_a_peer_has_addresses_and_names_with_weights() -> None:
    text = peers({"address": "[2001:db8::7]:3479"}, {"address": "relays.eu.example.:3479", "weight": 3})
    (peer,) = parse_peer_file(text).peers
    assert [(end.host, end.port, end.weight) for end in peer.endpoints] == [
        ("2001:db8::7", 3479, 1),
        ("relays.eu.example.", 3479, 3),
    ]


MISSPELT = json.dumps({"version": 1, "peers": [{"cluster": 2, "endpoint": [{"address": "h.example:1"}]}]})
TWICE = json.dumps({"version": 1, "peers": [{"cluster": 2, "endpoints": [{"address": "h.example:1"}]}] * 2})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (peers(), "endpoints"),
        (peers({"address": "198.51.100.7"}), "no port"),
        (peers({"address": "198.51.100.7:0"}), "port 0"),
        (peers({"address": "fe80::1%eth0:3479"}), "address"),
        (peers({"address": "[fe80::1%eth0]:3479"}), "neither an IP address nor a host name"),
        (peers({"address": "under_score.example:3479"}), "neither an IP address nor a host name"),
        (peers({"address": "a" * 64 + ".example:3479"}), "neither an IP address nor a host name"),
        (peers({"address": "198.51.100.7:3479", "weight": 0}), "weight"),
        (peers({"address": "198.51.100.7:3479", "color": 1}), "color"),
        (peers(*[{"address": "198.51.100.7:3479"}] * 9), "endpoints"),
        (peers({"address": "198.51.100.7:3479"}, cluster=0), "cluster"),
        (TWICE, "twice"),
        (MISSPELT, r"peers\.0\.endpoint: unknown field; peers\.0\.endpoints: Field required"),
        (
            peers({"adress": "198.51.100.7:3479"}),
            r"endpoints\.0\.adress: unknown field; .*endpoints\.0\.address: Field",
        ),
        (peers({"address": "198.51.100.7:3479", "c" * 999: 1}), rf"endpoints\.0\.{'c' * 80}: unknown field; see"),
        ("[]", "peers file"),
        ("{", "no JSON"),
    ],
)
def test_what_is_wrong_with_the_file_is_named(text: str, fault: str) -> None:
    with pytest.raises(LocalError, match=fault):
        parse_peer_file(text)


# Which endpoint has which clients


def test_each_endpoint_has_its_share_by_weight() -> None:
    places = place_endpoints({"a:1": 1, "b:1": 1, "c:1": 2})
    counts = {name: places.count(name) for name in ("a:1", "b:1", "c:1")}
    assert len(places) == PLACES
    assert counts["c:1"] > max(counts["a:1"], counts["b:1"])
    assert min(counts.values()) >= 8


@given(st.sets(st.integers(1, 99), min_size=2, max_size=8), st.data())
def test_when_an_endpoint_goes_only_its_own_places_move_and_the_same_return(numbers: set[int], data: Any) -> None:
    weights = {f"198.51.100.{number}:3479": 1.0 for number in numbers}
    gone = data.draw(st.sampled_from(sorted(weights)))
    before = place_endpoints(weights)
    after = place_endpoints({name: weight for name, weight in weights.items() if name != gone})
    assert [new for old, new in zip(before, after, strict=True) if old != gone] == [
        old for old in before if old != gone
    ]
    assert gone not in after


def test_without_an_endpoint_there_is_nothing_to_choose() -> None:
    with pytest.raises(ValueError, match="no endpoint"):
        place_endpoints({})


def test_a_socket_without_ipv6_leaves_those_addresses_out_and_their_places_to_the_others() -> None:
    both = PeerAddresses((("2001:db8::7", 1), ("198.51.100.7", 1)), (0, 1) * 32)
    assert reachable(both, is_ipv6=True) == both
    left = reachable(both, is_ipv6=False)
    assert left == PeerAddresses((("198.51.100.7", 1),), (0,) * 64)
    assert reachable(PeerAddresses((("2001:db8::7", 1),), (0,) * 64), is_ipv6=False) is None


# Probes


def probe_for(health: EndpointHealth, now: float, answered_after: float | None) -> None:
    nonce = round(now * 1000).to_bytes(8)
    assert health.is_due(now)
    health.on_sent(nonce, now)
    if answered_after is not None:
        assert health.on_answer(nonce, now + answered_after)


def test_an_endpoint_is_up_until_its_last_answer_is_three_probes_old_and_again_with_the_first() -> None:
    health = EndpointHealth()
    assert health.is_up(0.0), "one that was never probed may be used"
    probe_for(health, 1.0, 0.02)
    assert health.is_up(1.02 + DOWN_AFTER_S)
    assert not health.is_up(1.03 + DOWN_AFTER_S)
    probe_for(health, 3.0, 0.15)
    assert health.is_up(3.16)


def test_the_round_trip_is_the_median_of_the_last_30_answers() -> None:
    health = EndpointHealth()
    assert health.rtt is None
    for number in range(60):
        probe_for(health, 1.0 + number, 0.3 if number < 30 else 0.9 if number % 3 == 0 else 0.02)
    assert health.rtt == pytest.approx(0.02)
    assert health.answered_at == pytest.approx(60.02)


def test_one_that_never_answers_is_down_within_a_second_of_its_first_probe() -> None:
    health = EndpointHealth()
    probe_for(health, 1.0, None)
    assert health.is_up(1.7)
    assert not health.is_up(2.0)


def test_a_way_of_half_a_second_keeps_its_endpoint_up() -> None:
    health = EndpointHealth()
    for number in range(40):
        now = 1.0 + number * PROBE_EVERY_S
        health.on_sent(number.to_bytes(8), now)
        if number >= 2:
            assert health.on_answer((number - 2).to_bytes(8), now + 0.01)
            assert health.is_up(now + PROBE_EVERY_S)
    assert health.loss == 0


def test_an_answer_counts_once_and_not_after_5_seconds() -> None:
    health = EndpointHealth()
    health.on_sent(NONCE, 1.0)
    assert not health.on_answer(b"another!", 1.1)
    assert health.on_answer(NONCE, 1.2)
    assert not health.on_answer(NONCE, 1.3)
    health.on_sent(NONCE, 2.0)
    assert not health.on_answer(NONCE, 7.1)


def test_loss_is_that_of_the_last_30_probes() -> None:
    health = EndpointHealth()
    for number in range(80):
        probe_for(health, 1.0 + number * PROBE_EVERY_S, None if number % 2 else 0.01)
    health.on_answer(b"nobody's", 30.0)
    assert health.loss == pytest.approx(0.5, abs=0.04)
    assert health.sent == 80


def test_after_a_pause_of_ours_one_probe_is_due_and_not_all_that_were_missed() -> None:
    health = EndpointHealth()
    health.on_sent(NONCE, 1.0)
    health.on_sent(NONCE, 60.0)
    health.on_sent(NONCE, 60.05)
    assert not health.is_due(60.2)


def test_a_home_relay_answers_a_probe_with_the_ids_of_its_keys_and_nobody_else_is_answered() -> None:
    rig = TrunkRig()
    keys = trunk_keys(HOME_CLUSTER)
    trunk = TrunkKeys(keys.hop)
    key = trunk.newest(rig.unix)[HOME_CLUSTER.to_bytes(2)]
    probe = build_probe(
        Route(HOME_CLUSTER, 0, 0), NONCE, held_ids(held_keys(keys), (HOME_CLUSTER,), (TRUNK_KEY_ID,)), key, rig.unix
    )
    assert rig.arrive(probe) == []
    ((reply, to),) = rig.home.take_for_ingress()
    assert to == INGRESS_ADDRESS
    held = HeldIds(("1:u",), (TRUNK_KEY_ID,))
    assert read_reply(reply, trunk.of(HOME_CLUSTER.to_bytes(2)), rig.unix) == Reply(
        Route(HOME_CLUSTER, 0, 0), NONCE, held
    )
    forged = build_probe(
        Route(HOME_CLUSTER, 0, 0), NONCE, held_ids((), (), ()), HopKey(id=TRUNK_KEY_ID, key=HOP_KEY), rig.unix
    )
    assert rig.arrive(forged, rig.trunk_datagram(POD_A, (bytes(20), b""), type=hop.HopType.PROBE)) == []
    assert rig.home.take_for_ingress() == []
    assert rig.drops(rig.home) == {Drop.HOP_MAC: 1, Drop.HOP_MALFORMED: 1}
    with pytest.raises(RemoteError):
        read_reply(reply, trunk.of(HOME_CLUSTER.to_bytes(2)), rig.unix + 61)


def test_keys_that_are_retired_or_of_another_trunk_are_not_named_as_held() -> None:
    keys = trunk_keys(HOME_CLUSTER)
    of_another = HopKey(id=9, scope=77, key=HOP_KEY)
    gone = keys.hop[1].model_copy(update={"id": 4, "state": KeyState.RETIRED})
    trunk = TrunkKeys((*keys.hop, of_another, gone))
    held = held_ids(held_keys(keys), (HOME_CLUSTER,), trunk.of(HOME_CLUSTER.to_bytes(2)))
    assert held == bytes((1, 0, 1)) + b"u" + bytes((1, TRUNK_KEY_ID))
    assert read_held_ids(held) == HeldIds(("1:u",), (TRUNK_KEY_ID,))


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"\0", b"\xff", b"\1\0\1u", b"\1\0\1u\1", b"\1\0\1u\1\3\4", b"\1\0\1!\0", b"\1\0\1\xff\0"),
        *(b"\2\0\1u\0", b"\2\0\1u\0\2", b"\1u\0"),
    ],
)
def test_malformed_key_ids_are_refused(payload: bytes) -> None:
    with pytest.raises(RemoteError, match="malformed"):
        read_held_ids(payload)


@given(st.binary(max_size=600))
def test_key_ids_are_read_or_refused_and_never_raise_anything_else(payload: bytes) -> None:
    try:
        held = read_held_ids(payload)
    except RemoteError:
        return
    pairs = [name.split(":") for name in held.ice]
    ice = b"".join(int(cluster).to_bytes(2) + letter.encode() for cluster, letter in pairs)
    assert bytes((len(pairs),)) + ice + bytes((len(held.hop), *held.hop)) == payload


def test_an_ice_key_is_named_for_each_end_that_it_serves_and_for_no_other_cluster() -> None:
    keys = [
        HeldKey("ice", "u", "active", (1, 9, 1000)),
        HeldKey("ice", "u", "accepted", (9,)),
        HeldKey("ice", "b", "accepted", (1,)),
        HeldKey("ice", "z", "retired", (1,)),
        HeldKey("hop", "7", "active", (9,)),
    ]
    assert read_held_ids(held_ids(keys, (9, 1), ())).ice == ("1:b", "1:u", "9:u")
    assert read_held_ids(held_ids(keys, (1,), ())).ice == ("1:b", "1:u")
    most = [HeldKey("ice", letter, "active", tuple(range(1, 1025))) for letter in string.ascii_letters]
    assert len(read_held_ids(held_ids(most, (9, 1), range(256))).ice) == 104


def test_the_key_to_wait_for_is_the_last_that_was_put_into_the_file_active_or_not() -> None:
    cluster = (2).to_bytes(2)
    made = [
        HopKey(id=5, scope=2, key=HOP_KEY, not_before=100),
        HopKey(id=6, scope=2, key=HOP_KEY, not_before=100, state=KeyState.ACCEPTED),
        HopKey(id=7, scope=2, key=HOP_KEY, not_before=200, state=KeyState.RETIRED),
        HopKey(id=8, scope=3, key=HOP_KEY, not_before=300),
    ]
    youngest = TrunkKeys(made).youngest(cluster)
    assert youngest is not None
    assert youngest.id == 6
    assert TrunkKeys(made).youngest((4).to_bytes(2)) is None


# One peer


def answered(way: Way, now: float, rtt: float, held: HeldIds) -> None:
    nonce = round(now * 1000).to_bytes(8)
    way.health.on_sent(nonce, now - rtt)
    assert way.health.on_answer(nonce, now)
    way.held = held


def test_views_tell_what_keys_an_endpoint_holds_and_whether_it_lacks_our_newest() -> None:
    peer = PeerEndpoints()
    peer.set_addresses([(("198.51.100.7", 3479), 1), (("198.51.100.8", 3479), 1)])
    near, _ = peer.ways.values()
    answered(near, 10.0, 0.02, HeldIds(("2:u", "2:v"), (3,)))
    assert peer.table(10.1)
    first, second = peer.views(2, 3, 10.5)
    assert (first.held_ice, first.held_hop, first.heard_s, first.lacks_newest_hop) == (("2:u", "2:v"), (3,), 0.5, False)
    assert (first.used, second.used) == (True, False), "what was never heard waits, where another has answered"
    assert (second.held_ice, second.held_hop, second.heard_s, second.lacks_newest_hop) == ((), (), None, False)
    assert [view.lacks_newest_hop for view in peer.views(2, 4, 10.5)] == [True, False]


def test_an_endpoint_that_was_never_probed_is_shown_as_down_though_flows_may_go_there() -> None:
    peer = PeerEndpoints()
    peer.set_addresses([(("198.51.100.7", 3479), 1)])
    (way,) = peer.ways.values()
    assert peer.table(10.0) is not None
    (view,) = peer.views(2, None, 10.0)
    assert (view.up, view.used) == (False, True)
    way.health.on_sent(NONCE, 10.0)
    assert [view.up for view in peer.views(2, None, 10.02)] == [False]
    assert way.health.on_answer(NONCE, 10.05)
    assert [view.up for view in peer.views(2, None, 10.05)] == [True]
    assert [view.up for view in peer.views(2, None, 10.05 + DOWN_AFTER_S + 0.01)] == [False]


def test_an_address_that_stays_in_the_file_keeps_what_is_known_of_it() -> None:
    peer = PeerEndpoints()
    peer.set_addresses([(("198.51.100.7", 3479), 1), (("198.51.100.8", 3479), 1)])
    for way in peer.ways.values():
        answered(way, 10.0, 0.02, HeldIds())
    before = peer.table(10.0)
    assert before is not None
    peer.set_addresses([(("198.51.100.8", 3479), 1)])
    after = peer.table(10.1)
    assert after == PeerAddresses((("198.51.100.8", 3479),), (0,) * PLACES)
    assert next(iter(peer.ways.values())).health.answered == 1
    peer.set_addresses([])
    assert peer.table(10.2) is None


def test_more_than_8_trunks_with_one_key_id_are_refused() -> None:
    keys = [HopKey(id=7, scope=cluster, key=HOP_KEY) for cluster in range(1, 10)]
    TrunkKeys(keys[:8])
    with pytest.raises(LocalError, match="more than 8 trunk keys have the id 7"):
        TrunkKeys(keys)


# Slots


def test_a_slot_lives_120_s_after_its_last_use_and_its_number_is_not_soon_another_s() -> None:
    slots = ReturnSlots()
    assert slots.take(INGRESS_ADDRESS, TRUNK, 0.0) == 1
    assert slots.take(INGRESS_ADDRESS, TRUNK, 50.0) == 1
    slots.expire(169.9)
    assert slots.find(1) == (INGRESS_ADDRESS, TRUNK)
    slots.expire(170.0)
    assert slots.find(1) is None
    assert slots.take(INGRESS_ADDRESS, TRUNK, 171.0) == 2


def test_when_all_slots_are_taken_a_quiet_source_makes_room_and_a_live_one_does_not() -> None:
    slots = ReturnSlots()
    for port in range(MAX_SLOTS):
        assert slots.take(("203.0.113.5", port), (port % 64).to_bytes(2), port / 1000)
    assert slots.take(("203.0.113.6", 1), TRUNK, 6.9) == 0
    assert slots.take(("203.0.113.6", 1), TRUNK, 7.0) == MAX_SLOTS + 1
    assert slots.find(1) is None
    assert len(slots) == MAX_SLOTS


def test_a_source_that_another_trunk_names_too_keeps_the_slot_of_its_own() -> None:
    slots = ReturnSlots()
    other = (8).to_bytes(2)
    assert slots.take(INGRESS_ADDRESS, TRUNK, 0.0) == 1
    assert slots.take(INGRESS_ADDRESS, other, 0.0) == 2
    assert slots.find(1) == (INGRESS_ADDRESS, TRUNK)
    assert slots.find(2) == (INGRESS_ADDRESS, other)


def test_a_trunk_that_takes_all_slots_makes_room_for_others_and_not_for_itself() -> None:
    slots = ReturnSlots(capacity=100)
    greedy, honest = (8).to_bytes(2), (9).to_bytes(2)
    assert slots.take(("203.0.113.7", 1), honest, 0.0) == 1
    for port in range(99):
        assert slots.take(("203.0.113.6", port), greedy, 1.0)
    assert slots.take(("203.0.113.6", 1_000), greedy, 2.0) == 0
    taken = [slots.take(("203.0.113.7", port), honest, 2.0) for port in range(2, 60)]
    assert len([number for number in taken if number]) == 49, "as many as leave both with half"
    assert len(slots) == 100
    assert slots.find(1) == (("203.0.113.7", 1), honest)
    assert slots.take(("203.0.113.6", 1_001), greedy, 2.0) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.floats(0, 9)), max_size=200))
def test_slots_are_always_as_many_as_their_sources_whatever_happens(steps: list[tuple[int, int, float]]) -> None:
    slots, now = ReturnSlots(capacity=20), 0.0
    for trunk, port, seconds in steps:
        now += seconds
        slots.expire(now)
        number = slots.take(("203.0.113.6", port), trunk.to_bytes(2), now)
        assert len(slots) <= 20
        if number:
            assert slots.find(number) == (("203.0.113.6", port), trunk.to_bytes(2))
    slots.expire(now + 121)
    assert len(slots) == 0


def test_numbers_go_round_and_skip_those_in_use() -> None:
    slots = ReturnSlots()
    for number in range(1, 0x10000):
        now = number * 10.0
        slots.take(("203.0.113.5", 1), TRUNK, now)
        assert slots.take(("203.0.113.6", number), TRUNK, now) == (number % 0xFFFF) + 1
        slots.expire(now)
        if number == 0xFFFE:
            break
    assert slots.take(("203.0.113.7", 1), TRUNK, 1e6) == 2, "1 is still in use"


def test_a_datagram_that_is_sent_again_from_many_ports_leaves_slots_for_other_trunks_and_for_later() -> None:
    slots = ReturnSlots()
    assert sum(slots.take(("203.0.113.6", port), TRUNK, 0.0) > 0 for port in range(5_000)) == 256
    assert slots.take(("203.0.113.7", 1), (8).to_bytes(2), 0.0)
    assert slots.take(("203.0.113.6", 0), TRUNK, 0.1), "one that has a slot keeps it"
    assert slots.take(("203.0.113.7", 2), TRUNK, 1.0)
