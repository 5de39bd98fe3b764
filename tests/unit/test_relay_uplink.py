"""docs/wire.md section 4, from clients to transceivers. Each test begins with the rule's number there."""

import pytest

from tests.relay_rig import (
    ADDRESSES,
    ALIVE,
    DTLS,
    INDICATION,
    LISTENER_V6,
    POD_A,
    POD_B,
    POD_C,
    Rig,
    Session,
    client,
    path_of,
    rtcp,
    rtp,
    session,
)
from usher_core import stun
from usher_core.hop import RecordFlag
from usher_core.ids import Route
from usher_core.stun import Attribute, StunClass
from usher_relay.counters import Drop, FlowEvent
from usher_relay.state import Limits
from usher_relay.uplink import MAX_CLIENT_DATAGRAM

CLIENT = client(5000)
OTHER = client(5001)
STRANGER = client(6000, "198.51.100.7")


# 1. Only verified Binding requests with USERNAME create or move a flow; they are routed by their ufrag.


def test_1_a_verified_request_reaches_the_pod_of_its_ufrag_and_makes_a_flow() -> None:
    rig = Rig()
    check = session(POD_A).check()
    (sent,) = rig.send(CLIENT, check)
    assert sent.route == POD_A
    assert sent.address == ADDRESSES[POD_A]
    assert sent.record.payload == check
    assert sent.record.path == path_of(CLIENT)
    assert sent.record.flags == 0
    assert rig.route_of(CLIENT) == POD_A


def test_1_ipv6_clients_are_named_with_all_16_bytes() -> None:
    rig = Rig()
    v6 = client(5000, "2001:db8::7", LISTENER_V6)
    (sent,) = rig.send(v6, session(POD_A).check())
    assert sent.record.path.host == "2001:db8::7"
    assert sent.record.path.listener == LISTENER_V6


def test_1_username_may_stand_anywhere_among_the_attributes() -> None:
    # libdatachannel puts it last, libnice behind PRIORITY.
    rig = Rig()
    at = session(POD_A)
    username = (Attribute.USERNAME, f"{at.ufrag}:peer".encode())
    for place in range(3):
        attributes: list[tuple[int, bytes]] = [(Attribute.PRIORITY, bytes(4)), (Attribute.SOFTWARE, b"some agent")]
        attributes.insert(place, username)
        check = stun.build(StunClass.REQUEST, bytes(12), attributes, at.password.encode())
        assert [sent.route for sent in rig.send(CLIENT, check)] == [POD_A]


def test_1_a_request_without_fingerprint_is_enough() -> None:
    rig = Rig()
    at = session(POD_A)
    attributes: list[tuple[int, bytes]] = [(Attribute.USERNAME, f"{at.ufrag}:peer".encode())]
    check = stun.build(StunClass.REQUEST, bytes(12), attributes, at.password.encode(), fingerprint=False)
    assert len(rig.send(CLIENT, check)) == 1


def test_1_requests_go_by_their_ufrag_even_where_the_flow_belongs_to_another_route() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    (sent,) = rig.send(CLIENT, session(POD_B).check())
    assert sent.route == POD_B
    assert rig.route_of(CLIENT) == POD_A, "the mapping must not move"
    assert [sent.route for sent in rig.send(CLIENT, rtp(1))] == [POD_A]
    assert rig.happened(FlowEvent.KEPT) == 1


@pytest.mark.parametrize("datagram", [DTLS, rtp(7), rtcp(7), INDICATION])
def test_1_everything_else_follows_the_flow_map(datagram: bytes) -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B))
    (sent,) = rig.send(CLIENT, datagram)
    assert sent.route == POD_B
    assert sent.record.payload == datagram


def test_1_stun_answers_and_requests_without_username_follow_the_flow_map() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B))
    request = stun.build(StunClass.REQUEST, bytes(12), [], None)
    success = stun.build(StunClass.SUCCESS, bytes(12), [], None)
    assert [sent.route for sent in rig.send(CLIENT, request, success)] == [POD_B, POD_B]


@pytest.mark.parametrize("datagram", [DTLS, INDICATION, stun.build(StunClass.REQUEST, bytes(12), [], None)])
def test_1_nothing_but_a_request_makes_a_flow(datagram: bytes) -> None:
    rig = Rig(Limits(who_has_limit=0))
    assert rig.send(CLIENT, datagram) == []
    assert rig.flows == 0
    assert rig.drops == {Drop.UNKNOWN_ADDRESS: 1}


