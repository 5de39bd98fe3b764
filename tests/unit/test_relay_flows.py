"""docs/wire.md section 4, rules 2 and 3: how long a flow lives, when its address may move, probation, the bounds."""

import pytest

from tests.relay_rig import ALIVE, DTLS, INDICATION, POD_A, POD_B, POD_C, Rig, client, rtp, session
from usher_core import hop
from usher_relay.counters import Drop, FlowEvent
from usher_relay.flows import (
    CONFIRMED_PER_UFRAG,
    ENDED_KEPT,
    IDLE_EXPIRY,
    PROBATION,
    PROBATION_PER_UFRAG,
    QUIET_AFTER,
)
from usher_relay.state import Limits
from usher_transceiver.paths import MAX_PATHS

CLIENT = client(5000)
NEVER = float("-inf")


# 2. Life, quiet, moving.


def test_2_a_flow_lives_by_verified_requests() -> None:
    rig = Rig()
    at = session(POD_A)
    rig.connect(CLIENT, at)
    for number in range(10):
        rig.advance(60)
        rig.send(CLIENT, at.check(number))
    assert rig.route_of(CLIENT) == POD_A


def test_2_a_flow_lives_by_alive_answers() -> None:
    # libnice sends no checks after set-up.
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    for _ in range(10):
        rig.advance(60)
        rig.answer(POD_A, CLIENT)
    assert rig.route_of(CLIENT) == POD_A


def test_2_a_flow_does_not_live_by_what_the_client_sends() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A), ssrc=7)
    for _ in range(IDLE_EXPIRY.__ceil__() + 1):
        rig.send(CLIENT, rtp(7), DTLS, INDICATION)
        rig.advance(1)
    assert rig.flow(CLIENT) is None
    assert rig.happened(FlowEvent.EXPIRED) == 1


def test_2_a_flow_does_not_live_by_answers_that_are_not_alive() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    for _ in range(IDLE_EXPIRY.__ceil__() + 1):
        rig.answer(POD_A, CLIENT, flags=0)
        rig.advance(1)
    assert rig.flow(CLIENT) is None


def test_2_a_flow_does_not_live_by_requests_of_another_route() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    rig.advance(QUIET_AFTER - 1)
    rig.send(CLIENT, session(POD_B).check())
    rig.advance(1)
    rig.send(CLIENT, session(POD_B).check(1))
    assert rig.route_of(CLIENT) == POD_B


def test_2_idle_expiry_is_90_seconds() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    rig.advance(IDLE_EXPIRY - 1)
    assert rig.flow(CLIENT) is not None
    rig.advance(2)
    assert rig.flow(CLIENT) is None


def test_2_an_address_moves_only_when_its_flow_has_been_quiet_for_7_seconds() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    rig.advance(QUIET_AFTER - 0.1)
    rig.send(CLIENT, session(POD_B).check())
    assert rig.route_of(CLIENT) == POD_A
    rig.advance(0.2)
    rig.send(CLIENT, session(POD_B).check(1))
    assert rig.route_of(CLIENT) == POD_B
    assert rig.happened(FlowEvent.MOVED) == 1


def test_2_a_moved_address_is_a_new_flow_on_probation() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A), ssrc=77)
    rig.advance(QUIET_AFTER)
    rig.send(CLIENT, session(POD_B).check())
    flow = rig.flow(CLIENT)
    assert flow is not None
    assert flow.probation_until
    assert not flow.ssrc, "it must not be found by what the old owner sent"


def test_2_a_flow_whose_route_is_gone_is_quiet_at_once() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    rig.set_routes(POD_B)
    rig.send(CLIENT, session(POD_B).check())
    assert rig.route_of(CLIENT) == POD_B


def test_2_a_flow_whose_session_has_ended_is_quiet_at_once() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    rig.unknown_flow(POD_A, CLIENT)
    rig.send(CLIENT, session(POD_B).check())
    assert rig.route_of(CLIENT) == POD_B


