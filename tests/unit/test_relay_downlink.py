"""docs/wire.md sections 3 and 4, from transceivers to clients; and hop datagrams that are forged, replayed or odd."""

import pytest

from tests.relay_rig import (
    ADDRESSES,
    ALIVE,
    DTLS,
    HOP_KEY,
    LISTENER_V6,
    POD_A,
    POD_B,
    Rig,
    client,
    key_file,
    path_of,
    rtp,
    session,
)
from usher_core import hop
from usher_core.hop import HopType, Outer, Record, RecordFlag
from usher_relay.counters import Drop
from usher_relay.state import RelayKeys

CLIENT = client(5000)
VICTIM = client(5001)
HOME = ADDRESSES[POD_A]


def test_data_goes_to_the_client_that_its_record_names() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    assert rig.answer(POD_A, CLIENT, b"payload") == [(CLIENT, b"payload", None)]


def test_an_answer_needs_no_flow() -> None:
    rig = Rig()
    v6 = client(443, "2001:db8::1", LISTENER_V6)
    assert rig.answer(POD_A, v6, b"payload", flags=0) == [(v6, b"payload", None)]
    assert rig.flows == 0


def test_an_answer_to_a_check_that_moved_nothing_leaves_from_where_the_check_arrived() -> None:
    rig = Rig()
    rig.send(CLIENT, session(POD_A).check(), local="one")
    rig.answer(POD_A, CLIENT)
    rig.send(CLIENT, session(POD_B).check(), local="two")
    assert rig.answer(POD_B, CLIENT, flags=0) == [(CLIENT, b"answer", "two")]
    assert rig.answer(POD_A, CLIENT) == [(CLIENT, b"answer", "one")]


def test_without_a_local_address_of_its_own_it_leaves_as_the_flow_does() -> None:
    rig = Rig()
    rig.send(CLIENT, session(POD_A).check(), local="one")
    rig.answer(POD_A, CLIENT)
    assert rig.answer(POD_B, CLIENT, flags=0) == [(CLIENT, b"answer", "one")]


def test_a_roamed_flow_keeps_the_local_address_of_its_tentative_packet() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A), ssrc=7)
    rig.send(client(6000), rtp(7), local="there")
    assert rig.answer(POD_A, client(6000)) == [(client(6000), b"answer", "there")]
    rig.send(client(6000), DTLS, local="elsewhere")
    assert rig.answer(POD_A, client(6000)) == [(client(6000), b"answer", "there")]


def test_remembered_local_addresses_are_bounded() -> None:
    rig = Rig()
    state = rig.forwarder.state
    for number in range(10_000):
        state.remember_local(number.to_bytes(20), "local")
    assert len(state._locals) == 4_096
    assert state.remembered_local((0).to_bytes(20)) is None
    assert state.remembered_local((9_999).to_bytes(20)) == "local"


def test_several_records_of_one_datagram_go_to_their_clients() -> None:
    rig = Rig()
    outer = Outer(HopType.DATA, True, 1, 17, 0, 3, int(rig.unix * 1000))
    records = tuple(Record(path_of(client(port)), bytes([port]) * port, ALIVE) for port in (1, 2, 3))
    sent = rig.receive(hop.encode(outer, records, HOP_KEY), HOME)
    assert sent == [(client(port), bytes([port]) * port, None) for port in (1, 2, 3)]
    assert rig.flows == 3


def test_an_empty_payload_says_alive_and_sends_nothing() -> None:
    rig = Rig()
    rig.send(CLIENT, session(POD_A).check())
    assert rig.answer(POD_A, CLIENT, b"") == []
    assert rig.forwarder.state.flows.on_probation == 0


def test_a_whole_datagram_of_1200_bytes_passes() -> None:
    rig = Rig()
    assert rig.answer(POD_A, CLIENT, bytes(1200)) == [(CLIENT, bytes(1200), None)]


def test_flags_of_the_outer_part_do_not_matter() -> None:
    rig = Rig()
    assert len(rig.receive(rig.hop(POD_A, CLIENT, b"x", flags=0x80), HOME)) == 1


def test_an_answer_with_a_return_slot_that_was_never_given_is_dropped() -> None:
    rig = Rig()
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", return_slot=7, hops_left=2), Drop.HOP_SLOT)


def nothing_happens(rig: Rig, datagram: bytes, reason: Drop, source: tuple[str, int] = ("10.1.0.17", 7200)) -> None:
    before = rig.flows
    assert rig.receive(datagram, source) == []
    assert rig.drops == {reason: 1}
    assert rig.flows == before


def test_forged_with_another_key() -> None:
    rig = Rig()
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", ALIVE, key=bytes(16)), Drop.HOP_MAC)


@pytest.mark.parametrize("offset", range(hop.OVERHEAD + hop.MAC_PAYLOAD_LENGTH))
def test_no_byte_that_the_mac_covers_can_be_changed(offset: int) -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    datagram = bytearray(rig.hop(POD_A, CLIENT, bytes(100), 0))
    for bit in range(8):
        datagram[offset] ^= 1 << bit
        assert rig.receive(bytes(datagram), HOME) == []
        datagram[offset] ^= 1 << bit
    assert sum(rig.drops.values()) == 8
    assert rig.flows == 1


def test_with_a_key_id_that_is_not_ours() -> None:
    rig = Rig()
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", ALIVE, key_id=9), Drop.HOP_KEY)


def test_of_a_route_that_is_not_in_the_table() -> None:
    rig = Rig()
    rig.set_routes(POD_B)
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", ALIVE), Drop.HOP_ROUTE)