def test_1_a_flow_is_of_one_listener() -> None:
    rig = Rig(Limits(who_has_limit=0))
    rig.connect(CLIENT, session(POD_A))
    assert rig.send(client(5000, listener=LISTENER_V6), DTLS) == []
    assert rig.drops == {Drop.UNKNOWN_ADDRESS: 1}


def bad_checks() -> dict[str, tuple[bytes, Drop]]:
    at = session(POD_A)
    good = at.check()
    last = at.ufrag[-1]
    # The last character carries two bits of the block; the four below them are spare.
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other_spelling = at.ufrag[:-1] + alphabet[alphabet.index(last) | 1]
    mistyped = at.ufrag[:5] + ("A" if at.ufrag[5] != "A" else "B") + at.ufrag[6:]
    no_integrity = stun.build(StunClass.REQUEST, bytes(12), [(Attribute.USERNAME, f"{at.ufrag}:p".encode())], None)
    no_colon = stun.build(StunClass.REQUEST, bytes(12), [(Attribute.USERNAME, at.ufrag.encode())], at.password.encode())
    changed = bytearray(at.check())
    changed[30] ^= 1
    return {
        "another letter": (at.check(ufrag="v" + at.ufrag[1:]), Drop.UFRAG_UNKNOWN),
        "mistyped": (at.check(ufrag=mistyped), Drop.UFRAG_UNKNOWN),
        "another spelling of the same block": (at.check(ufrag=other_spelling), Drop.UFRAG_SHAPE),
        "too short": (at.check(ufrag=at.ufrag[:-1]), Drop.UFRAG_SHAPE),
        "too long": (at.check(ufrag=at.ufrag + "A"), Drop.UFRAG_SHAPE),
        "padded": (at.check(ufrag=at.ufrag[:-2] + "=="), Drop.UFRAG_SHAPE),
        "of another program": (at.check(ufrag="kZ2qkHXX/u11"), Drop.UFRAG_SHAPE),
        "no colon": (no_colon, Drop.UFRAG_SHAPE),
        "wrong password": (at.check(password="x" * 32), Drop.INTEGRITY),
        "no integrity": (no_integrity, Drop.INTEGRITY),
        "another session's password": (at.check(password=session(POD_A, 9).password), Drop.INTEGRITY),
        "cut off": (good[:-4], Drop.STUN_MALFORMED),
        "changed on the way": (bytes(changed), Drop.STUN_MALFORMED),
        "header only": (good[:20], Drop.STUN_MALFORMED),
        "one byte": (b"\0", Drop.STUN_MALFORMED),
    }


@pytest.mark.parametrize("name", bad_checks())
@pytest.mark.parametrize("known", [False, True], ids=["from an unknown address", "from a known address"])
def test_1_a_request_that_is_wrong_is_neither_forwarded_nor_makes_a_flow(name: str, known: bool) -> None:
    check, reason = bad_checks()[name]
    rig = Rig()
    if known:
        rig.connect(CLIENT, session(POD_A))
    flows = rig.flows
    assert rig.send(CLIENT, check) == []
    assert rig.flows == flows
    assert rig.drops == {reason: 1}


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (b"", Drop.CLIENT_LENGTH),
        (rtp(1, MAX_CLIENT_DATAGRAM + 1), Drop.CLIENT_LENGTH),
        (b"\x10" + bytes(30), Drop.PROTOCOL),  # ZRTP
        (b"\x40" + bytes(30), Drop.PROTOCOL),  # TURN channel
        (b"\xc0" + bytes(30), Drop.PROTOCOL),  # QUIC
        (b"\x04" + bytes(30), Drop.PROTOCOL),
    ],
)
def test_what_no_transceiver_takes_is_dropped_here(datagram: bytes, reason: Drop) -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    assert rig.send(CLIENT, datagram) == []
    assert rig.drops == {reason: 1}


def test_an_ingress_only_relay_forwards_what_opens_and_makes_a_flow_of_the_answer_alone() -> None:
    rig = Rig(ingress_only=True)
    (sent,) = rig.send(CLIENT, session(POD_A).check(), local="local")
    assert sent.route == POD_A
    assert rig.flows == 0
    assert rig.answer(POD_A, CLIENT) == [(CLIENT, b"answer", "local")]
    assert rig.route_of(CLIENT) == POD_A


def test_an_ingress_only_relay_limits_requests_per_ufrag() -> None:
    rig = Rig(Limits(checks_per_ufrag=60), ingress_only=True)
    check = session(POD_A).check()
    assert sum(len(rig.send(client(port), check)) for port in range(1, 101)) == 60
    assert rig.dropped(Drop.LIMIT_CHECKS) == 40


# 4. Unknown addresses.


