"""docs/wire.md section 4: what a relay does with packets of an unknown address, and how it asks whose it is.

Each test of a rule begins with what it is about: the question, its answer, the wait, or the limits.
"""

import pytest

from tests.relay_rig import (
    ADDRESSES,
    DTLS,
    HOP_KEY,
    INDICATION,
    POD_A,
    POD_B,
    POD_C,
    Rig,
    ToPod,
    client,
    path_of,
    rtcp,
    rtp,
    session,
)
from usher_core.hop import HopType, RecordFlag
from usher_core.ids import Route
from usher_relay.counters import Drop, FlowEvent
from usher_relay.endpoint import Endpoint
from usher_relay.flows import PROBATION
from usher_relay.state import Limits
from usher_relay.waiting import MAX_FOUND, MODEST, OPEN_FOR, WAIT_AT_MOST, WAITING, WAITING_PER_SOURCE

CLIENT = client(5000)
OTHER = client(5001)
NO_SSRC = bytes(4)
TOO_LONG = WAIT_AT_MOST + 0.001


def ssrc(number: int) -> bytes:
    return number.to_bytes(4)


def payloads(sent: list[ToPod]) -> list[bytes]:
    return [one.record.payload for one in sent]


def strangers(count: int, first: int = 0) -> list[bytes]:
    """Clients of an IP each."""
    return [client(7000, f"198.51.{number >> 8}.{number & 255}") for number in range(first, first + count)]


def waiting(rig: Rig) -> tuple[int, int]:
    """How many datagrams wait, and their bytes."""
    return len(rig.forwarder.state.waiting), rig.forwarder.counters.waiting_bytes


# The question.


@pytest.mark.parametrize(
    ("datagram", "asked_for"), [(rtp(77), ssrc(77)), (rtcp(78), ssrc(78)), (DTLS, NO_SSRC), (rtp(0), NO_SSRC)]
)
def test_question_all_live_transceivers_are_asked_for_the_ssrc_or_for_the_address(
    datagram: bytes, asked_for: bytes
) -> None:
    rig = Rig()
    assert rig.send(CLIENT, datagram) == []
    assert [(asked.route, asked.address) for asked in rig.asked] == list(ADDRESSES.items())
    for asked in rig.asked:
        assert (asked.record.path, asked.record.payload, asked.record.flags) == (path_of(CLIENT), asked_for, 0)
        assert (asked.outer.hops_left, asked.outer.return_slot, asked.outer.time_ms) == (
            1,
            0,
            int(rig.unix * 1000) % (1 << 32),
        )
    assert rig.forwarder.counters.questions == 1
    assert waiting(rig) == (1, len(datagram))
    assert (rig.flows, rig.drops) == (0, {})


def test_question_nobody_is_asked_where_a_flow_has_the_address_or_the_ssrc() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A), ssrc=77)
    rig.send(CLIENT, DTLS, rtp(78))
    assert [sent.route for sent in rig.send(OTHER, rtp(78))] == [POD_A]
    assert rig.asked == []


@pytest.mark.parametrize("ended", [True, False])
def test_question_nobody_is_asked_for_the_address_of_a_flow_that_is_over(ended: bool) -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    if ended:
        rig.unknown_flow(POD_A, CLIENT)
    else:
        rig.set_routes(POD_B)
    rig.send(CLIENT, rtp(5), DTLS)
    assert rig.asked == []
    assert rig.drops == {Drop.SESSION_ENDED if ended else Drop.NO_ROUTE: 2}


@pytest.mark.parametrize("datagram", [INDICATION, b"\x80", b"\x80\x6f" + bytes(9), b"\x80\xc9\0\1\0\0\0"])
def test_question_stun_and_what_is_too_short_for_an_ssrc_raise_none(datagram: bytes) -> None:
    rig = Rig()
    rig.send(CLIENT, datagram)
    assert rig.asked == []
    assert rig.drops == {Drop.UNKNOWN_ADDRESS: 1}


@pytest.mark.parametrize("limit", [0, 2])
def test_question_nobody_is_asked_when_there_are_more_transceivers_than_the_limit(limit: int) -> None:
    rig = Rig(Limits(who_has_limit=limit))
    rig.send(CLIENT, rtp(77), DTLS)
    assert rig.asked == []
    assert rig.drops == {Drop.UNKNOWN_ADDRESS: 2}


