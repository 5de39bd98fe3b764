"""Virtual time: nothing here waits."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from tests.virtual_loop import VirtualLoop, run_virtual
from usher_transceiver.media.ticker import MAX_CATCH_UP, Ticker


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


def test_a_member_may_leave_at_any_time_and_twice_and_an_idle_ticker_sets_no_timer() -> None:
    async def scenario() -> None:
        ticker = Ticker()
        heard: list[str] = []
        leave_second = ticker.add(lambda _: None, no_failure)

        def first(now: float) -> None:
            heard.append("first")
            leave_second()
            leave_second()
            leave_third()
            leave_first()

        leave_first = ticker.add(first, no_failure)
        leave_third = ticker.add(lambda _: heard.append("third"), no_failure)
        await asyncio.sleep(1)
        assert heard == ["first"]
        assert ticker.ticks == 2
        ticker.add(lambda _: heard.append("late"), no_failure)
        await asyncio.sleep(0.021)
        assert heard == ["first", "late"]
        ticker.stop()
        await asyncio.sleep(1)
        assert heard == ["first", "late"]

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
        for name in ("first", "second"):
            ticker.add(lambda _now, name=name: happened.append(name), no_failure)  # type: ignore[misc]
        await asyncio.sleep(0.021)
        assert happened == ["begin", "first", "second", "end"]
        happened.clear()
        loop().stall(0.041)  # two ticks are caught up at once
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert happened == ["begin", "first", "second", "end"] * 2
        ticker.stop()

    run_virtual(scenario())
