"""A crowd of questions to Redis: one that finds no free connection says nothing of Redis. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.virtual_loop import run_virtual
from usher_signaling import redis_store
from usher_signaling.metrics import Metrics
from usher_signaling.redis_store import RedisStore

TIMEOUT_S = 1.0


class SlowRedis:
    """Answers each question after a while."""

    def __init__(self, takes: float) -> None:
        self._takes = takes
        self.asked = 0

    async def set(self, _name: str, _value: int, *, nx: bool, ex: int) -> bool:
        assert nx
        assert ex
        self.asked += 1
        await asyncio.sleep(self._takes)
        return True

    def register_script(self, _script: str) -> Callable[..., Awaitable[Any]]:
        return lambda **_: asyncio.sleep(0, "0")


class Crowd:
    """Many questions at once, and what came of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: float) -> None:
        self.redis, self.metrics = SlowRedis(takes), Metrics()
        monkeypatch.setattr(redis_store, "redis_client", lambda *_arguments, **_options: self.redis)
        monkeypatch.setattr(redis_store, "MAX_CONNECTIONS", 4)
        self.store = RedisStore("redis://nowhere", TIMEOUT_S, self.metrics, self._now)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def ask(self, count: int) -> list[bool | None]:
        began = self._now()
        answers = await asyncio.gather(*(self.store.claim(f"key {number}", 60) for number in range(count)))
        assert self._now() - began <= TIMEOUT_S + 1e-6, "none takes longer than the time-out"
        return answers

    def counted(self) -> tuple[float, float]:
        return self.metrics.redis_crowded._value.get(), self.metrics.redis_failures._value.get()


def test_who_finds_no_connection_in_time_goes_on_without_and_redis_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, takes=0.3)

    async def run() -> None:
        # Two rounds of four begin within the half of the time-out that a question may wait.
        assert sorted(map(str, await crowd.ask(20))) == ["None"] * 12 + ["True"] * 8
        assert crowd.counted() == (12, 0)
        assert not crowd.store.is_away
        assert await crowd.ask(4) == [True] * 4, "places are given back"

    run_virtual(run())


def test_a_redis_that_hangs_is_away_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, takes=60)

    async def run() -> None:
        assert await crowd.ask(20) == [None] * 20
        assert crowd.counted() == (16, 4)
        assert crowd.store.is_away
        assert crowd.redis.asked == 4
        assert await crowd.ask(20) == [None] * 20
        assert crowd.redis.asked == 4, "nobody asks within the pause"

    run_virtual(run())
