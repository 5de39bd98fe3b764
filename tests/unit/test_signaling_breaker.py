"""Whether what may be away is asked, by a clock that the test moves."""

from __future__ import annotations

from random import Random

from usher_signaling.breaker import LATELY_S, LONGEST_PAUSE_S, Attempt, Breaker


class NoJitter(Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def test_pauses_double_up_to_the_longest_and_one_probe_is_let_through_after_each() -> None:
    breaker, now = Breaker(NoJitter()), 0.0
    assert breaker.begin(now) is Attempt.PLAIN
    assert breaker.end(Attempt.PLAIN, now, well=False)
    for pause in (0.5, 1, 2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S):
        assert breaker.begin(now + pause - 0.01) is None
        now += pause
        assert breaker.begin(now) is Attempt.PROBE
        assert breaker.begin(now) is None, "one at a time"
        assert not breaker.end(Attempt.PROBE, now, well=False)
    now += LONGEST_PAUSE_S
    assert breaker.begin(now) is Attempt.PROBE
    assert breaker.end(Attempt.PROBE, now, well=True)
    assert breaker.begin(now) is Attempt.PLAIN


def test_many_that_were_under_way_when_it_went_are_one_failure_and_late_successes_are_no_news() -> None:
    breaker = Breaker(NoJitter())
    attempts = [breaker.begin(0.0) for _ in range(3)]
    assert attempts == [Attempt.PLAIN] * 3
    assert [breaker.end(Attempt.PLAIN, 0.0, well=well) for well in (False, False, True)] == [True, False, False]
    assert breaker.is_away
    assert breaker.begin(0.5) is Attempt.PROBE, "the pause is still the first"


def test_a_probe_that_was_cancelled_says_nothing_and_lets_the_next_one_through() -> None:
    breaker = Breaker(NoJitter())
    breaker.end(Attempt.PLAIN, 0.0, well=False)
    assert breaker.begin(1.0) is Attempt.PROBE
    assert not breaker.end(Attempt.PROBE, 1.0, well=None)
    assert breaker.is_away
    assert breaker.begin(1.0) is Attempt.PROBE


def test_a_failure_that_nobody_has_repeated_says_nothing_of_now() -> None:
    breaker = Breaker(NoJitter())
    assert not breaker.failed_lately(0.0)
    breaker.end(Attempt.PLAIN, 0.0, well=False)
    assert (breaker.failed_lately(LATELY_S - 0.01), breaker.failed_lately(LATELY_S)) == (True, False)
    assert breaker.is_away
    assert breaker.begin(LATELY_S) is Attempt.PROBE, "it is still asked with care"
    breaker.end(Attempt.PROBE, LATELY_S, well=False)
    assert breaker.failed_lately(2 * LATELY_S - 0.01)
    assert breaker.begin(2 * LATELY_S) is Attempt.PROBE
    breaker.end(Attempt.PROBE, 2 * LATELY_S, well=True)
    assert not breaker.failed_lately(2 * LATELY_S)
