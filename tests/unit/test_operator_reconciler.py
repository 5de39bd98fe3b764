"""How looks at pools follow one another."""

import asyncio
from typing import Any

import pytest

from tests.transceiver_pools import NOW, make_plan, make_pod, make_pool
from usher_operator.actions import Tell
from usher_operator.apply import Fault
from usher_operator.metrics import OperatorMetrics
from usher_operator.reconciler import Look, PoolKey, Reconciler, news, with_faults

POOL = PoolKey("TransceiverPool", "fleet", "voice")


class Rig(Reconciler):
    """Looks that end when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0
        nothing: Any = None
        super().__init__(
            nothing, nothing, nothing, nothing, nothing, OperatorMetrics(), lambda: self.now, lambda: self.now
        )
        self.looks = 0
        self.under_way = 0
        self.may_end = asyncio.Event()
        self.outcome = Look(again=3600.0)

    async def _attempt(self, *_: Any) -> Look:
        self.looks += 1
        self.under_way += 1
        assert self.under_way == 1, "two looks at one pool at a time"
        try:
            await self.may_end.wait()
        finally:
            self.under_way -= 1
        return self.outcome


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (nothing tells of it)
            await asyncio.sleep(0)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_drain_is_woken_though_the_pool_is_no_longer_followed(rig: Rig) -> None:
    rig.may_end.set()
    following = asyncio.create_task(rig.follow(POOL))
    await until(lambda: rig.looks == 1)
    draining = asyncio.create_task(rig.drain(POOL, at_most=7200.0))
    await until(lambda: rig.looks == 2)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    rig.outcome = Look(again=0.0, done=True)
    rig.wake(POOL)
    async with asyncio.timeout(10):
        assert await draining


async def test_a_pool_that_is_followed_and_drained_has_one_look_at_a_time(rig: Rig) -> None:
    following = asyncio.create_task(rig.follow(POOL))
    await until(lambda: rig.looks == 1)
    draining = asyncio.create_task(rig.drain(POOL, at_most=7200.0))
    rig.outcome = Look(again=0.0, done=True)
    rig.may_end.set()
    async with asyncio.timeout(10):
        assert await draining
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_nothing_is_remembered_of_a_pool_that_nobody_looks_at(rig: Rig) -> None:
    rig.may_end.set()
    rig.outcome = Look(again=0.0, done=True)
    await rig.drain(POOL, at_most=1.0)
    assert rig._states == {}


def test_while_something_is_refused_nobody_is_told_that_all_is_well() -> None:
    pool, fault = make_pool({"replicas": 1}), Fault("Refused", "The API server refuses Deployment fleet/voice")
    good = make_plan(pool, make_pod()).status
    refused = with_faults(good, (fault,), pool, NOW)
    before = make_pool({"replicas": 1}, dict(good))
    assert news(refused, (fault,), before, {}, NOW).events == (Tell("Warning", fault.reason, fault.message),)
    before = make_pool({"replicas": 1}, dict(refused))
    assert news(refused, (fault,), before, {}, NOW).events == (Tell("Warning", fault.reason, fault.message),)
    assert [told.reason for told in news(good, (), before, {}, NOW).events] == ["Ready"]
