"""The rules of docs/wire.md section 5, in virtual time. The number in a test's name is the rule's."""

from __future__ import annotations

import pytest

from tests.ice_checks import RELAY_A, RELAY_B, check, check_bytes, generation, new_id, path
from usher_core import stun
from usher_core.ids import ClientPath
from usher_core.stun import Attribute, StunClass
from usher_transceiver.ice import FIRST_CHECK_S, LIFE_S, MAX_GENERATIONS, CheckOutcome, Expiry, IceAgent
from usher_transceiver.paths import MAX_PATHS, QUIET_S, Path, Via

GENERATION = generation()
KEY = bytes(range(16))
P1, P2, P3 = path(1001), path(1002), path(1003)


def make_agent(**options: object) -> IceAgent:
    return IceAgent(GENERATION, KEY, 0.0, **options)  # type: ignore[arg-type]


@pytest.fixture
def agent() -> IceAgent:
    return make_agent()


def ask(agent: IceAgent, now: float, at: ClientPath, via: Via = RELAY_A, **options: object) -> CheckOutcome:
    return agent.on_check(now, check(options.pop("of", GENERATION), **options), at, via)[0]  # type: ignore[arg-type]


def speak(agent: IceAgent, now: float, at: ClientPath, via: Via = RELAY_A, *, newer: bool = True) -> None:
    agent.on_authenticated(now, at, via, 100, newer=newer)


def sending(agent: IceAgent) -> ClientPath | None:
    return None if agent.sending is None else agent.sending.address


# Answers


def test_a_valid_check_is_answered_with_the_address_that_the_relay_saw(agent: IceAgent) -> None:
    request = check(GENERATION)
    outcome, answer = agent.on_check(1.0, request, P1, RELAY_A)
    assert outcome is CheckOutcome.FRESH
    assert answer is not None
    response = stun.parse(answer)
    assert response.cls is StunClass.SUCCESS
    assert response.transaction_id == request.transaction_id
    assert response.verify_integrity(GENERATION.password)
    assert Attribute.FINGERPRINT in response.attributes
    mapped = response.attributes[Attribute.XOR_MAPPED_ADDRESS]
    assert stun.unxor_address(mapped, request.transaction_id) == (P1.address, P1.port)


def test_a_check_without_use_candidate_is_answered_too(agent: IceAgent) -> None:
    for second in range(1, 6):
        assert ask(agent, second, P1) is CheckOutcome.FRESH


@pytest.mark.parametrize(
    "options,outcome",
    [
        ({"password": b"wrong-password-wrong-password-00"}, CheckOutcome.WRONG_PASSWORD),
        ({"remote": b"stranger"}, CheckOutcome.WRONG_USERNAME),
        ({"of": generation(7)}, CheckOutcome.UNKNOWN_UFRAG),
    ],
)
def test_what_is_not_authentic_is_not_answered_and_leaves_no_trace(
    agent: IceAgent, options: dict[str, object], outcome: CheckOutcome
) -> None:
    request = check(options.pop("of", GENERATION), **options)  # type: ignore[arg-type]
    assert agent.on_check(1.0, request, P1, RELAY_A) == (outcome, None)
    assert agent.addresses == ()
    assert agent.first_check is None


def test_any_ufrag_of_an_offer_with_several_is_accepted() -> None:
    several = generation(0, b"audio-ufrag", b"data-ufrag")
    agent = IceAgent(several, KEY, 0.0)
    assert agent.on_check(1.0, check(several, remote=b"data-ufrag"), P1, RELAY_A)[0] is CheckOutcome.FRESH


@pytest.mark.parametrize(
    "order",
    [
        ("PRIORITY", "USE_CANDIDATE", "ICE_CONTROLLING", "SOFTWARE", "USERNAME"),  # libdatachannel
        ("PRIORITY", "ICE_CONTROLLING", "USERNAME", "SOFTWARE"),  # libnice
        ("USERNAME", "ICE_CONTROLLING", "USE_CANDIDATE", "PRIORITY"),  # Chromium
    ],
)
def test_the_order_of_attributes_is_the_clients_affair(agent: IceAgent, order: tuple[str, ...]) -> None:
    values = {
        "PRIORITY": bytes(4),
        "USE_CANDIDATE": b"",
        "ICE_CONTROLLING": bytes(8),
        "SOFTWARE": b"any client",
        "USERNAME": GENERATION.ufrag + b":theirs",
    }
    attributes = [(Attribute[name], values[name]) for name in order]
    request = stun.build(StunClass.REQUEST, new_id(), attributes, GENERATION.password)
    assert agent.on_check(1.0, stun.parse(request), P1, RELAY_A)[0] is CheckOutcome.FRESH


