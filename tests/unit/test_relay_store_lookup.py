"""docs/wire.md section 4: what a relay with a store of mappings does with packets of an unknown address."""

import pytest

from tests.relay_rig import DTLS, POD_A, POD_B, Rig, ToPod, client, path_of, rtp, session
from usher_core.ids import Route
from usher_relay.counters import Drop
from usher_relay.exchange import LOADED_FOR, QUESTIONS, REFRESH
from usher_relay.flows import PROBATION
from usher_relay.hop_codec import route_bytes
from usher_relay.state import Limits
from usher_relay.waiting import OPEN_FOR, WAIT_AT_MOST

CLIENT, OTHER = client(5000), client(5001)
FEW, MANY = Limits(), Limits(who_has_limit=2)
GONE = Route(1, 99)


def rig(limits: Limits = FEW) -> Rig:
    return Rig(limits, with_store=True)


def payloads(sent: list[ToPod]) -> list[bytes]:
    return [one.record.payload for one in sent]


# The order: own flows, SSRC, store, transceivers.


@pytest.mark.parametrize("datagram", [rtp(77), DTLS])
@pytest.mark.parametrize("limits", [FEW, MANY], ids=["few transceivers", "many"])
def test_the_store_is_asked_first_and_its_answer_lets_go_what_waits(datagram: bytes, limits: Limits) -> None:
    relay = rig(limits)
    assert relay.send(CLIENT, datagram, datagram) == []
    assert (relay.exchange.take_questions(), relay.asked) == ([CLIENT], [])
    released = relay.stored(CLIENT, POD_B)
    assert [(sent.route, sent.record.path, sent.record.flags) for sent in released] == [(POD_B, path_of(CLIENT), 0)] * 2
    assert [sent.route for sent in relay.send(CLIENT, datagram)] == [POD_B]
    assert (relay.asked, relay.drops) == ([], {})
    assert relay.forwarder.counters.store_found == 1


def test_own_flows_and_their_ssrcs_need_no_question() -> None:
    relay = rig()
    relay.connect(CLIENT, session(POD_A), ssrc=77)
    relay.send(CLIENT, rtp(77), DTLS)
    relay.send(OTHER, rtp(77))
    assert relay.exchange.take_questions() == []


@pytest.mark.parametrize("answer", [None, GONE], ids=["nothing", "a pod that is gone"])
def test_the_transceivers_are_asked_after_a_store_that_does_not_know(answer: Route | None) -> None:
    relay = rig()
    relay.send(CLIENT, rtp(77))
    assert relay.stored(CLIENT, answer) == []
    assert [(asked.record.path, asked.record.payload) for asked in relay.asked] == [
        (path_of(CLIENT), bytes((0, 0, 0, 77)))
    ] * 3
    assert payloads(relay.here(POD_A, CLIENT, 77)) == [rtp(77)]


def test_rtp_that_comes_after_dtls_before_the_store_answers_is_asked_for_by_its_ssrc() -> None:
    relay = rig()
    relay.send(CLIENT, DTLS)
    relay.send(CLIENT, rtp(77))
    assert relay.asked == []
    relay.stored(CLIENT, None)
    assert [asked.record.payload for asked in relay.asked] == [bytes((0, 0, 0, 77))] * 3
    assert relay.forwarder.counters.questions == 1


def test_rtp_that_comes_after_the_store_did_not_know_the_address_of_dtls_is_asked_for_once_more() -> None:
    relay = rig()
    relay.send(CLIENT, DTLS)
    relay.stored(CLIENT, None)
    relay.send(CLIENT, rtp(77))
    assert [asked.record.payload for asked in relay.asked] == [bytes(4)] * 3 + [bytes((0, 0, 0, 77))] * 3
    assert relay.exchange.take_questions() == [CLIENT]


def test_with_many_transceivers_nobody_else_is_asked() -> None:
    relay = rig(MANY)
    relay.send(CLIENT, DTLS, rtp(77))
    relay.stored(CLIENT, None)
    relay.send(CLIENT, rtp(77))
    assert relay.asked == []
    relay.advance(WAIT_AT_MOST + 0.01)
    assert relay.drops == {Drop.NOT_FOUND: 3}