def test_4_rtp_of_an_unknown_address_goes_tentatively_where_its_ssrc_is_known() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    (sent,) = rig.send(STRANGER, rtp(77))
    assert sent.route == POD_B
    assert sent.record.flags == RecordFlag.TENTATIVE
    assert sent.record.path == path_of(STRANGER)
    assert rig.flow(STRANGER) is None, "a guess makes no flow"


def test_4_only_the_alive_answer_makes_the_flow() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    rig.send(STRANGER, rtp(77))
    assert rig.answer(POD_B, STRANGER, b"data", flags=0) == [(STRANGER, b"data", None)]
    assert rig.flow(STRANGER) is None
    rig.answer(POD_B, STRANGER)
    assert rig.route_of(STRANGER) == POD_B
    (sent,) = rig.send(STRANGER, rtp(77))
    assert sent.record.flags == 0
    assert rig.happened(FlowEvent.ROAMED) == 1


def test_4_rtcp_is_matched_by_the_senders_ssrc() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    (sent,) = rig.send(STRANGER, rtcp(77))
    assert sent.route == POD_B
    assert rig.send(STRANGER, rtcp(78)) == []


def test_4_a_client_that_sends_rtcp_only_is_found_by_it() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B))
    rig.send(CLIENT, rtcp(55))
    assert [sent.route for sent in rig.send(STRANGER, rtcp(55))] == [POD_B]


def test_4_dtls_and_stun_never_roam_before_a_check() -> None:
    rig = Rig(Limits(who_has_limit=0))
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    assert rig.send(STRANGER, DTLS, INDICATION) == []
    assert rig.drops == {Drop.UNKNOWN_ADDRESS: 2}


def test_4_at_most_four_candidates_the_same_ip_first() -> None:
    rig = Rig()
    pods = [Route(1, pod) for pod in range(100, 110)]
    places = {pod: ("10.1.0.1", pod.pod) for pod in pods}
    rig.set_routes(*pods, addresses=places)
    for index, pod in enumerate(pods):
        path = client(7000, f"192.0.2.{index}")
        rig.send(path, session(pod).check())
        rig.receive(rig.hop(pod, path, b"x", ALIVE), places[pod])
        rig.send(path, rtp(77))
    sent = rig.send(client(9000, "192.0.2.2"), rtp(77))
    assert len(sent) == 4
    assert sent[0].route == pods[2]


def test_4_several_flows_of_one_session_get_one_tentative_packet() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    rig.connect(OTHER, session(POD_B), ssrc=77)
    assert len(rig.send(STRANGER, rtp(77))) == 1


def test_4_an_ssrc_is_learnt_from_confirmed_flows_only() -> None:
    rig = Rig()
    rig.send(CLIENT, session(POD_B).check())
    assert len(rig.send(CLIENT, rtp(77))) == 1
    assert rig.send(STRANGER, rtp(77)) == []


def test_4_a_new_ssrc_replaces_the_old_one() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    rig.send(CLIENT, rtp(78))
    assert rig.send(STRANGER, rtp(77)) == []
    assert len(rig.send(STRANGER, rtp(78))) == 1


def test_4_rtcp_does_not_replace_the_ssrc_of_rtp() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    rig.send(CLIENT, rtcp(99))
    assert len(rig.send(STRANGER, rtp(77))) == 1


@pytest.mark.parametrize("short", [b"\x80", b"\x80\x6f", b"\x80\x6f" + bytes(9), b"\x80\xc9\0\1\0\0\0"])
def test_4_a_packet_too_short_for_an_ssrc_is_of_nobody(short: bytes) -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B))
    assert len(rig.send(CLIENT, short)) == 1
    assert rig.send(STRANGER, short) == []


def test_4_an_ended_flow_counts_as_unknown_so_its_address_can_roam() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A), ssrc=66)
    rig.connect(OTHER, session(POD_B), ssrc=77)
    rig.unknown_flow(POD_A, CLIENT)
    (sent,) = rig.send(CLIENT, rtp(77))
    assert (sent.route, sent.record.flags) == (POD_B, RecordFlag.TENTATIVE)
    rig.answer(POD_B, CLIENT)
    assert rig.route_of(CLIENT) == POD_B


def test_4_tentative_packets_are_limited_per_client_and_in_all() -> None:
    rig = Rig(Limits(tentative_per_client=50, tentative_per_second=80))
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    assert len(rig.send(STRANGER, *[rtp(77)] * 60)) == 50
    assert len(rig.send(client(6001), *[rtp(77)] * 60)) == 30
    assert rig.dropped(Drop.LIMIT_TENTATIVE) == 40
    rig.advance(1)
    assert len(rig.send(STRANGER, *[rtp(77)] * 60)) == 50