def test_2_packets_of_an_ended_session_are_dropped_until_it_begins_anew() -> None:
    rig = Rig()
    at = session(POD_A)
    rig.connect(CLIENT, at)
    rig.unknown_flow(POD_A, CLIENT)
    assert rig.send(CLIENT, DTLS, rtp(7), INDICATION) == []
    assert rig.drops == {Drop.SESSION_ENDED: 3}
    assert len(rig.send(CLIENT, session(POD_A, 2).check())) == 1
    assert len(rig.send(CLIENT, DTLS)) == 1
    flow = rig.flow(CLIENT)
    assert flow is not None
    assert flow.probation_until, "what begins anew is on probation"
    assert rig.happened(FlowEvent.RENEWED) == 1


def test_2_an_alive_answer_revives_a_flow_that_was_called_unknown_too_early() -> None:
    # DTLS may overtake the check that makes the session known.
    rig = Rig()
    rig.send(CLIENT, session(POD_A).check())
    rig.unknown_flow(POD_A, CLIENT)
    rig.answer(POD_A, CLIENT)
    assert len(rig.send(CLIENT, DTLS)) == 1


def test_2_unknown_flow_of_another_route_changes_nothing() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    rig.unknown_flow(POD_B, CLIENT)
    assert len(rig.send(CLIENT, DTLS)) == 1


def test_2_unknown_flow_for_an_address_without_flow_changes_nothing() -> None:
    rig = Rig()
    rig.unknown_flow(POD_A, CLIENT)
    assert rig.flows == 0


def test_2_alive_from_another_route_does_not_take_a_live_address() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    assert rig.answer(POD_B, CLIENT) == [(CLIENT, b"answer", None)], "the answer itself goes out"
    assert rig.route_of(CLIENT) == POD_A


def test_2_alive_from_another_route_takes_a_quiet_address() -> None:
    rig = Rig()
    rig.connect(CLIENT, session(POD_A))
    rig.advance(QUIET_AFTER)
    rig.answer(POD_B, CLIENT)
    assert rig.route_of(CLIENT) == POD_B


def test_2_the_local_address_stays_while_a_flow_is_not_quiet() -> None:
    # A replayed check to another address of ours must not make the victim's answers come from there.
    rig = Rig()
    at = session(POD_A)
    rig.send(CLIENT, at.check(), local="first")
    rig.answer(POD_A, CLIENT)
    rig.send(CLIENT, at.check(), local="second")
    assert rig.answer(POD_A, CLIENT) == [(CLIENT, b"answer", "first")]
    rig.advance(QUIET_AFTER)
    rig.send(CLIENT, at.check(1), local="second")
    assert rig.answer(POD_A, CLIENT) == [(CLIENT, b"answer", "second")]


# 3. Probation.


def test_3_a_new_flow_is_on_probation_until_its_transceiver_has_answered() -> None:
    rig = Rig()
    rig.send(CLIENT, session(POD_A).check())
    assert rig.forwarder.state.flows.on_probation == 1
    rig.answer(POD_A, CLIENT)
    assert rig.forwarder.state.flows.on_probation == 0
    assert rig.happened(FlowEvent.CONFIRMED) == 1


def test_3_a_flow_on_probation_forwards() -> None:
    # Chromium sends its ClientHello right after the first answer, which another relay may have carried.
    rig = Rig()
    rig.send(CLIENT, session(POD_A).check())
    assert len(rig.send(CLIENT, DTLS)) == 1


def test_3_probation_ends_after_5_seconds_without_an_answer() -> None:
    rig = Rig()
    at = session(POD_A)
    rig.send(CLIENT, at.check())
    rig.advance(PROBATION - 1)
    rig.send(CLIENT, at.check(1))
    assert rig.flow(CLIENT) is not None
    rig.advance(1)
    assert rig.flow(CLIENT) is None, "more checks do not prolong it"
    assert rig.happened(FlowEvent.PROBATION_OVER) == 1
    rig.send(CLIENT, at.check(2))
    assert rig.flow(CLIENT) is not None, "but make it anew"