# The answer.


def test_what_the_store_says_makes_a_flow_on_probation_that_alive_confirms() -> None:
    relay = rig()
    relay.send(CLIENT, rtp(77))
    relay.stored(CLIENT, POD_A)
    flow = relay.flow(CLIENT)
    assert flow is not None
    assert flow.probation_until
    assert relay.exchange.take_named() == [], "never one on probation"
    relay.answer(POD_A, CLIENT)
    assert not flow.probation_until
    assert relay.exchange.take_named() == [(CLIENT, route_bytes(POD_A))]


def test_a_faked_address_gets_a_flow_that_goes_by_itself() -> None:
    relay = rig()
    relay.send(CLIENT, rtp(77))
    relay.stored(CLIENT, POD_A)
    relay.advance(PROBATION + 1)
    assert relay.flows == 0
    assert relay.exchange.take_named() == []


def test_a_late_answer_still_makes_the_flow_but_sends_nothing_old() -> None:
    relay = rig()
    relay.send(CLIENT, rtp(77))
    relay.advance(WAIT_AT_MOST + 0.1)
    assert relay.stored(CLIENT, POD_A) == []
    assert relay.route_of(CLIENT) == POD_A


@pytest.mark.parametrize("when", ["twice", "too late", "unasked"])
def test_an_answer_to_no_open_question_does_nothing(when: str) -> None:
    relay = rig()
    if when != "unasked":
        relay.send(CLIENT, rtp(77))
    if when == "twice":
        relay.stored(CLIENT, None)
        relay.asked.clear()
    relay.advance(OPEN_FOR + 0.01 if when == "too late" else 0.01)
    assert relay.stored(CLIENT, POD_A) == []
    assert (relay.flows, relay.asked) == (0, [])


def test_a_check_that_came_meanwhile_keeps_its_flow() -> None:
    relay = rig()
    relay.send(CLIENT, rtp(77))
    relay.connect(CLIENT, session(POD_B))
    assert relay.stored(CLIENT, POD_A) == []
    assert relay.route_of(CLIENT) == POD_B


def test_a_stale_mapping_costs_no_more_than_until_the_next_check() -> None:
    relay = rig()
    relay.send(CLIENT, rtp(77))
    relay.stored(CLIENT, POD_A)
    relay.unknown_flow(POD_A, CLIENT)
    relay.connect(CLIENT, session(POD_B))
    assert [sent.route for sent in relay.send(CLIENT, rtp(77))] == [POD_B]


# The limits.


def test_a_source_is_looked_up_once_a_second() -> None:
    relay = rig(MANY)
    for _ in range(99):
        relay.send(CLIENT, rtp(77))
        for asked in relay.exchange.take_questions():
            relay.stored(asked, None)
        relay.advance(0.01)
    assert relay.forwarder.counters.store_asked == 1
    relay.advance(0.02)
    relay.send(CLIENT, rtp(77))
    assert relay.forwarder.counters.store_asked == 2


def test_a_flood_of_faked_addresses_asks_no_more_than_the_limit() -> None:
    relay = rig(Limits(questions_per_second=100))
    for second in range(3):
        for number in range(5_000):
            relay.count_sent(client(number, f"198.51.{second}.{number & 255}"), [rtp(number)])
        relay.exchange.take_questions()
        relay.advance(1)
    assert 300 <= relay.forwarder.counters.store_asked <= 401


def test_a_flood_that_the_store_does_not_know_makes_no_more_datagrams_than_without_it() -> None:
    relay = rig()
    pods = [Route(1, pod) for pod in range(64)]
    relay.set_routes(*pods, addresses={pod: ("10.1.0.1", 7_000 + pod.pod) for pod in pods})
    sent = 0
    for moment in range(200):  # 2 s of 10,000 packets a second
        for number in range(100 * moment, 100 * moment + 100):
            relay.count_sent(client(number & 0xFFFF, f"198.51.{number >> 8}.{number & 255}"), [rtp(number)])
        unknown = [(asked, None) for asked in relay.exchange.take_questions()]
        sent += len(relay.forwarder.from_store(relay.now, relay.unix, unknown))
        relay.advance(0.01)
    counters = relay.forwarder.counters
    assert counters.questions * 64 == sent <= 64 * 1_000 + 2 * 16_000
    assert 1_000 < counters.questions < counters.store_asked <= 3_000