@pytest.mark.parametrize("source", [("10.1.0.18", 7200), ("10.1.0.17", 7201), ("203.0.113.9", 7200)])
def test_from_another_address_than_its_route_has(source: tuple[str, int]) -> None:
    rig = Rig()
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", ALIVE), Drop.HOP_SOURCE, source)


@pytest.mark.parametrize("seconds", [-61, 61, -3600, 86_400 * 20])
def test_replayed_or_sent_by_a_clock_that_is_off(seconds: int) -> None:
    rig = Rig()
    sent = int((rig.unix + seconds) * 1000)
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", ALIVE, time_ms=sent), Drop.HOP_TIME)


@pytest.mark.parametrize("seconds", [-60, -1, 0, 1, 60])
def test_a_clock_within_a_minute_is_good_enough_and_its_offset_is_counted(seconds: int) -> None:
    rig = Rig()
    sent = int((rig.unix + seconds) * 1000)
    assert len(rig.receive(rig.hop(POD_A, CLIENT, b"x", time_ms=sent), HOME)) == 1
    assert rig.forwarder.counters.hop_time_offset_ms == seconds * 1000
    assert rig.forwarder.counters.hop_time_offset_max_ms == abs(seconds) * 1000


def test_the_largest_offset_is_that_of_about_a_minute() -> None:
    rig = Rig()
    rig.receive(rig.hop(POD_A, CLIENT, b"x", time_ms=int((rig.unix + 30) * 1000)), HOME)
    rig.receive(rig.hop(POD_A, CLIENT, b"x"), HOME)
    assert rig.forwarder.counters.hop_time_offset_max_ms == 30_000
    rig.advance(61)
    assert rig.forwarder.counters.hop_time_offset_max_ms == 0


def test_one_good_time_does_not_let_a_bad_one_of_the_same_batch_pass() -> None:
    rig = Rig()
    good, bad = rig.hop(POD_A, CLIENT, b"good"), rig.hop(POD_A, CLIENT, b"bad", time_ms=0)
    batch = [(bad, HOME), (good, HOME), (bad, HOME), (good, HOME)]
    sent = rig.forwarder.from_transceivers(rig.now, rig.unix, batch)
    assert [payload for _, payload, _ in sent.to_clients] == [b"good", b"good"]
    assert rig.drops == {Drop.HOP_TIME: 2}


def test_the_time_wraps() -> None:
    rig = Rig(unix=(1 << 32) / 1000 + 5.0)
    assert len(rig.receive(rig.hop(POD_A, CLIENT, b"x", time_ms=(1 << 32) - 1_000), HOME)) == 1


def test_of_the_other_direction() -> None:
    rig = Rig()
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", ALIVE, to_client=False), Drop.HOP_DIRECTION)


@pytest.mark.parametrize("kind", [HopType.WHO_HAS, HopType.PROBE, HopType.PROBE_REPLY])
def test_of_a_type_that_this_relay_does_not_take(kind: HopType) -> None:
    rig = Rig()
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", ALIVE, kind=kind), Drop.HOP_TYPE)


def test_of_another_version() -> None:
    rig = Rig()
    nothing_happens(rig, b"\x02" + rig.hop(POD_A, CLIENT, b"x", ALIVE)[1:], Drop.HOP_VERSION)


def test_with_no_hop_left() -> None:
    rig = Rig()
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", ALIVE, hops_left=0), Drop.HOP_LOOP)


def test_for_a_listener_that_we_do_not_have() -> None:
    rig = Rig()
    nothing_happens(rig, rig.hop(POD_A, client(1, listener=99), b"x", ALIVE), Drop.HOP_LISTENER)


def test_with_half_a_datagram_for_a_client() -> None:
    rig = Rig()
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x", RecordFlag.SPLIT), Drop.HOP_SPLIT)


@pytest.mark.parametrize("length", range(52))
def test_cut_off(length: int) -> None:
    rig = Rig()
    assert rig.receive(rig.hop(POD_A, CLIENT, b"xy", ALIVE)[:length], HOME) == []
    assert sum(rig.drops.values()) == 1
    assert rig.flows == 0


def test_an_unknown_flow_is_forged_no_easier() -> None:
    rig = Rig()
    rig.connect(VICTIM, session(POD_A))
    forged = rig.hop(POD_A, VICTIM, kind=HopType.UNKNOWN_FLOW, key=bytes(16))
    true = rig.hop(POD_A, VICTIM, kind=HopType.UNKNOWN_FLOW)
    old = rig.hop(POD_A, VICTIM, kind=HopType.UNKNOWN_FLOW, time_ms=int((rig.unix - 61) * 1000))
    rig.receive(forged, HOME)
    rig.receive(old, HOME)
    rig.receive(true, ADDRESSES[POD_B])
    assert rig.drops == {Drop.HOP_MAC: 1, Drop.HOP_TIME: 1, Drop.HOP_SOURCE: 1}
    assert len(rig.send(VICTIM, DTLS)) == 1


def test_keys_change_without_a_restart() -> None:
    rig = Rig()
    new_key = bytes(range(50, 66))
    rig.forwarder.set_keys(RelayKeys.of(key_file(hop_key=new_key)))
    rig.forwarder.tick(rig.now, rig.unix)
    nothing_happens(rig, rig.hop(POD_A, CLIENT, b"x"), Drop.HOP_MAC)
    assert len(rig.receive(rig.hop(POD_A, CLIENT, b"x", key=new_key), HOME)) == 1