def test_question_nobody_is_asked_when_there_is_no_transceiver() -> None:
    rig = Rig()
    rig.set_routes()
    rig.send(CLIENT, rtp(77))
    assert rig.drops == {Drop.UNKNOWN_ADDRESS: 1}
    assert rig.forwarder.counters.questions == 0


def test_question_one_a_second_for_each_source() -> None:
    rig = Rig(Limits(who_has_limit=3))
    for _ in range(100):
        rig.send(CLIENT, rtp(77), rtp(78), DTLS)
        rig.send(OTHER, rtp(77))
        rig.advance(0.0099)
    assert [asked.record.path for asked in rig.asked] == [path_of(CLIENT)] * 3 + [path_of(OTHER)] * 3
    rig.advance(0.02)
    rig.send(CLIENT, rtp(77))
    assert len(rig.asked) == 9


def test_question_the_first_rtp_after_dtls_asks_once_more_for_its_ssrc() -> None:
    rig = Rig()
    rig.send(CLIENT, DTLS)
    rig.advance(0.1)
    rig.send(CLIENT, rtp(77))
    rig.send(CLIENT, rtp(78), DTLS)
    assert payloads(rig.asked) == [NO_SSRC] * 3 + [ssrc(77)] * 3
    assert rig.here(POD_B, CLIENT, 77) == []
    (sent,) = rig.send(CLIENT, rtp(77))
    assert (sent.route, sent.record.flags) == (POD_B, RecordFlag.TENTATIVE)


def test_question_a_check_of_the_same_batch_makes_it_needless() -> None:
    rig = Rig()
    check = session(POD_A).check()
    assert payloads(rig.send(CLIENT, rtp(77), DTLS, check)) == [check, rtp(77), DTLS]
    assert rig.asked == []


# The answer: for the address.


def test_answer_here_for_the_address_makes_the_flow_and_releases_what_waits() -> None:
    rig = Rig()
    rig.send(CLIENT, DTLS, local="eth0")
    rig.send(CLIENT, DTLS + b"2")
    rig.advance(0.01)
    released = rig.here(POD_B, CLIENT)
    assert [(sent.route, sent.address, sent.record.flags) for sent in released] == [(POD_B, ADDRESSES[POD_B], 0)] * 2
    assert payloads(released) == [DTLS, DTLS + b"2"]
    assert rig.route_of(CLIENT) == POD_B
    assert payloads(rig.send(CLIENT, DTLS, rtp(1))) == [DTLS, rtp(1)]
    assert rig.answer(POD_B, CLIENT, b"data") == [(CLIENT, b"data", "eth0")]
    assert rig.forwarder.counters.found_by_address == 1
    assert waiting(rig) == (0, 0)
    assert rig.drops == {}


def test_answer_the_flow_is_on_probation_until_its_transceiver_has_answered_that_address() -> None:
    rig = Rig()
    rig.send(CLIENT, DTLS)
    rig.here(POD_B, CLIENT)
    assert rig.forwarder.state.flows.on_probation == 1
    rig.answer(POD_B, CLIENT, flags=0)
    assert rig.forwarder.state.flows.on_probation == 1
    rig.answer(POD_B, CLIENT)
    assert rig.forwarder.state.flows.on_probation == 0
    rig.advance(PROBATION + 1)
    assert rig.route_of(CLIENT) == POD_B


def test_answer_what_fakes_the_address_of_a_live_client_gains_a_flow_on_probation_that_goes_by_itself() -> None:
    rig = Rig()
    rig.send(CLIENT, DTLS)
    rig.here(POD_B, CLIENT)
    assert rig.send(CLIENT, rtp(66))
    rig.advance(PROBATION)
    assert rig.flow(CLIENT) is None
    assert rig.happened(FlowEvent.PROBATION_OVER) == 1
    rig.send(OTHER, rtp(66))
    assert len(rig.asked) == 6, "no SSRC is learnt from such a flow"


def test_answer_another_sessions_check_does_not_take_a_found_address() -> None:
    rig = Rig()
    rig.send(CLIENT, DTLS)
    rig.here(POD_B, CLIENT)
    rig.send(CLIENT, session(POD_A).check())
    assert rig.route_of(CLIENT) == POD_B
    assert rig.happened(FlowEvent.KEPT) == 1