@pytest.mark.parametrize("flags", [0])
def test_3_an_answer_that_is_not_alive_does_not_end_probation(flags: int) -> None:
    rig = Rig()
    rig.send(CLIENT, session(POD_A).check())
    rig.answer(POD_A, CLIENT, flags=flags)
    assert rig.forwarder.state.flows.on_probation == 1


def test_3_an_answer_of_another_transceiver_does_not_end_probation() -> None:
    rig = Rig()
    rig.send(CLIENT, session(POD_A).check())
    rig.answer(POD_B, CLIENT)
    assert rig.forwarder.state.flows.on_probation == 1
    assert rig.route_of(CLIENT) == POD_A


def test_3_at_most_16_flows_of_one_ufrag_are_on_probation_and_the_oldest_goes() -> None:
    rig = Rig()
    check = session(POD_A).check()
    clients = [client(port) for port in range(1, 1_000)]
    for path in clients:
        rig.count_sent(path, [check])
    assert rig.flows == PROBATION_PER_UFRAG
    assert all(rig.flow(path) for path in clients[-PROBATION_PER_UFRAG:])
    assert rig.happened(FlowEvent.EVICTED_PROBATION) == len(clients) - PROBATION_PER_UFRAG


def test_3_confirmed_flows_do_not_count_among_the_16() -> None:
    rig = Rig()
    at = session(POD_A)
    rig.connect(CLIENT, at)
    for port in range(1, 200):
        rig.count_sent(client(port), [at.check()])
    assert rig.route_of(CLIENT) == POD_A


def test_3_probation_flows_are_evicted_first_when_the_table_is_full() -> None:
    rig = Rig(Limits(max_flows=50))
    confirmed = [client(port) for port in range(1, 41)]
    for number, path in enumerate(confirmed):
        rig.connect(path, session(POD_A, number))
    rig.advance(QUIET_AFTER + 1)
    for number in range(100):
        rig.count_sent(client(1_000 + number), [session(POD_B, number).check()])
    assert rig.flows == 50
    assert all(rig.flow(path) for path in confirmed), "ten of fifty are on probation, so the oldest of those goes"


def test_3_probation_has_a_tenth_of_the_table_where_others_are_quiet() -> None:
    rig = Rig(Limits(max_flows=50))
    for number in range(50):
        rig.connect(client(1 + number), session(POD_A, number))
        rig.advance(0.02)
    rig.advance(QUIET_AFTER)
    for number in range(100):
        rig.count_sent(client(1_000 + number), [session(POD_B, number).check()])
    assert rig.flows == 50
    assert rig.forwarder.state.flows.on_probation == 6
    assert rig.happened(FlowEvent.EVICTED_QUIET) == 6
    assert not any(rig.flow(client(1 + number)) for number in range(6)), "those that were silent longest went"


def test_3_a_live_flow_is_never_evicted() -> None:
    rig = Rig(Limits(max_flows=20))
    for number in range(20):
        rig.connect(client(1 + number), session(POD_A, number))
    newcomer = client(999)
    assert len(rig.send(newcomer, session(POD_B).check())) == 1, "the check goes on all the same"
    assert rig.flow(newcomer) is None
    assert rig.flows == 20
    assert rig.happened(FlowEvent.REFUSED) == 1


def test_3_a_roaming_client_too_finds_room_by_eviction() -> None:
    rig = Rig(Limits(max_flows=20))
    for number in range(20):
        rig.send(client(1 + number), session(POD_A, number).check())
    rig.answer(POD_A, client(999))
    assert rig.route_of(client(999)) == POD_A
    assert rig.flows == 20


