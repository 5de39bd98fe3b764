"""How many calls a tenant has, by what transceivers report."""

from __future__ import annotations

from random import Random

from usher_core.ids import Route
from usher_core.internal_api import Load
from usher_signaling.tenant_calls import MAX_REMEMBERED, TenantCalls

A, B = Route(1, 1, 0), Route(1, 2, 0)


def load(created: int, **tenants: int) -> Load:
    return Load(sessions=sum(tenants.values()), max_sessions=100, accepts=True, created=created, tenants=tenants)


def test_calls_are_what_all_transceivers_report() -> None:
    calls = TenantCalls(5)
    calls.report(A, load(9, acme=2, other=1), 10.0)
    calls.report(B, load(9, acme=3), 10.5)
    assert [calls.count(name, 11.0) for name in ("acme", "other", "nobody")] == [5, 1, 0]
    calls.report(B, load(9), 12.0)
    calls.report(B, load(9, acme=50), 11.0)  # an older answer that came late
    assert calls.count("acme", 12.0) == 2


def test_a_call_counts_from_before_it_is_placed_until_a_report_has_it() -> None:
    calls = TenantCalls(5)
    calls.report(A, load(7), 10.0)
    calls.begin("acme")
    assert calls.count("acme", 10.1) == 1
    calls.end("acme", (A, 8), 10.2)
    assert calls.count("acme", 10.2) == 1
    calls.report(A, load(7), 10.3)  # asked after it was placed, but answered without it
    assert calls.count("acme", 10.3) == 1
    calls.report(A, load(8, acme=1), 10.4)
    assert calls.count("acme", 10.4) == 1
    calls.report(A, load(8), 11.4)
    assert calls.count("acme", 11.4) == 0


def test_a_report_that_was_on_its_way_while_a_call_came_does_not_count_it_twice() -> None:
    calls = TenantCalls(5)
    calls.begin("acme")
    calls.end("acme", (A, 1), 10.2)
    calls.report(A, load(1, acme=1), 10.1)  # asked before, answered after
    assert calls.count("acme", 10.3) == 1


def test_a_call_that_was_not_placed_does_not_count() -> None:
    calls = TenantCalls(5)
    calls.begin("acme")
    calls.end("acme", None, 1.0)
    assert calls.count("acme", 1.0) == 0
    assert not calls._under_way


def test_the_calls_of_a_dead_or_gone_transceiver_count_no_more() -> None:
    calls = TenantCalls(5)
    calls.report(A, load(1, acme=1), 10.0)
    calls.report(B, load(1, acme=1), 10.0)
    calls.begin("acme")
    calls.end("acme", (B, 2), 10.0)
    assert calls.count("acme", 15.0) == 3
    assert calls.count("acme", 15.1) == 0
    calls.report(B, load(0), 15.2)  # started anew: it numbers from the beginning
    assert calls.count("acme", 15.2) == 0
    calls.keep([A])
    assert set(calls._reports) == {A}


def test_memory_is_bounded_where_no_report_comes() -> None:
    calls = TenantCalls(5)
    for number in range(MAX_REMEMBERED + 5):
        calls.begin("acme")
        calls.end("acme", (A, number), 0.0)
    assert len(calls._reports[A].placed) == MAX_REMEMBERED


def test_one_replica_is_exact_whatever_the_order_of_events() -> None:
    """A model with transceivers that have the truth: never more than the limit, and no refusal
    below it but for calls whose end no report has told yet."""
    random = Random(7)
    for _ in range(50):
        calls, limit, now = TenantCalls(5), 5, 0.0
        live: dict[Route, int] = {A: 0, B: 0}
        made: dict[Route, int] = {A: 0, B: 0}
        unseen_ends: list[tuple[Route, float]] = []
        under_way: list[tuple[Route, Load, float]] = []
        for _ in range(300):
            now += 0.01
            route = random.choice((A, B))
            match random.randrange(4):
                case 0:
                    if calls.count("acme", now) < limit:
                        assert sum(live.values()) < limit
                        calls.begin("acme")
                        live[route] += 1
                        made[route] += 1
                        calls.end("acme", (route, made[route]), now)
                    else:
                        assert sum(live.values()) == limit or unseen_ends
                case 1 if live[route]:
                    live[route] -= 1
                    unseen_ends.append((route, now))
                case 2:
                    under_way.append((route, load(made[route], acme=live[route]), now))
                case 3 if under_way:
                    told, report, asked = under_way.pop(0)
                    calls.report(told, report, asked)
                    unseen_ends = [end for end in unseen_ends if end[0] != told or end[1] > asked]