def test_answer_here_for_the_address_counts_where_the_ssrc_was_asked_for() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77), rtcp(78), DTLS)
    assert payloads(rig.here(POD_B, CLIENT)) == [rtp(77), rtcp(78), DTLS]
    assert rig.route_of(CLIENT) == POD_B


def test_answer_the_first_for_an_address_counts() -> None:
    rig = Rig()
    rig.send(CLIENT, DTLS)
    rig.here(POD_B, CLIENT)
    for _ in range(2):
        assert rig.here(POD_B, CLIENT) == []
        assert rig.here(POD_A, CLIENT) == []
    assert rig.route_of(CLIENT) == POD_B
    assert rig.drops == {Drop.HOP_HERE: 4}
    assert rig.forwarder.counters.found_by_address == 1


def test_answer_one_that_contradicts_a_flow_made_meanwhile_is_of_no_use() -> None:
    rig = Rig()
    rig.send(CLIENT, DTLS)
    rig.send(CLIENT, session(POD_A).check())
    assert rig.here(POD_B, CLIENT) == []
    assert rig.route_of(CLIENT) == POD_A
    assert rig.drops == {Drop.HOP_HERE: 1}
    assert payloads(rig.here(POD_A, CLIENT)) == [DTLS], "but the owner's own releases what waits"


def test_answer_a_full_table_makes_no_flow_but_the_packets_go() -> None:
    rig = Rig(Limits(max_flows=10))
    for number in range(10):
        rig.connect(client(8_000 + number), session(POD_A, number))
    rig.send(CLIENT, DTLS)
    assert payloads(rig.here(POD_B, CLIENT)) == [DTLS]
    assert rig.flow(CLIENT) is None
    assert rig.happened(FlowEvent.REFUSED) == 1
    rig.send(CLIENT, DTLS)
    assert len(rig.asked) == 3, "nor is it asked for again at once"
    assert rig.drops == {Drop.UNKNOWN_ADDRESS: 1}


# The answer: for the SSRC.


def test_answer_here_for_the_ssrc_lets_its_packets_go_tentatively_and_makes_no_flow() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77), rtp(77, 60), local="eth0")
    released = rig.here(POD_B, CLIENT, 77)
    assert payloads(released) == [rtp(77), rtp(77, 60)]
    assert {(sent.route, sent.record.flags) for sent in released} == {(POD_B, RecordFlag.TENTATIVE)}
    assert rig.flow(CLIENT) is None
    (sent,) = rig.send(CLIENT, rtp(77, 61))
    assert (sent.route, sent.record.flags) == (POD_B, RecordFlag.TENTATIVE)
    assert rig.flow(CLIENT) is None
    counters = rig.forwarder.counters
    assert (counters.found_by_ssrc, counters.found_by_address, counters.tentative) == (1, 0, 3)
    assert rig.answer(POD_B, CLIENT, b"data") == [(CLIENT, b"data", "eth0")]
    assert rig.route_of(CLIENT) == POD_B
    assert rig.happened(FlowEvent.ROAMED) == 1
    assert [sent.record.flags for sent in rig.send(CLIENT, rtp(77))] == [0]


def test_answer_here_for_the_ssrc_lets_nothing_else_go() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77), DTLS, rtp(78))
    assert payloads(rig.here(POD_B, CLIENT, 77)) == [rtp(77)]
    assert payloads(rig.send(CLIENT, DTLS, rtp(79))) == [], "DTLS never roams"
    rig.advance(TOO_LONG)
    assert rig.drops == {Drop.NOT_FOUND: 4}


def test_answer_several_may_know_an_ssrc_and_each_gets_the_next_packets() -> None:
    rig = Rig()
    pods = [Route(1, pod) for pod in range(100, 110)]
    places: dict[Route, Endpoint] = {pod: ("10.1.0.1", pod.pod) for pod in pods}
    rig.set_routes(*pods, addresses=places)
    rig.send(CLIENT, rtp(77))
    for pod in pods:
        answer = rig.hop(pod, CLIENT, ssrc(77), kind=HopType.HERE)
        rig.forwarder.from_transceivers(rig.now, rig.unix, [(answer, places[pod])] * 2)
    assert [sent.route for sent in rig.send(CLIENT, rtp(77))] == pods[:MAX_FOUND]
    assert rig.dropped(Drop.HOP_HERE) == 20 - MAX_FOUND


