"""How busy a process says it is. Virtual time: nothing here waits."""

from __future__ import annotations

import asyncio

import pytest

from tests.virtual_loop import VirtualLoop, run_virtual
from usher_transceiver.process_load import PROBE_S, WINDOW_S, ProcessLoad


def test_a_stall_of_the_loop_is_told_for_five_seconds_and_then_forgotten() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        load = ProcessLoad(loop.time, lambda: 0.0)
        probing = asyncio.create_task(load.run())
        await asyncio.sleep(2.05)
        assert load.lag == pytest.approx(0, abs=1e-6)
        loop.stall(0.3)
        await asyncio.sleep(PROBE_S)
        assert load.lag == pytest.approx(0.25, abs=0.01)
        await asyncio.sleep(WINDOW_S - 2 * PROBE_S)
        assert load.lag == pytest.approx(0.25, abs=0.01)
        await asyncio.sleep(3 * PROBE_S)
        assert load.lag == pytest.approx(0, abs=1e-6)
        probing.cancel()

    run_virtual(scenario())


def test_cores_are_those_of_the_last_five_seconds() -> None:
    now = used = 0.0
    load = ProcessLoad(lambda: now, lambda: used)
    assert load.cores == 0.0
    for busy in (1.0, 0.0, 2.5):
        for _ in range(round(2 * WINDOW_S / PROBE_S)):
            now += PROBE_S
            used += busy * PROBE_S
            load.probed(0.0)
        assert load.cores == pytest.approx(busy)
    assert load.cpu_seconds == pytest.approx(3.5 * 2 * WINDOW_S)


def test_the_cpu_is_that_of_this_process() -> None:
    clock = iter(range(100))
    load = ProcessLoad(lambda: next(clock) * 0.001)
    before = load.cpu_seconds
    while load.cpu_seconds < before + 0.02:
        pass
    assert load.cores > 0
