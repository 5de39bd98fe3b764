"""Placement: who is chosen, and who is not."""

from __future__ import annotations

from random import Random

from usher_core.ids import Route
from usher_core.internal_api import Load
from usher_signaling.placement import FULL_RETRY_S, Placement

A, B = Route(1, 1), Route(1, 2)


def load(sessions: int = 0, *, accepts: bool = True, draining: bool = False, most: int = 100) -> Load:
    return Load(sessions=sessions, max_sessions=most, draining=draining, accepts=accepts)


def placement() -> Placement:
    return Placement(5.0, Random(1))


def test_nobody_is_chosen_before_the_first_report() -> None:
    assert placement().choose([[A, B]], 0.0) is None


def test_the_emptier_of_two_is_chosen() -> None:
    rules = placement()
    rules.report(A, load(5), 0.0)
    rules.report(B, load(4), 0.0)
    assert {rules.choose([[A, B]], 1.0) for _ in range(20)} == {B}


def test_emptiness_is_measured_against_capacity() -> None:
    rules = placement()
    rules.report(A, load(10, most=1000), 0.0)
    rules.report(B, load(5, most=10), 0.0)
    assert rules.choose([[A, B]], 1.0) == A


def test_calls_placed_here_count_until_a_report_has_seen_them() -> None:
    rules = placement()
    rules.report(A, load(0), 0.0)
    rules.report(B, load(2), 0.0)
    for _ in range(3):
        rules.begin(A)
        rules.end(A, 1.0)
    assert rules.choose([[A, B]], 1.0) == B
    rules.report(A, load(0), 2.0)
    assert rules.choose([[A, B]], 2.0) == A


def test_a_call_that_was_not_placed_counts_no_more() -> None:
    rules = placement()
    rules.report(A, load(0), 0.0)
    rules.report(B, load(1), 0.0)
    for _ in range(5):
        rules.begin(A)
    assert rules.choose([[A, B]], 1.0) == B
    for _ in range(5):
        rules.end(A, None)
    assert rules.choose([[A, B]], 1.0) == A


def test_a_report_that_was_asked_for_earlier_than_the_known_one_is_dropped() -> None:
    rules = placement()
    rules.report(A, load(9), 2.0)
    rules.report(A, load(0), 1.0)
    rules.report(B, load(5), 2.0)
    assert rules.choose([[A, B]], 2.0) == B


def test_a_draining_one_is_never_chosen() -> None:
    rules = placement()
    rules.report(A, load(draining=True, accepts=False), 0.0)
    assert rules.choose([[A]], 1.0) is None
    assert not rules.is_live(A, 1.0)


def test_a_full_one_is_passed_over_but_lives() -> None:
    rules = placement()
    rules.report(A, load(0, accepts=False), 0.0)
    rules.report(B, load(99), 0.0)
    assert rules.choose([[A, B]], 1.0) == B
    assert rules.is_live(A, 1.0)


def test_with_all_full_one_is_tried_again_after_a_moment_and_not_sooner() -> None:
    rules = placement()
    rules.report(A, load(9, accepts=False), 0.0)
    assert rules.choose([[A]], FULL_RETRY_S / 2) is None
    assert rules.choose([[A]], FULL_RETRY_S) == A
    rules.refused(A, FULL_RETRY_S, draining=False)
    assert rules.choose([[A]], FULL_RETRY_S * 1.5) is None
    assert rules.choose([[A]], FULL_RETRY_S * 2) == A


def test_one_that_refused_because_it_drains_waits_for_a_report() -> None:
    rules = placement()
    rules.report(A, load(), 0.0)
    rules.refused(A, 1.0, draining=True)
    assert rules.choose([[A]], 4.0) is None
    rules.report(A, load(), 4.5)
    assert rules.choose([[A]], 4.5) == A


def test_one_that_has_not_reported_lately_is_dead() -> None:
    rules = placement()
    rules.report(A, load(), 0.0)
    assert rules.choose([[A]], 5.0) == A
    assert rules.choose([[A]], 5.1) is None
    assert not rules.is_live(A, 5.1)


def test_one_that_did_not_answer_is_dead_until_its_next_report() -> None:
    rules = placement()
    rules.report(A, load(), 1.0)
    rules.lost(A)
    assert rules.choose([[A]], 1.0) is None
    rules.report(A, load(), 1.1)
    assert rules.choose([[A]], 1.1) == A


def test_one_that_was_tried_is_not_tried_again() -> None:
    rules = placement()
    rules.report(A, load(0), 0.0)
    rules.report(B, load(50), 0.0)
    assert rules.choose([[A, B]], 1.0, {A}) == B
    assert rules.choose([[A, B]], 1.0, {A, B}) is None


def test_transceivers_that_are_gone_are_forgotten() -> None:
    rules = placement()
    rules.report(A, load(), 0.0)
    rules.keep([B])
    assert rules.choose([[A, B]], 0.0) is None
    rules.begin(A)
    rules.end(A, 1.0)
    rules.lost(A)
    rules.refused(A, 1.0, draining=False)


def test_a_capacity_of_zero_divides_nothing() -> None:
    rules = placement()
    rules.report(A, load(most=0, accepts=False), 0.0)
    assert rules.choose([[A]], 1.0) == A  # worth a try: nothing else is there