def test_4_what_a_limit_of_one_client_refuses_costs_the_others_nothing() -> None:
    rig = Rig(Limits(tentative_per_client=50, tentative_per_second=80))
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    rig.send(STRANGER, *[rtp(77)] * 1_000)
    assert len(rig.send(client(6001), *[rtp(77)] * 30)) == 30


# 5. Limits.


def test_5_a_client_is_limited_by_itself() -> None:
    rig = Rig(Limits(packets_per_client=100))
    rig.connect(CLIENT, session(POD_A))
    rig.connect(OTHER, session(POD_A))
    assert len(rig.send(CLIENT, *[DTLS] * 150)) == 100
    assert len(rig.send(OTHER, *[DTLS] * 50)) == 50
    assert rig.drops == {Drop.LIMIT_CLIENT: 50}
    rig.advance(0.5)
    assert len(rig.send(CLIENT, *[DTLS] * 150)) == 50


def test_5_one_address_may_carry_hundreds_of_calls() -> None:
    rig = Rig()
    clients = [client(port) for port in range(1, 401)]
    for number, path in enumerate(clients):
        rig.connect(path, session(POD_A, number))
    sent = sum(rig.count_sent(path, [rtp(1)] * 100) for path in clients)
    assert sent == 40_000, "below 50,000 a second a whole address is not limited"


def test_5_a_whole_address_is_limited_above_50_000_a_second() -> None:
    rig = Rig(Limits(packets_per_client=1_000_000))
    rig.connect(CLIENT, session(POD_A))
    rig.connect(STRANGER, session(POD_A))
    batch = [rtp(1)] * 1_000
    sent = sum(rig.count_sent(CLIENT, batch) for _ in range(150))
    assert 50_000 <= sent <= 100_000
    assert rig.drops == {Drop.LIMIT_ADDRESS: 150_000 - sent}
    assert rig.count_sent(STRANGER, batch) == 1_000, "another address goes on"
    rig.advance(1)
    assert rig.count_sent(CLIENT, batch) == 1_000


def test_5_no_limit_comes_before_the_integrity_of_a_request() -> None:
    rig = Rig(Limits(packets_per_client=100, checks_per_client=60, packets_per_address=500))
    rig.connect(CLIENT, session(POD_A))
    forged = session(POD_A).check(password="x" * 32)
    assert rig.count_sent(CLIENT, [forged] * 2_000) == 0
    assert rig.drops == {Drop.INTEGRITY: 2_000}, "every one was tried"
    assert len(rig.send(CLIENT, session(POD_A).check())) == 1, "and none used up what a true one needs"


def test_5_replays_of_a_check_from_many_addresses_do_not_cost_an_answered_client_its_checks() -> None:
    rig = Rig(Limits(checks_per_ufrag=60))
    at = session(POD_A)
    rig.connect(CLIENT, at)
    check = at.check()
    for port in range(10_000, 12_000):
        rig.count_sent(client(port, "198.51.100.7"), [check])
    assert rig.dropped(Drop.LIMIT_CHECKS) > 0
    assert len(rig.send(CLIENT, at.check(1))) == 1


def test_5_one_client_may_not_flood_its_transceiver_with_valid_checks() -> None:
    rig = Rig(Limits(checks_per_client=100))
    at = session(POD_A)
    rig.connect(CLIENT, at)
    rig.advance(2)
    assert len(rig.send(CLIENT, *[at.check()] * 500)) == 100


# 6. Only live routes.


def test_6_a_ufrag_of_a_pod_that_is_gone_is_dropped() -> None:
    rig = Rig()
    rig.set_routes(POD_A)
    assert rig.send(CLIENT, session(POD_B).check()) == []
    assert rig.flows == 0
    assert rig.drops == {Drop.NO_ROUTE: 1}


def test_6_a_flow_of_a_pod_that_is_gone_is_not_forwarded_anywhere() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B))
    rig.set_routes(POD_A)
    assert rig.send(CLIENT, DTLS, rtp(1), INDICATION) == []
    assert rig.drops == {Drop.NO_ROUTE: 3}


def test_6_a_route_that_comes_back_has_its_flows_again() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B))
    rig.set_routes(POD_A)
    rig.set_routes(POD_A, POD_B)
    assert [sent.route for sent in rig.send(CLIENT, rtp(1))] == [POD_B]


def test_6_flows_follow_a_pod_whose_address_changes() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    rig.set_routes(POD_A, addresses={POD_A: ("10.9.9.9", 7300)})
    (sent,) = rig.send(CLIENT, rtp(1))
    assert sent.address == ("10.9.9.9", 7300)


