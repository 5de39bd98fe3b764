"""Peers of a relay: their file, which endpoint has which clients, probes, and slots for answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.relay_rig import HOP_KEY, POD_A
from tests.trunk_rig import HOME_CLUSTER, INGRESS_ADDRESS, TRUNK_KEY_ID, TrunkRig, trunk_keys
from usher_core import hop
from usher_core.errors import LocalError, RemoteError
from usher_core.keys import HopKey, held_keys
from usher_core.peers import parse_peer_file
from usher_relay.counters import Drop
from usher_relay.trunk.keys import TrunkKeys
from usher_relay.trunk.peer_table import PeerAddresses, reachable
from usher_relay.trunk.probe import DOWN_AFTER_S, PROBE_EVERY_S, EndpointHealth, build_probe, held_ids, read_reply
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
    assert health.rtt == pytest.approx(0.15)


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


def test_loss_is_that_of_the_last_20_probes() -> None:
    health = EndpointHealth()
    for number in range(30):
        probe_for(health, 1.0 + number * PROBE_EVERY_S, None if number % 2 else 0.01)
    health.on_answer(b"nobody's", 20.0)
    assert health.loss == pytest.approx(0.5, abs=0.06)
    assert health.sent == 30


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
    probe = build_probe(HOME_CLUSTER, NONCE, held_keys(keys), key, rig.unix)
    assert rig.arrive(probe) == []
    ((reply, to),) = rig.home.take_for_ingress()
    assert to == INGRESS_ADDRESS
    assert read_reply(reply, HOME_CLUSTER, trunk.of(HOME_CLUSTER.to_bytes(2)), rig.unix) == NONCE
    assert hop.parse(reply).records[0].payload[16:] == bytes((1,)) + b"u" + bytes((1, TRUNK_KEY_ID))
    forged = build_probe(HOME_CLUSTER, NONCE, (), HopKey(id=TRUNK_KEY_ID, key=HOP_KEY), rig.unix)
    assert rig.arrive(forged, rig.trunk_datagram(POD_A, (bytes(20), b""), type=hop.HopType.PROBE)) == []
    assert rig.home.take_for_ingress() == []
    assert rig.drops(rig.home) == {Drop.HOP_MAC: 1, Drop.HOP_MALFORMED: 1}
    with pytest.raises(RemoteError):
        read_reply(reply, 2, trunk.of(HOME_CLUSTER.to_bytes(2)), rig.unix)
    with pytest.raises(RemoteError):
        read_reply(reply, HOME_CLUSTER, trunk.of(HOME_CLUSTER.to_bytes(2)), rig.unix + 61)


def test_retired_keys_are_not_held() -> None:
    keys = trunk_keys(HOME_CLUSTER)
    retired = keys.model_copy(update={"hop": tuple(key.model_copy(update={"state": "retired"}) for key in keys.hop)})
    assert held_ids(held_keys(retired)) == bytes((1,)) + b"u" + bytes((0,))


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