def test_eviction_finds_the_quiet_flow_among_refreshed_ones() -> None:
    rig = Rig(Limits(max_flows=30))
    for number in range(30):
        rig.connect(client(1 + number), session(POD_A, number))
    rig.advance(30)
    for number in range(29):
        rig.answer(POD_A, client(1 + number))
    rig.send(client(999), session(POD_B).check())
    assert rig.flow(client(999)) is not None
    assert rig.flow(client(30)) is None


# 3. What one session can fill.


def test_3_at_most_16_confirmed_flows_of_one_ufrag_and_the_one_silent_longest_goes() -> None:
    rig = Rig()
    at = session(POD_A)
    paths = [client(port) for port in range(1, CONFIRMED_PER_UFRAG + 1)]
    for path in paths:
        rig.connect(path, at)
    rig.advance(1)
    for path in paths:
        if path != paths[5]:
            rig.answer(POD_A, path)
    rig.connect(client(999), at)
    assert rig.flows == CONFIRMED_PER_UFRAG
    assert rig.flow(paths[5]) is None
    assert rig.happened(FlowEvent.EVICTED_SURPLUS) == 1


def test_3_fresh_checks_of_one_session_from_ever_new_ports_fill_nothing_and_touch_no_other_call() -> None:
    # The transceiver answers each of them alive, as they are valid and new.
    rig = Rig(Limits(max_flows=50))
    attacker = session(POD_A, 1)
    rig.connect(CLIENT, session(POD_A))
    for number in range(1_500):
        path = client(10_000 + number)
        rig.count_sent(path, [attacker.check(number)])
        rig.answer(POD_A, path)
        rig.answer(POD_A, CLIENT)
        if number % 200 == 0:
            rig.advance(0.2)
    assert rig.flows == 1 + CONFIRMED_PER_UFRAG
    assert rig.happened(FlowEvent.REFUSED) == 0
    rig.connect(client(999), session(POD_B))
    assert rig.route_of(CLIENT) == POD_A


def test_3_a_recorded_check_does_not_push_out_the_confirmed_flows_of_its_ufrag() -> None:
    rig = Rig()
    at = session(POD_A)
    for port in range(1, CONFIRMED_PER_UFRAG + 1):
        rig.connect(client(port), at)
    for number in range(500):
        rig.count_sent(client(1_000 + number), [at.check()])
    assert all(rig.flow(client(port)) for port in range(1, CONFIRMED_PER_UFRAG + 1))


def test_3_flows_that_their_transceiver_gave_up_make_room_first() -> None:
    rig = Rig(Limits(max_flows=20))
    for number in range(10):
        rig.connect(client(1 + number), session(POD_A, number))
    rig.advance(QUIET_AFTER + 1)
    for number in range(10, 20):
        rig.connect(client(1 + number), session(POD_A, number))
    for port in (13, 12):
        rig.unknown_flow(POD_A, client(port))
    rig.connect(client(901), session(POD_B, 1))
    assert rig.flow(client(13)) is None, "it ended first; ten others are only quiet"
    rig.connect(client(902), session(POD_B, 2))
    assert rig.flow(client(12)) is None
    assert rig.happened(FlowEvent.EVICTED_ENDED) == 2
    rig.connect(client(903), session(POD_B, 3))
    assert rig.flow(client(1)) is None
    assert rig.happened(FlowEvent.EVICTED_QUIET) == 1


def test_3_roaming_of_one_client_leaves_only_ended_flows_behind() -> None:
    rig = Rig(Limits(max_flows=20))
    rig.connect(CLIENT, session(POD_A))
    kept = [client(10_000)]
    for number in range(1, 200):
        rig.answer(POD_A, CLIENT)
        rig.answer(POD_A, client(10_000 + number))
        kept.append(client(10_000 + number))
        if len(kept) > MAX_PATHS:
            rig.unknown_flow(POD_A, kept.pop(0))
    assert rig.happened(FlowEvent.REFUSED) == 0
    rig.connect(client(999), session(POD_B))
    assert rig.route_of(CLIENT) == POD_A