def test_6_tentative_packets_go_to_live_routes_only() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_B), ssrc=77)
    rig.set_routes(POD_A, POD_C)
    assert rig.send(STRANGER, rtp(77)) == []


# Section 3, size and split. (Rule 8, nothing is answered, needs no test: client datagrams yield hop datagrams only.)


def test_3_what_does_not_fit_is_cut_in_the_middle() -> None:
    # Firefox's first ClientHello has 1408 bytes; a hop of MTU 1400 carries 1372 of UDP payload.
    rig = Rig(hop_size=1400 - 28)
    rig.connect(CLIENT, session(POD_A))
    hello = b"\x16\xfe\xfd" + bytes(range(256)) * 5 + bytes(125)
    assert len(hello) == 1408
    first, second = rig.send(CLIENT, hello)
    assert first.record.payload + second.record.payload == hello
    assert len(first.record.payload) == 704
    assert first.record.flags == RecordFlag.SPLIT
    assert second.record.flags == RecordFlag.SPLIT | RecordFlag.LAST_PART
    assert first.record.split_id == second.record.split_id
    third, _ = rig.send(CLIENT, hello)
    assert third.record.split_id != first.record.split_id


def test_3_what_just_fits_is_not_cut() -> None:
    rig = Rig(hop_size=1400 - 28)
    rig.connect(CLIENT, session(POD_A))
    room = 1400 - 28 - 51
    assert len(rig.send(CLIENT, rtp(1, room))) == 1
    assert len(rig.send(CLIENT, rtp(1, room + 1))) == 2


def test_3_a_request_is_never_cut_but_dropped_and_makes_no_flow() -> None:
    rig = Rig(hop_size=1000)
    at = session(POD_A)
    assert len(rig.send(CLIENT, at.check(size=900))) == 1
    assert rig.send(OTHER, at.check(size=1100)) == []
    assert rig.flow(OTHER) is None
    assert rig.drops == {Drop.HOP_ROOM: 1}


def test_3_a_request_without_username_is_not_cut_either() -> None:
    rig = Rig(hop_size=500)
    rig.connect(CLIENT, session(POD_A))
    request = stun.build(StunClass.REQUEST, bytes(12), [(Attribute.SOFTWARE, bytes(500))], None)
    assert rig.send(CLIENT, request) == []
    assert rig.drops == {Drop.HOP_ROOM: 1}


def test_3_tentative_packets_are_cut_too() -> None:
    rig = Rig(hop_size=500)
    rig.connect(CLIENT, session(POD_A), ssrc=77)
    first, second = rig.send(STRANGER, rtp(77, 800))
    assert first.record.flags == RecordFlag.TENTATIVE | RecordFlag.SPLIT
    assert second.record.flags == RecordFlag.TENTATIVE | RecordFlag.SPLIT | RecordFlag.LAST_PART


def test_3_what_does_not_fit_in_two_parts_is_dropped() -> None:
    rig = Rig(hop_size=500)
    rig.connect(CLIENT, session(POD_A))
    assert rig.send(CLIENT, rtp(1, 1_000)) == []
    assert rig.drops == {Drop.HOP_ROOM: 1}


def test_3_split_ids_wrap() -> None:
    rig = Rig(hop_size=500)
    rig.connect(CLIENT, session(POD_A))
    rig.forwarder._uplink._split_id = 0xFFFE
    ids = [rig.send(CLIENT, rtp(1, 800))[0].record.split_id for _ in range(3)]
    assert ids == [0xFFFF, 0, 1]


def test_the_time_on_the_wire_is_unix_time_in_ms() -> None:
    rig = Rig()
    (sent,) = rig.send(CLIENT, session(POD_A).check())
    assert sent.outer.time_ms == int(rig.unix * 1000) % (1 << 32)
    rig.advance(3)
    (later,) = rig.send(CLIENT, rtp(1))
    assert (later.outer.time_ms - sent.outer.time_ms) % (1 << 32) == 3_000


def test_counts_per_route_survive_a_new_table() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    rig.set_routes(POD_A)
    (route,) = rig.forwarder.state.routes.values()
    assert (route.uplink, route.downlink) == (1, 1)


def test_a_session_of_a_worker_reaches_that_worker() -> None:
    rig = Rig()
    worker = Route(1, 17, 3)
    rig.set_routes(POD_A, worker, addresses={POD_A: ("10.1.0.17", 7200), worker: ("10.1.0.17", 7203)})
    at: Session = session(worker)
    (sent,) = rig.send(CLIENT, at.check())
    assert sent.address == ("10.1.0.17", 7203)
    assert sent.route == worker