def test_answer_packets_go_only_where_the_route_is_still_live() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    rig.here(POD_B, CLIENT, 77)
    rig.here(POD_C, CLIENT, 77)
    rig.set_routes(POD_A, POD_C)
    assert [sent.route for sent in rig.send(CLIENT, rtp(77))] == [POD_C]
    rig.set_routes(POD_A)
    rig.advance(TOO_LONG)
    assert rig.send(CLIENT, rtp(77)) == []
    assert rig.drops == {Drop.UNKNOWN_ADDRESS: 1}


def test_answer_tentative_packets_are_limited_here_too() -> None:
    rig = Rig(Limits(tentative_per_client=50))
    rig.send(CLIENT, rtp(77))
    rig.here(POD_B, CLIENT, 77)
    assert len(rig.send(CLIENT, *[rtp(77)] * 60)) == 49
    assert rig.drops == {Drop.LIMIT_TENTATIVE: 11}


def test_answer_what_was_found_counts_until_the_second_is_over() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    rig.here(POD_B, CLIENT, 77)
    rig.advance(OPEN_FOR - 0.01)
    assert len(rig.send(CLIENT, rtp(77))) == 1
    rig.advance(0.02)
    assert rig.send(CLIENT, rtp(77)) == []
    assert len(rig.asked) == 6


def test_answer_what_waited_is_cut_where_the_hop_demands_it() -> None:
    rig = Rig(hop_size=700)
    rig.send(CLIENT, rtp(77, 1_001))
    released = rig.here(POD_B, CLIENT, 77)
    tentative, split, last = RecordFlag.TENTATIVE, RecordFlag.SPLIT, RecordFlag.LAST_PART
    assert [sent.record.flags for sent in released] == [tentative | split, tentative | split | last]
    assert b"".join(payloads(released)) == rtp(77, 1_001)


# The answer: what does not count.


@pytest.mark.parametrize("number", [0, 77])
def test_answer_to_a_question_that_nobody_asked_changes_nothing(number: int) -> None:
    rig = Rig()
    assert rig.here(POD_B, CLIENT, number) == []
    assert rig.drops == {Drop.HOP_HERE: 1}
    assert rig.flows == 0
    assert rig.send(CLIENT, rtp(77)) == []


def test_answer_for_another_ssrc_or_another_client_changes_nothing() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    assert rig.here(POD_B, CLIENT, 78) == []
    assert rig.here(POD_B, OTHER, 77) == []
    assert rig.here(POD_B, OTHER) == []
    assert rig.drops == {Drop.HOP_HERE: 3}
    assert (rig.flows, waiting(rig)[0]) == (0, 1)


@pytest.mark.parametrize("number", [0, 77])
def test_answer_of_a_slow_transceiver_counts_for_what_comes_next(number: int) -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    rig.advance(OPEN_FOR - 0.01)
    assert rig.here(POD_B, CLIENT, number) == []
    assert [sent.route for sent in rig.send(CLIENT, rtp(77))] == [POD_B]
    assert rig.drops == {Drop.NOT_FOUND: 1}


def test_answer_after_the_questions_second_changes_nothing() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    rig.advance(OPEN_FOR)
    assert rig.here(POD_B, CLIENT) == []
    assert rig.drops == {Drop.NOT_FOUND: 1, Drop.HOP_HERE: 1}
    assert rig.flows == 0


@pytest.mark.parametrize(
    ("outer", "reason"),
    [
        ({"key": bytes(16)}, Drop.HOP_MAC),
        ({"key_id": 9}, Drop.HOP_KEY),
        ({"time_ms": 0}, Drop.HOP_TIME),
        ({"to_client": False}, Drop.HOP_DIRECTION),
        ({"hops_left": 0}, Drop.HOP_LOOP),
        ({"pod": 999}, Drop.HOP_ROUTE),
    ],
)
def test_answer_that_is_not_authentic_timely_and_of_a_live_route_changes_nothing(
    outer: dict[str, int | bytes], reason: Drop
) -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    forged = rig.hop(POD_B, CLIENT, NO_SSRC, kind=HopType.HERE, **outer)  # type: ignore[arg-type]  # by their names
    answers = rig.forwarder.from_transceivers(rig.now, rig.unix, [(forged, ADDRESSES[POD_B])])
    assert (answers.to_clients, answers.to_transceivers) == ([], [])
    assert rig.drops == {reason: 1}
    assert (rig.flows, waiting(rig)[0]) == (0, 1)