def test_3_the_paths_that_a_transceiver_keeps_of_a_session_all_have_a_flow() -> None:
    assert CONFIRMED_PER_UFRAG >= MAX_PATHS


def test_3_a_quiet_flow_is_found_behind_any_number_of_lively_ones() -> None:
    rig = Rig(Limits(max_flows=500))
    for number in range(500):
        rig.connect(client(1 + number), session(POD_A, number))
    for _ in range(QUIET_AFTER.__ceil__() + 1):
        rig.advance(1)
        for number in range(499):
            rig.answer(POD_A, client(1 + number))
    rig.connect(client(9_999), session(POD_B))
    assert rig.flow(client(500)) is None
    assert rig.happened(FlowEvent.REFUSED) == 0


def test_3_an_ended_flow_is_kept_for_30_seconds_so_that_its_drops_say_why() -> None:
    rig = Rig(Limits(who_has_limit=0))
    rig.connect(CLIENT, session(POD_A))
    rig.unknown_flow(POD_A, CLIENT)
    rig.advance(ENDED_KEPT - 1)
    rig.send(CLIENT, DTLS)
    rig.advance(2)
    rig.send(CLIENT, DTLS)
    assert rig.drops == {Drop.SESSION_ENDED: 1, Drop.UNKNOWN_ADDRESS: 1}
    assert rig.happened(FlowEvent.EXPIRED) == 1


def test_3_a_path_that_was_given_up_and_checks_again_is_as_good_as_before() -> None:
    rig = Rig()
    at = session(POD_A)
    rig.connect(CLIENT, at)
    rig.unknown_flow(POD_A, CLIENT)
    rig.connect(CLIENT, at)
    assert len(rig.send(CLIENT, DTLS)) == 1


# Bounds of the work.


def test_expiry_looks_at_a_bounded_number_of_flows_at_a_time() -> None:
    rig = Rig(Limits(max_flows=5_000))
    for number in range(3_000):
        path = client(1 + number)
        rig.count_sent(path, [session(POD_A, number).check()])
        rig.receive(rig.hop(POD_A, path, b"x", ALIVE), ("10.1.0.17", 7200))
    rig.now += IDLE_EXPIRY + 2
    sizes = []
    for _ in range(4):
        rig.forwarder.tick(rig.now, rig.unix)
        sizes.append(rig.flows)
    assert sizes == [2_000, 1_000, 0, 0]


def test_nothing_is_left_behind_by_flows_that_are_gone() -> None:
    rig = Rig(Limits(max_flows=100))
    for number in range(300):
        path = client(1 + number)
        rig.send(path, session(POD_A, number).check())
        if number % 3:
            rig.answer(POD_A, path)
            rig.send(path, rtp(number))
        if number % 4 == 0:
            rig.unknown_flow(POD_A, path)
        rig.advance(0.5)
    rig.advance(2 * IDLE_EXPIRY)
    flows = rig.forwarder.state.flows
    assert len(flows) == len(flows.ssrcs) == flows.on_probation == flows.ended == 0
    for line in (flows._probation, flows._confirmed, flows._ended):
        assert not line.flows
        assert not line.by_ufrag


def test_life_is_noted_for_the_shutdown() -> None:
    rig = Rig()
    flows = rig.forwarder.state.flows
    assert flows.last_life == NEVER
    rig.send(CLIENT, session(POD_A).check())
    assert flows.last_life == rig.now
    rig.advance(3)
    rig.send(CLIENT, DTLS)
    assert flows.last_life == rig.now - 3
    rig.answer(POD_A, CLIENT)
    assert flows.last_life == rig.now


def test_the_first_flows_are_listed() -> None:
    rig = Rig()
    for port in range(1, 6):
        rig.send(client(port), session(POD_C, port).check())
    assert [flow.key for flow in rig.forwarder.state.flows.first(3)] == [client(1), client(2), client(3)]


def test_alive_is_flag_2_of_a_record() -> None:
    assert hop.RecordFlag.ALIVE == ALIVE == 2