def test_a_client_may_have_the_longest_ufrag_that_ice_allows() -> None:
    long = generation(0, b"t" * 256)
    assert IceAgent(long, KEY, 0.0).on_check(1.0, check(long), P1, RELAY_A)[0] is CheckOutcome.FRESH


# Rule 1: nomination


def test_1_before_authentication_the_latest_check_is_the_sending_path(agent: IceAgent) -> None:
    ask(agent, 1.0, P1)
    ask(agent, 1.1, P2)
    assert sending(agent) == P2


def test_1_before_authentication_the_latest_use_candidate_wins_over_later_checks(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    ask(agent, 1.1, P2)
    assert sending(agent) == P1
    ask(agent, 1.2, P3, nominate=True)
    assert sending(agent) == P3


def test_1_a_dtls_flight_goes_where_the_newest_dtls_from_a_checked_address_came_from(agent: IceAgent) -> None:
    assert not agent.on_dtls(P1)
    ask(agent, 1.0, P1)
    ask(agent, 1.1, P2, nominate=True)
    assert agent.on_dtls(P1)
    assert agent.dtls_path is not None
    assert agent.dtls_path.address == P1
    assert sending(agent) == P2
    assert agent.on_dtls(P2)
    assert agent.dtls_path.address == P2


def test_1_after_authentication_a_nomination_only_marks_a_path_preferred(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    speak(agent, 1.1, P1)
    ask(agent, 1.2, P2, nominate=True)
    assert sending(agent) == P1


def test_1_a_preferred_path_sends_with_its_first_authenticated_packet_even_a_late_one(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    speak(agent, 1.1, P1)
    ask(agent, 1.2, P2, nominate=True)
    speak(agent, 1.3, P2, newer=False)
    assert sending(agent) == P2


def test_1_a_preferred_path_sends_after_7_s_of_silence_of_the_old_one(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    speak(agent, 1.1, P1)
    ask(agent, 4.0, P2, nominate=True)
    agent.tick(1.1 + QUIET_S - 0.01)
    assert sending(agent) == P1
    agent.tick(1.1 + QUIET_S)
    assert sending(agent) == P2


def test_1_checks_without_nomination_are_enough_once_the_old_path_is_silent(agent: IceAgent) -> None:
    # Firefox nominates with its first check only.
    ask(agent, 1.0, P1, nominate=True)
    speak(agent, 1.1, P1)
    ask(agent, 6.0, P2)
    agent.tick(1.1 + QUIET_S)
    assert sending(agent) == P2


def test_1_the_first_unseen_check_of_a_newer_generation_moves_at_once(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    speak(agent, 1.1, P1)
    newer = generation(1, b"theirs2")
    agent.add_generation(newer)
    assert sending(agent) == P1
    ask(agent, 1.5, P2, of=newer)
    assert sending(agent) == P2


def test_1_an_old_generation_is_answered_and_decides_nothing(agent: IceAgent) -> None:
    newer = generation(1, b"theirs2")
    ask(agent, 1.0, P1, nominate=True)
    agent.add_generation(newer)
    ask(agent, 1.5, P2, of=newer)
    assert ask(agent, 1.6, P1, nominate=True) is CheckOutcome.FRESH
    assert sending(agent) == P2


# Rule 2: authenticated packets


def test_2_a_newer_authenticated_packet_from_an_unknown_address_moves_at_once(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    speak(agent, 1.1, P1)
    speak(agent, 1.2, P3, RELAY_B)
    assert sending(agent) == P3
    assert agent.sending is not None
    assert agent.sending.via == RELAY_B


def test_2_a_late_authenticated_packet_does_not_move_back(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    speak(agent, 1.1, P1)
    speak(agent, 1.2, P3)
    speak(agent, 1.21, P1, newer=False)
    assert sending(agent) == P3


def test_2_an_unconfirmed_address_gets_three_bytes_per_byte_and_data_one(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    speak(agent, 1.1, P1)
    speak(agent, 1.2, P3)
    unconfirmed = agent.sending
    assert unconfirmed is not None
    assert not unconfirmed.spend(101, is_data=True)
    assert unconfirmed.spend(100, is_data=True)
    assert not unconfirmed.spend(1, is_data=True)
    assert unconfirmed.spend(200, is_data=False)
    assert not unconfirmed.spend(1, is_data=False)
    ask(agent, 1.3, P3)
    assert unconfirmed.spend(10_000, is_data=False)


# Rule 3: transaction ids


def test_3_a_check_known_from_another_address_is_not_answered_and_moves_nothing(agent: IceAgent) -> None:
    recorded = check(GENERATION, nominate=True)
    agent.on_check(1.0, recorded, P1, RELAY_A)
    for now, at in ((2.0, P2), (20.0, P3), (29.0, path(1001, host="203.0.113.1"))):
        assert agent.on_check(now, recorded, at, RELAY_B) == (CheckOutcome.REPLAYED, None)
    assert sending(agent) == P1
    assert agent.addresses == (P1,)
    assert agent.tick(1.0 + LIFE_S) is Expiry.SILENT


def test_3_a_repeated_check_from_its_own_address_is_answered_and_extends_nothing(agent: IceAgent) -> None:
    repeated = check(GENERATION)
    agent.on_check(1.0, repeated, P1, RELAY_A)
    outcome, answer = agent.on_check(20.0, repeated, P1, RELAY_B)
    assert outcome is CheckOutcome.REPEATED
    assert answer is not None
    assert agent.tick(1.0 + LIFE_S) is Expiry.SILENT


def test_3_a_replay_through_another_listener_is_another_address(agent: IceAgent) -> None:
    recorded = check(GENERATION)
    agent.on_check(1.0, recorded, P1, RELAY_A)
    assert agent.on_check(1.1, recorded, path(1001, listener=2), RELAY_A)[0] is CheckOutcome.REPLAYED


def test_3_with_a_full_memory_checks_extend_and_move_nothing_but_packets_do() -> None:
    agent = make_agent(memory_limit=2)
    ask(agent, 1.0, P1, nominate=True)
    ask(agent, 2.0, P1)
    speak(agent, 2.5, P1)
    assert ask(agent, 3.0, P2, nominate=True) is CheckOutcome.MEMORY_FULL
    assert agent.on_check(3.0, check(GENERATION), P2, RELAY_A)[1] is None
    outcome, answer = agent.on_check(20.0, check(GENERATION), P1, RELAY_B)
    assert outcome is CheckOutcome.MEMORY_FULL
    assert answer is not None
    assert agent.addresses == (P1,)
    assert agent.path(P1).via == RELAY_A  # type: ignore[union-attr]
    assert agent.tick(2.4 + LIFE_S) is None
    assert agent.tick(2.5 + LIFE_S) is Expiry.SILENT
    speak(agent, 33.0, P2)
    assert agent.tick(34.0) is None
    assert sending(agent) == P2


def test_3_ids_are_remembered_per_generation(agent: IceAgent) -> None:
    transaction = new_id()
    ask(agent, 1.0, P1, transaction=transaction)
    newer = generation(1, b"theirs2")
    agent.add_generation(newer)
    assert ask(agent, 1.5, P2, of=newer, transaction=transaction) is CheckOutcome.FRESH


# Rule 4: relays


def test_4_the_relay_of_a_path_changes_with_an_unseen_check_or_an_authenticated_packet_only(agent: IceAgent) -> None:
    repeated = check(GENERATION)
    agent.on_check(1.0, repeated, P1, RELAY_A)
    agent.on_check(1.1, repeated, P1, RELAY_B)
    agent.on_dtls(P1)
    assert agent.path(P1).via == RELAY_A  # type: ignore[union-attr]
    ask(agent, 1.2, P1, RELAY_B)
    assert agent.path(P1).via == RELAY_B  # type: ignore[union-attr]
    speak(agent, 1.3, P1, RELAY_A)
    assert agent.path(P1).via == RELAY_A  # type: ignore[union-attr]


def test_4_alive_lasts_5_s_from_the_last_unseen_check_or_authenticated_packet(agent: IceAgent) -> None:
    ask(agent, 1.0, P1)
    known = agent.path(P1)
    assert known is not None
    assert known.is_alive(6.0)
    assert not known.is_alive(6.1)
    speak(agent, 10.0, P1, newer=False)
    assert known.is_alive(15.0)


# Rule 5: life and errors


def test_5_without_a_first_check_life_ends_after_15_s(agent: IceAgent) -> None:
    assert agent.tick(FIRST_CHECK_S - 0.01) is None
    assert agent.tick(FIRST_CHECK_S) is Expiry.NO_FIRST_CHECK


def test_5_life_is_an_unseen_check_or_an_authenticated_packet_within_30_s(agent: IceAgent) -> None:
    ask(agent, 1.0, P1)
    assert agent.tick(1.0 + LIFE_S - 0.01) is None
    speak(agent, 25.0, P1, newer=False)  # libnice sends no checks after set-up
    assert agent.tick(25.0 + LIFE_S - 0.01) is None
    assert agent.tick(25.0 + LIFE_S) is Expiry.SILENT


def test_5_an_unknown_required_attribute_gets_420_with_its_number_and_moves_nothing(agent: IceAgent) -> None:
    request = check(GENERATION, extra=((0x7777, b"abcd"),), nominate=True)
    outcome, answer = agent.on_check(1.0, request, P1, RELAY_A)
    assert outcome is CheckOutcome.UNKNOWN_ATTRIBUTE
    assert answer is not None
    response = stun.parse(answer)
    assert response.cls is StunClass.ERROR
    assert stun.error_code(response.attributes[Attribute.ERROR_CODE]) == 420
    assert response.attributes[Attribute.UNKNOWN_ATTRIBUTES] == b"\x77\x77"
    assert response.verify_integrity(GENERATION.password)
    assert agent.addresses == ()


def test_5_ice_controlled_gets_487(agent: IceAgent) -> None:
    outcome, answer = agent.on_check(1.0, check(GENERATION, role=Attribute.ICE_CONTROLLED), P1, RELAY_A)
    assert outcome is CheckOutcome.ROLE_CONFLICT
    assert answer is not None
    assert stun.error_code(stun.parse(answer).attributes[Attribute.ERROR_CODE]) == 487
    assert agent.first_check is None


def test_5_errors_come_only_after_integrity_held(agent: IceAgent) -> None:
    forged = check(GENERATION, password=b"x" * 32, extra=((0x7777, b""),), role=Attribute.ICE_CONTROLLED)
    assert agent.on_check(1.0, forged, P1, RELAY_A) == (CheckOutcome.WRONG_PASSWORD, None)


# An address that is another session's


def test_a_check_from_another_sessions_address_is_answered_and_makes_no_path(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    outcome, answer = agent.on_check(1.1, check(GENERATION, nominate=True), P2, RELAY_A, usable=False)
    assert outcome is CheckOutcome.FOREIGN
    assert answer is not None
    assert agent.addresses == (P1,)
    assert sending(agent) == P1


def test_a_forgotten_address_is_used_no_more(agent: IceAgent) -> None:
    ask(agent, 1.0, P1, nominate=True)
    agent.forget(P1)
    assert agent.sending is None
    assert agent.dtls_path is None
    agent.tick(2.0)
    ask(agent, 3.0, P2)
    speak(agent, 3.1, P2)
    assert sending(agent) == P2


# Bounds


def test_paths_are_bounded_and_those_in_use_stay() -> None:
    evicted: list[Path] = []
    agent = make_agent(on_evict=evicted.append)
    ask(agent, 1.0, P1, nominate=True)
    speak(agent, 1.1, P1)
    for port in range(2000, 2000 + 3 * MAX_PATHS):
        ask(agent, 2.0 + port / 1000, path(port))
    assert len(agent.addresses) == MAX_PATHS
    assert P1 in agent.addresses
    assert sending(agent) == P1
    assert len(evicted) == 1 + 3 * MAX_PATHS - MAX_PATHS
    assert [gone.address for gone in evicted[:3]] == [path(2000), path(2001), path(2002)], "silent longest first"


def test_generations_are_bounded_and_the_one_in_use_stays(agent: IceAgent) -> None:
    ask(agent, 1.0, P1)
    gone = [agent.add_generation(generation(number, b"theirs%d" % number)) for number in range(1, 10)]
    assert gone.count(None) == MAX_GENERATIONS - 1
    assert len(agent.ufrags) == MAX_GENERATIONS
    assert GENERATION.ufrag in agent.ufrags
    assert agent.newest.ufrag == generation(9).ufrag
    assert ask(agent, 2.0, P1) is CheckOutcome.FRESH


def test_an_answer_is_never_larger_than_three_times_its_request(agent: IceAgent) -> None:
    for extra in ((), ((0x7777, b""),), tuple((0x7000 + n, b"") for n in range(100))):
        raw = check_bytes(GENERATION, extra=extra)
        _, answer = agent.on_check(1.0, stun.parse(raw), path(host="2001:db8::1"), RELAY_A)
        assert answer is not None
        assert len(answer) < 1.3 * len(raw)