def test_answer_from_another_address_than_its_routes_changes_nothing() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    assert rig.receive(rig.hop(POD_B, CLIENT, NO_SSRC, kind=HopType.HERE), ADDRESSES[POD_A]) == []
    assert rig.drops == {Drop.HOP_SOURCE: 1}


@pytest.mark.parametrize("payload", [b"", bytes(3), bytes(5)])
def test_answer_with_another_payload_than_an_ssrc_is_malformed(payload: bytes) -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    assert rig.receive(rig.hop(POD_B, CLIENT, payload, kind=HopType.HERE), ADDRESSES[POD_B]) == []
    assert rig.drops == {Drop.HOP_MALFORMED: 1}


def test_answer_with_two_records_is_malformed() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    datagram = rig.hop(POD_B, CLIENT, NO_SSRC, kind=HopType.HERE, key=HOP_KEY, copies=2)
    assert rig.receive(datagram, ADDRESSES[POD_B]) == []
    assert rig.drops == {Drop.HOP_MALFORMED: 1}


# The wait.


def test_wait_no_more_than_four_datagrams_of_a_source() -> None:
    rig = Rig()
    rig.send(CLIENT, *[rtp(77)] * 6)
    rig.send(OTHER, rtp(77))
    assert waiting(rig) == (WAITING_PER_SOURCE + 1, 5 * len(rtp(77)))
    assert rig.drops == {Drop.LIMIT_WAITING: 2}
    assert len(rig.here(POD_A, CLIENT, 77)) == WAITING_PER_SOURCE


def test_wait_no_longer_than_50_ms() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    rig.advance(WAIT_AT_MOST - 0.001)
    rig.send(CLIENT, rtp(77, 60))
    assert waiting(rig) == (2, len(rtp(77)) + 60)
    rig.advance(0.002)
    assert waiting(rig) == (0, 0)
    assert rig.drops == {Drop.NOT_FOUND: 2}


def test_wait_what_waited_too_long_is_not_sent_though_no_tick_came() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    rig.now += TOO_LONG
    rig.unix += TOO_LONG
    assert rig.here(POD_B, CLIENT, 77) == []
    assert rig.drops == {Drop.NOT_FOUND: 1}


def test_wait_nothing_waits_for_a_client_that_nobody_knew_within_the_second() -> None:
    rig = Rig()
    rig.send(CLIENT, rtp(77))
    rig.advance(TOO_LONG)
    rig.send(CLIENT, rtp(77), DTLS)
    assert waiting(rig) == (0, 0)
    assert rig.drops == {Drop.NOT_FOUND: 1, Drop.UNKNOWN_ADDRESS: 2}


def test_wait_no_more_than_a_thousand_in_all_but_questions_are_asked() -> None:
    rig = Rig(Limits(questions_per_second=10_000))
    for path in strangers(WAITING + 6):
        rig.count_sent(path, [rtp(77)])
    assert waiting(rig) == (WAITING, WAITING * len(rtp(77)))
    assert rig.drops == {Drop.LIMIT_WAITING: 6}
    assert rig.forwarder.counters.questions == WAITING + 6
    assert rig.here(POD_A, strangers(1, WAITING)[0], 77) == []
    assert len(rig.send(strangers(1, WAITING)[0], rtp(77))) == 1


# Limits.


def test_limit_so_many_questions_in_all_and_then_as_they_come_back() -> None:
    rig = Rig(Limits(questions_per_second=100))
    for path in strangers(150):
        rig.send(path, DTLS)
    assert rig.forwarder.counters.questions == 100
    assert rig.dropped(Drop.LIMIT_QUESTIONS) == 50
    rig.advance(0.101)
    for path in strangers(50, 200):
        rig.send(path, DTLS)
    assert rig.forwarder.counters.questions == 110


def fleet_of(size: int) -> Rig:
    rig = Rig()
    pods = [Route(1, pod) for pod in range(size)]
    rig.set_routes(*pods, addresses={pod: ("10.1.0.1", 7_000 + pod.pod) for pod in pods})
    return rig


