"""The rate of requests of a tenant, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usher_signaling.rates import Rates


def admitted(rates: Rates, rate: float, burst: int, times: list[float], tenant: str = "acme") -> int:
    return sum(rates.take(tenant, rate, burst, now) == 0 for now in times)


def test_a_burst_is_let_through_and_then_the_rate() -> None:
    rates = Rates()
    assert admitted(rates, 2.0, 5, [100.0] * 50) == 5
    assert admitted(rates, 2.0, 5, [100 + 0.01 * step for step in range(1, 1001)]) == 20


def test_the_wait_is_when_the_next_one_is_let_through() -> None:
    rates = Rates()
    assert rates.take("acme", 0.5, 1, 7.0) == 0
    assert rates.take("acme", 0.5, 1, 7.5) == pytest.approx(1.5)
    assert rates.take("acme", 0.5, 1, 8.99) > 0
    assert rates.take("acme", 0.5, 1, 9.0) == 0


def test_a_refused_request_costs_nothing_and_tenants_do_not_share() -> None:
    rates = Rates()
    assert admitted(rates, 1.0, 1, [0.0] * 100) == 1
    assert rates.take("acme", 1.0, 1, 1.0) == 0
    assert admitted(rates, 1.0, 1, [0.0, 0.0], "other") == 1


def test_idle_tenants_are_forgotten_and_memory_is_bounded() -> None:
    rates = Rates(max_tenants=100)
    for number in range(1000):
        rates.take(f"t{number}", 0.001, 1, 5.0)
        assert len(rates) <= 100
    assert rates.take("t999", 0.001, 1, 5.0) > 0
    assert rates.take("t0", 0.001, 1, 5.0) == 0  # forgotten: the bound goes before the limit
    for _ in range(40):
        rates.take("active", 1000.0, 10, 2000.0)
    assert len(rates) == 1


def test_a_raised_limit_counts_at_once() -> None:
    rates = Rates()
    assert admitted(rates, 0.001, 5, [0.0] * 10) == 5
    assert rates.take("acme", 0.001, 5, 1.0) > 900
    assert admitted(rates, 10.0, 5, [1.0] * 10) == 5


@given(
    rate=st.floats(0.1, 100),
    burst=st.integers(1, 20),
    gaps=st.lists(st.floats(0, 3), max_size=200),
)
def test_no_more_than_burst_and_rate_in_any_time(rate: float, burst: int, gaps: list[float]) -> None:
    rates, now, taken = Rates(), 0.0, []
    for gap in gaps:
        now += gap
        if rates.take("acme", rate, burst, now) == 0:
            taken.append(now)
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + rate * (taken[last] - start) + 1e-6
