"""The search of the transceiver's bench for the most calls a server holds, against servers that are only numbers."""

from __future__ import annotations

import os

import pytest

from benches.transceiver import holding
from benches.transceiver.holding import MOST_CALLS, Point, find_most, quantile_ms
from benches.transceiver.servers import Sample
from usher_transceiver.media.ticker import LATENESS_S


class Pretended:
    """Uses `cost` % of its CPU for a call and keeps up with `capacity` of them."""

    name, url = "pretended", "http://127.0.0.1:9"

    def __init__(self, cost: float, capacity: int, generator: int) -> None:
        self.cost, self.capacity, self.generator = cost, capacity, generator
        self.asked: list[int] = []

    def sample(self) -> Sample:
        raise AssertionError("it is never looked at")

    def point(self, calls: int) -> Point:
        self.asked.append(calls)
        return Point(
            calls=calls,
            cpu_percent=2.0 + self.cost * calls,
            memory_mb=100.0 + 0.3 * calls,
            lag_p50_ms=1.0,
            lag_p99_ms=5.0 if calls <= self.capacity else 20.0,
            skipped_ticks=0,
            lost_percent=0.0,
            longest_gap_ms=40.0,
            bundled=5.0,
            generator_cpu_percent=50.0,
            generator_lag_p99_ms=5.0,
            generator_has_room=calls <= self.generator,
        )


@pytest.mark.parametrize(
    ("cost", "capacity", "held"),
    [
        (0.7, 125, 125),
        (0.7, 140, 135),
        (0.7, 118, 115),
        (0.7, 90, 85),
        (0.7, 70, 65),
        (4.0, 22, 20),
        (4.0, 18, 15),
        (0.1, 5_000, MOST_CALLS),
    ],
)
def test_the_search_ends_within_a_step_of_what_a_server_holds(
    monkeypatch: pytest.MonkeyPatch, cost: float, capacity: int, held: int
) -> None:
    server = Pretended(cost, capacity, generator=10_000)
    monkeypatch.setattr(holding, "_idle", lambda *_: server.point(0))
    monkeypatch.setattr(holding, "measure", lambda _server, _cpu, calls, _seconds: server.point(calls))
    row = find_most(server, load_cpu=0, first=8, seconds=1.0)
    assert row.held == held
    assert len(server.asked) <= 7
    assert row.cpu_ms == pytest.approx(10 * cost)
    assert row.memory_kb == pytest.approx(300)
    assert row.is_generator_bound == (held == MOST_CALLS)


def test_a_generator_without_room_ends_the_search_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Pretended(0.1, 5_000, generator=200)
    monkeypatch.setattr(holding, "_idle", lambda *_: server.point(0))
    monkeypatch.setattr(holding, "measure", lambda _server, _cpu, calls, _seconds: server.point(calls))
    row = find_most(server, load_cpu=0, first=60, seconds=1.0)
    assert server.asked == [0, 60, MOST_CALLS]
    assert row.is_generator_bound


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    counts = [0] * (len(LATENESS_S) + 1)
    counts[LATENESS_S.index(0.001)] = 98
    counts[LATENESS_S.index(0.01)] = 1
    counts[-1] = 1
    cumulative = [sum(counts[: place + 1]) for place in range(len(counts))]
    assert quantile_ms(cumulative, 0.5) == 1.0
    assert quantile_ms(cumulative, 0.99) == 10.0
    assert quantile_ms(cumulative, 1.0) == 1000.0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the server and the load need a CPU each")
def test_the_server_and_the_load_have_a_cpu_each() -> None:
    server, load = holding.cpus()
    assert server != load
    assert {server, load} <= os.sched_getaffinity(0)