def test_many_that_the_store_knows_are_found_however_many_transceivers_could_be_asked() -> None:
    relay = rig()
    pods = [POD_A, *(Route(1, pod) for pod in range(1_000, 1_063))]
    relay.set_routes(*pods, addresses={pod: ("10.1.0.1", 7_000 + number) for number, pod in enumerate(pods)})
    for number in range(2_000):  # in 1 s
        relay.count_sent(client(number, f"198.51.{number >> 8}.{number & 255}"), [rtp(number)])
        for asked in relay.exchange.take_questions():
            assert len(relay.stored(asked, POD_A)) == 1
        relay.advance(0.0005)
    assert relay.forwarder.counters.store_found >= 1_990
    assert relay.asked == []


def test_questions_that_nobody_takes_are_bounded_and_the_transceivers_are_asked_instead() -> None:
    relay = rig(Limits(questions_per_second=10_000))
    for number in range(QUESTIONS + 10):
        relay.count_sent(client(number, f"198.51.{number >> 8}.{number & 255}"), [rtp(77)])
    assert len(relay.exchange.take_questions()) == QUESTIONS
    assert (relay.forwarder.counters.store_skipped, relay.forwarder.counters.questions) == (10, 10)


# What is kept.


def test_a_living_flow_is_named_again_every_refresh_and_a_dead_one_is_not() -> None:
    relay = rig()
    relay.connect(CLIENT, session(POD_A))
    assert len(relay.exchange.take_named()) == 1
    for _ in range(int(2 * REFRESH) + 1):
        relay.advance(1)
        relay.send(CLIENT, session(POD_A).check())
        relay.answer(POD_A, CLIENT)
    assert relay.exchange.take_named() == [(CLIENT, route_bytes(POD_A))] * 2
    for _ in range(40):
        relay.advance(1)
        relay.send(CLIENT, rtp(77), session(POD_A).check())
    assert relay.exchange.take_named() == [], "packets and checks of a client keep nothing alive"


def test_a_flow_that_moves_or_roams_is_named_at_once() -> None:
    relay = rig()
    relay.connect(CLIENT, session(POD_A), ssrc=77)
    relay.answer(POD_A, OTHER)
    relay.advance(8)
    relay.connect(CLIENT, session(POD_B))
    assert relay.exchange.take_named() == [
        (CLIENT, route_bytes(POD_A)),
        (OTHER, route_bytes(POD_A)),
        (CLIENT, route_bytes(POD_B)),
    ]


# What was loaded at the start.


def test_a_loaded_mapping_answers_without_a_question_once() -> None:
    relay = rig(MANY)
    relay.exchange.load([(CLIENT, route_bytes(POD_A)), (OTHER, route_bytes(GONE))], relay.now)
    assert [sent.route for sent in relay.send(CLIENT, rtp(77))] == [POD_A]
    relay.send(OTHER, rtp(78))
    assert relay.exchange.take_questions() == [OTHER], "its pod is gone"
    relay.advance(PROBATION + 1)
    relay.send(CLIENT, rtp(77))
    assert relay.exchange.take_questions() == [CLIENT]
    assert relay.forwarder.counters.store_loaded == 1


def test_loaded_mappings_are_forgotten_after_their_time_and_bounded() -> None:
    relay = rig(Limits(max_flows=10))
    relay.exchange.load([(client(number), route_bytes(POD_A)) for number in range(20)], relay.now)
    assert relay.exchange.loaded(client(9)) == route_bytes(POD_A)
    assert relay.exchange.loaded(client(10)) is None
    relay.advance(LOADED_FOR + 1)
    assert relay.exchange.loaded(client(8)) is None
