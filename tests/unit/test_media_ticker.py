"""Virtual time: nothing here waits."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from tests.virtual_loop import VirtualLoop, run_virtual
from usher_transceiver.media.ticker import GROUP_SIZE, LATENESS_S, MAX_CATCH_UP, PHASES, Ticker


def loop() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


def no_failure(error: Exception) -> None:
    raise AssertionError(error)


def test_every_member_is_called_50_times_a_second_without_drift() -> None:
    async def scenario() -> None:
        ticker = Ticker()
        begin = loop().time()
        times: list[float] = []

        def slow(now: float) -> None:
            times.append(now)
            loop().stall(0.003)

        ticker.add(slow, no_failure)
        await asyncio.sleep(60.01)
        ticker.stop()
        assert len(times) == 3000
        assert times[-1] - begin == pytest.approx(60, abs=0.004)
        assert ticker.late_ticks == ticker.skipped_ticks == 0

    run_virtual(scenario())


@pytest.mark.parametrize(("stall", "caught_up", "skipped"), [(0.05, 2, 0), (0.11, 5, 0), (1.0, 5, 45)])
def test_a_stall_is_caught_up_within_a_bound_and_counted(stall: float, caught_up: int, skipped: int) -> None:
    async def scenario() -> None:
        ticker = Ticker()
        times: list[float] = []
        ticker.add(times.append, no_failure)
        await asyncio.sleep(0.101)
        loop().stall(stall)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(times) - 5 == caught_up <= MAX_CATCH_UP
        assert ticker.late_ticks == 1
        assert ticker.skipped_ticks == skipped
        assert ticker.worst_late == pytest.approx(stall - 0.019, abs=1e-6)
        await asyncio.sleep(0.2)
        assert len(times) == 5 + caught_up + 10
        ticker.stop()

    run_virtual(scenario())


def test_a_member_that_fails_is_removed_and_told_and_the_others_go_on() -> None:
    async def scenario() -> None:
        ticker = Ticker()
        times: list[float] = []
        failures: list[Exception] = []

        def broken(now: float) -> None:
            raise ValueError("broken")

        ticker.add(broken, failures.append)
        ticker.add(times.append, no_failure)
        with capture_logs() as logs:
            await asyncio.sleep(0.101)
        ticker.stop()
        assert len(times) == 5
        assert [str(failure) for failure in failures] == ["broken"]
        assert len(logs) == 1

    run_virtual(scenario())


def test_members_are_spread_over_phases_at_even_distances() -> None:
    async def scenario() -> None:
        ticker = Ticker()
        begin = loop().time()
        times: dict[int, list[float]] = {member: [] for member in range(10)}
        for member, heard in times.items():
            ticker.add(heard.append, no_failure)
            assert len(ticker) == member + 1
        await asyncio.sleep(0.1)
        ticker.stop()
        assert len(ticker) == 0
        offsets = Counter(round((heard[0] - begin) * 1000) % 20 for heard in times.values())
        assert offsets == {0: 3, 5: 3, 10: 2, 15: 2}
        for heard in times.values():
            assert [later - earlier for earlier, later in pairwise(heard)] == pytest.approx([0.02] * (len(heard) - 1))

    run_virtual(scenario())


@pytest.mark.parametrize(("relays", "calls"), [(1, 5), (1, 100), (2, 40), (16, 100), (64, 100)])
def test_members_of_a_group_share_phases_while_the_phases_stay_even(relays: int, calls: int) -> None:
    async def scenario() -> None:
        ticker = Ticker()
        draw = random.Random(relays * 1000 + calls)
        removes = [ticker.add(lambda _now: None, no_failure, draw.randrange(relays)) for _ in range(calls)]
        sizes = [len(phase) for phase in ticker._phases]
        assert sum(sizes) == calls
        assert max(sizes) - min(sizes) <= GROUP_SIZE
        for relay in range(relays):
            members = [phase.groups[relay] for phase in ticker._phases if phase.groups[relay]]
            full, rest = divmod(sum(members), GROUP_SIZE)
            assert len(members) <= min(PHASES, full + bool(rest) + (relays > 1))
        for remove in removes:
            remove()
            remove()
        assert len(ticker) == 0
        assert all(not phase.groups for phase in ticker._phases)

    run_virtual(scenario())


def test_a_phase_that_is_empty_takes_the_next_member_on_the_old_grid() -> None:
    async def scenario() -> None:
        ticker = Ticker()
        begin = loop().time()
        remove = ticker.add(lambda _now: None, no_failure)
        await asyncio.sleep(0.1)
        remove()
        await asyncio.sleep(0.133)
        times: list[float] = []
        ticker.add(times.append, no_failure)
        await asyncio.sleep(0.03)
        ticker.stop()
        assert [time - begin for time in times] == pytest.approx([0.24, 0.26])

    run_virtual(scenario())


def test_the_lag_of_the_loop_is_told_by_how_late_ticks_come() -> None:
    async def scenario() -> None:
        ticker = Ticker()
        ticker.add(lambda _now: None, no_failure)
        await asyncio.sleep(0.101)
        loop().stall(0.0259)  # the next tick is due in 19 ms
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ticker.lateness.counts[0] == 5
        assert ticker.lateness.counts[LATENESS_S.index(0.0075)] == 1
        assert sum(ticker.lateness.counts) == 6
        assert ticker.lateness.sum == pytest.approx(0.0069, abs=1e-6)
        ticker.stop()

    run_virtual(scenario())


def test_a_phase_is_late_by_the_work_of_the_one_before_it_also_while_the_loops_time_stands_still() -> None:
    async def scenario() -> None:
        worked = 0.0

        def work(_now: float) -> None:
            nonlocal worked
            worked += 0.006

        ticker = Ticker(lambda: loop().time() + worked)
        ticker.add(work, no_failure)
        ticker.add(lambda _now: None, no_failure)
        await asyncio.sleep(0.0151)  # the second has had its first tick, at 5 ms
        loop().stall(0.015)  # to 30.1 ms: the first is due at 20, the second at 25
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ticker.stop()
        assert ticker.ticks == 3
        assert ticker.worst_late == pytest.approx(0.0111, abs=1e-6)

    run_virtual(scenario())


def test_a_member_may_leave_at_any_time_and_twice_and_an_idle_ticker_sets_no_timer() -> None:
    async def scenario() -> None:
        ticker = Ticker()
        heard: list[str] = []
        leaves: list[Callable[[], None]] = []

        def first(now: float) -> None:
            heard.append("first")
            for leave in leaves * 2:
                leave()

        # The first and the last one are of one phase: the last one leaves during its own tick.
        leaves = [ticker.add(first, no_failure)]
        leaves += [ticker.add(lambda _: heard.append("other"), no_failure) for _ in range(PHASES)]
        await asyncio.sleep(0.02 - 0.001)
        assert heard == ["other"] * (PHASES - 1)
        await asyncio.sleep(1)
        assert heard == ["other"] * (PHASES - 1) + ["first"]
        assert ticker.ticks == PHASES
        assert all(phase._handle is None for phase in ticker._phases)
        ticker.add(lambda _: heard.append("late"), no_failure)
        await asyncio.sleep(0.01)
        assert heard[PHASES:] == ["late"]
        ticker.stop()
        await asyncio.sleep(1)
        assert heard[PHASES:] == ["late"]

    run_virtual(scenario())


def test_members_get_the_clock_that_stamps_packets_and_not_the_loops() -> None:
    seen: list[float] = []

    async def main() -> None:
        ticker = Ticker(lambda: 1234.5678)
        remove = ticker.add(seen.append, lambda _error: None)
        await asyncio.sleep(0.05)
        remove()
        ticker.stop()

    run_virtual(main())
    assert seen
    assert set(seen) == {1234.5678}


def test_each_tick_is_one_batch_around_all_its_members() -> None:
    async def scenario() -> None:
        happened: list[str] = []

        @contextmanager
        def batch() -> Iterator[None]:
            happened.append("begin")
            yield
            happened.append("end")

        ticker = Ticker(batch=batch)
        for member in range(2 * PHASES):
            name = "first" if member < PHASES else "second"
            ticker.add(lambda _now, name=name: happened.append(name), no_failure)  # type: ignore[misc]
        await asyncio.sleep(0.021)
        assert happened == ["begin", "first", "second", "end"] * PHASES
        happened.clear()
        loop().stall(0.04)  # two ticks of each phase are caught up
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert happened == ["begin", "first", "second", "end"] * 2 * PHASES
        ticker.stop()

    run_virtual(scenario())