@pytest.mark.parametrize("size", [1, 16, 17, 64])
def test_limit_a_flood_makes_no_more_datagrams_than_16_for_each_question_of_the_limit_however_large_the_fleet(
    size: int,
) -> None:
    rig = fleet_of(size)
    sent = 0
    for moment in range(200):  # 2 s of 10,000 packets a second; a second's worth of questions comes at once
        for path in strangers(100, 100 * moment):
            sent += rig.count_sent(path, [rtp(77)])
        rig.advance(0.01)
    assert rig.forwarder.counters.questions * size == sent
    after_the_burst = sent - 1_000 * size
    assert 0.9 * 2 * 1_000 * min(size, 16) <= after_the_burst <= 2 * 1_000 * 16


def test_limit_one_ip_with_many_ports_leaves_half_of_the_questions_to_others() -> None:
    rig = Rig(Limits(questions_per_second=100))
    for port in range(1, 1_001):
        rig.send(client(port), DTLS)
    assert rig.forwarder.counters.questions == 50
    for path in strangers(50):
        rig.send(path, DTLS)
    assert rig.forwarder.counters.questions == 100


def test_limit_a_lasting_flood_from_one_ip_never_costs_another_its_question() -> None:
    rig = Rig(Limits(questions_per_second=100))
    port = 0
    for path in strangers(200):
        for _ in range(10):
            port += 1
            rig.count_sent(client(port), [DTLS])
        before = len(rig.asked)
        rig.send(path, DTLS)
        assert len(rig.asked) == before + 3
        rig.advance(0.03)


@pytest.mark.parametrize("size", [1, 64])
def test_limit_500_calls_behind_one_ip_are_asked_for_at_once_while_nobody_else_asks(size: int) -> None:
    rig = fleet_of(size)
    for port in range(1, 501):
        rig.count_sent(client(port), [rtp(port)])
    assert rig.forwarder.counters.questions == 500
    assert rig.drops == {}


def test_limit_an_ip_is_modest_again_when_its_questions_are_a_second_old() -> None:
    rig = Rig(Limits(questions_per_second=40))
    for port in range(1, 31):
        rig.send(client(port), DTLS)
    assert rig.forwarder.counters.questions == 20
    for path in strangers(20):
        rig.send(path, DTLS)
    rig.advance(OPEN_FOR)
    for path in strangers(24, 100):
        rig.send(path, DTLS)
    for port in range(1_001, 1_031):
        rig.send(client(port), DTLS)
    assert rig.forwarder.counters.questions == 40 + 24 + MODEST


def test_limit_under_a_flood_of_faked_addresses_a_caller_has_the_chance_of_each_packet_it_sends() -> None:
    rig = Rig()
    flood = iter(range(1 << 24))
    asked_after = 0
    for packet in range(100):  # 2 s of speech beside 10,000 packets a second
        for _ in range(200):
            number = next(flood)
            rig.count_sent(client(1, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"), [rtp(number)])
        rig.send(CLIENT, rtp(77))
        if rig.forwarder.state.waiting.find(CLIENT) and not asked_after:
            asked_after = packet
        rig.advance(0.02)
    assert asked_after < 50
    assert len(rig.forwarder.state.waiting) <= WAITING


def test_limit_a_flood_of_faked_addresses_fills_nothing_and_harms_no_call() -> None:
    rig = Rig(Limits(max_flows=20, packets_per_client=10_000))
    rig.connect(OTHER, session(POD_A), ssrc=5)
    for path in strangers(5_000):
        rig.count_sent(path, [rtp(77), rtp(77), DTLS])
        assert len(rig.send(OTHER, rtp(5))) == 1
    counters = rig.forwarder.counters
    assert counters.questions == 1_000
    assert waiting(rig)[0] <= WAITING
    assert rig.flows == 1
    rig.advance(2)
    assert waiting(rig) == (0, 0)
    assert rig.forwarder.state.waiting.questions == 0


def test_limit_every_datagram_is_sent_waits_or_is_counted_as_dropped() -> None:
    rig = Rig(Limits(questions_per_second=10))
    sent = 0
    for path in strangers(30):
        sent += len(rig.send(path, *[rtp(77)] * 6))
    sent += len(rig.here(POD_A, strangers(1)[0], 77))
    assert sent + waiting(rig)[0] + sum(rig.drops.values()) == 180
    rig.advance(1)
    assert sent + sum(rig.drops.values()) == 180
