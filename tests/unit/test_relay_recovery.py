"""The control side of recovery by Redis in virtual time: outages, slowness, refusals, bounds. Redis is a fake here."""

from __future__ import annotations

import asyncio
import base64
import functools
import itertools
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError
from structlog.testing import capture_logs

from tests.relay_rig import POD_A, POD_B, client
from tests.virtual_loop import run_virtual
from usher_core.errors import LocalError
from usher_core.keys import KeyFile
from usher_relay.hop_codec import route_bytes
from usher_relay.store import recovery as module
from usher_relay.store.breaker import FIRST_PAUSE, LONGEST_PAUSE, MADE_UP_FOR, MOST_LATE, Breaker
from usher_relay.store.counters import Lookup, Refusal, StoreCounters, Write
from usher_relay.store.mapping import LIFE, Mappings, name_of
from usher_relay.store.recovery import NAMES_AT_ONCE, Recovery
from usher_relay.store.redis_store import LOOKUPS_AT_ONCE, WRITE_AGAIN_AFTER, RedisStore
from usher_shell.redis_client import redis_client

CLIENT, OTHER = client(5000), client(5001)
ROUTE = route_bytes(POD_A)
UNIX = 1_800_000_000.0
KEYS = KeyFile.model_validate({"version": 1, "store": [{"id": 1, "key": base64.b64encode(bytes(32)).decode()}]})
MAPPINGS = Mappings(KEYS)


def sealed(path_key: bytes, route: bytes = ROUTE) -> bytes:
    value = MAPPINGS.seal(path_key, route, UNIX)
    assert value is not None
    return value


class FakeDoor:
    """The data path's side. What is written to `pipe` wakes the control side."""

    def __init__(self) -> None:
        self.questions: list[bytes] = []
        self.named: list[tuple[bytes, bytes]] = []
        self.answers: dict[bytes, bytes | None] = {}
        self.loaded: dict[bytes, bytes] = {}
        self._reader, self._writer = os.pipe()

    def fileno(self) -> int:
        return self._reader

    def ask(self, *path_keys: bytes) -> None:
        self.questions += path_keys
        os.write(self._writer, b"\0")

    def take_questions(self) -> list[bytes]:
        os.read(self._reader, 100)
        taken, self.questions = self.questions, []
        return taken

    def answer(self, answers: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.answers.update(answers)

    def take_named(self) -> list[tuple[bytes, bytes]]:
        taken, self.named = self.named, []
        return taken

    def load(self, mappings: Sequence[tuple[bytes, bytes]]) -> None:
        self.loaded.update(mappings)

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


@dataclass
class FakeRedis:
    """As much of a Redis as a relay uses; `delay` seconds late, or failing with `error`."""

    held: dict[bytes, Any] = field(default_factory=dict)
    delay: float = 0.001
    error: Exception | None = None
    write_error: Exception | None = None
    pings: int = 0
    commands: list[int] = field(default_factory=list)
    """How many names each MGET had."""
    disconnected: int = 0
    under_way: int = 0
    most_under_way: int = 0

    async def _work(self) -> None:
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error

    async def ping(self) -> None:
        self.pings += 1
        await self._work()

    async def mget(self, names: Sequence[bytes]) -> list[Any]:
        self.commands.append(len(names))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self._work()
        finally:
            self.under_way -= 1
        return [self.held.get(name) for name in names]

    async def scan(self, cursor: int, match: bytes, count: int) -> tuple[int, list[bytes]]:
        await self._work()
        names = sorted(self.held)[cursor : cursor + count]
        end = cursor + count
        return (end if end < len(self.held) else 0), [name for name in names if name.startswith(match[:-1])]

    def pipeline(self, transaction: bool) -> FakePipeline:
        assert not transaction
        return FakePipeline(self)

    @property
    def connection_pool(self) -> FakeRedis:
        return self

    async def disconnect(self, inuse_connections: bool) -> None:
        self.disconnected += 1

    async def aclose(self) -> None:
        pass


@dataclass
class FakePipeline:
    redis: FakeRedis
    entries: list[tuple[bytes, bytes]] = field(default_factory=list)

    def set(self, name: bytes, value: bytes, ex: int) -> None:
        assert ex == LIFE
        self.entries.append((name, value))

    async def execute(self, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        assert len(self.entries) <= NAMES_AT_ONCE
        await self.redis._work()
        if self.redis.write_error is not None:
            return [self.redis.write_error] * len(self.entries)
        self.redis.held.update(self.entries)
        return [True] * len(self.entries)


@dataclass
class Stack:
    redis: FakeRedis
    door: FakeDoor
    store: RedisStore
    recovery: Recovery
    counters: StoreCounters

    async def asks(self, *path_keys: bytes) -> list[bytes | None]:
        """Look up; wait for the answers."""
        self.door.answers.clear()
        self.door.ask(*path_keys)
        await until(lambda: all(path_key in self.door.answers for path_key in path_keys))
        return [self.door.answers[path_key] for path_key in path_keys]

    def looked_up(self) -> dict[Lookup, int]:
        return {result: count for result, count in self.counters.lookups.items() if count}

    def written(self) -> dict[Write, int]:
        return {result: count for result, count in self.counters.writes.items() if count}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # time is a number here
            await asyncio.sleep(0.001)


@asynccontextmanager
async def stack(redis: FakeRedis | None = None, *, up: bool = True, max_loaded: int = 1_000) -> AsyncIterator[Stack]:
    redis, door, counters = redis or FakeRedis(), FakeDoor(), StoreCounters()
    loop = asyncio.get_running_loop()
    client: Any = redis
    store = RedisStore(client, 0.05, counters, loop.time, random.Random(1))
    recovery = Recovery(door, store, MAPPINGS, [1], max_loaded, counters, loop.time, lambda: UNIX)
    task = asyncio.create_task(recovery.run())
    try:
        if up:
            await until(lambda: store.is_up)
        yield Stack(redis, door, store, recovery, counters)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        door.close()


def words(entries: Iterable[Any]) -> list[str]:
    return [entry["event"].split(";")[0] for entry in entries if "Redis" in entry["event"]]


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    return run


UP, AWAY = "Redis answers: it is asked for unknown clients", "Redis is away"


@virtual
async def test_a_client_that_one_relay_names_another_finds() -> None:
    redis = FakeRedis()
    async with stack(redis) as one, stack(redis) as two:
        one.door.named = [(CLIENT, route_bytes(POD_B)), (CLIENT, ROUTE)]
        await until(lambda: redis.held)
        assert len(redis.held) == 1, "the newest wins"
        assert await two.asks(CLIENT, OTHER) == [ROUTE, None]
        assert two.looked_up() == {Lookup.FOUND: 1, Lookup.MISSED: 1}
        assert one.written() == {Write.WRITTEN: 1}


@virtual
async def test_what_redis_holds_is_believed_only_with_a_mac_for_this_client() -> None:
    redis = FakeRedis({name_of(CLIENT): sealed(OTHER), name_of(OTHER): b"x"})
    async with stack(redis) as relay:
        assert await relay.asks(CLIENT, OTHER) == [None, None]
        assert relay.looked_up() == {Lookup.REFUSED: 2}
        assert relay.counters.refusals[Refusal.MAC] >= 1
        assert relay.counters.refusals[Refusal.LENGTH] >= 1


@virtual
async def test_an_outage_of_a_minute_costs_no_wait_one_line_each_way_and_few_probes() -> None:
    with capture_logs() as entries:
        async with stack() as relay:
            redis, loop = relay.redis, asyncio.get_running_loop()
            redis.error = RedisConnectionError("gone")
            assert await relay.asks(CLIENT) == [None]
            pings = redis.pings
            gone_at = loop.time()
            while loop.time() < gone_at + 60:
                before = loop.time()
                assert await relay.asks(CLIENT) == [None]
                assert loop.time() - before <= 0.002, "nobody waits for a Redis that is known to be away"
                relay.door.named.append((client(int(loop.time() * 10) & 0xFFFF), ROUTE))
                await asyncio.sleep(0.1)
            assert redis.pings - pings <= 60 / (LONGEST_PAUSE / 2) + 8
            assert words(entries) == [UP, AWAY]
            assert relay.counters.queued <= 610
            redis.error = None
            redis.held.clear()
            await until(lambda: relay.store.is_up)
            assert loop.time() - gone_at <= 60 + LONGEST_PAUSE + 1
            await until(lambda: relay.counters.queued == 0)
            assert relay.counters.writes[Write.WRITTEN] > 100, "what is fresh is written then"
            assert relay.counters.writes[Write.LATE] > 100, "and nothing that may be over"
    assert words(entries) == [UP, AWAY, UP]


@virtual
async def test_a_redis_that_hangs_costs_three_look_ups_their_time() -> None:
    with capture_logs() as entries:
        async with stack() as relay:
            relay.redis.delay = 3_600
            loop = asyncio.get_running_loop()
            begin = loop.time()
            for _ in range(100):
                assert await relay.asks(CLIENT) == [None]
            assert loop.time() - begin <= MOST_LATE * 0.05 + 1
            assert relay.looked_up() == {Lookup.FAILED: MOST_LATE, Lookup.AWAY: 100 - MOST_LATE}
    assert words(entries) == [UP, AWAY]


@virtual
async def test_a_redis_that_is_always_too_late_counts_as_away_without_flapping() -> None:
    with capture_logs() as entries:
        async with stack() as relay:
            relay.redis.delay = 0.2
            for _ in range(200):
                await relay.asks(CLIENT)
                await asyncio.sleep(0.3)
            assert relay.counters.lookups[Lookup.FAILED] == MOST_LATE
            relay.redis.delay = 0.001
            await until(lambda: relay.store.is_up)
    assert words(entries) == [UP, AWAY, UP]


@virtual
async def test_seldom_late_answers_are_no_outage() -> None:
    async with stack() as relay:
        relay.redis.held[name_of(CLIENT)] = sealed(CLIENT)
        for _ in range(20):
            relay.redis.delay = 0.1
            assert await relay.asks(CLIENT) == [None]
            relay.redis.delay = 0.001
            for _ in range(round(1 / MADE_UP_FOR)):
                assert await relay.asks(CLIENT) == [ROUTE]
        assert relay.store.is_up


@virtual
async def test_a_redis_that_is_late_every_other_time_is_away_most_of_the_time_so_it_meets_few_connections() -> None:
    with capture_logs() as entries:
        async with stack() as relay:
            late = itertools.cycle((True, False))
            for _ in range(1_200):
                relay.redis.delay = 0.1 if next(late) else 0.001
                await relay.asks(CLIENT)
                relay.redis.delay = 0.001
                await asyncio.sleep(0.05)
            assert relay.counters.lookups[Lookup.FAILED] < 200, "each of them has cost a connection"
    assert len(words(entries)) < 60


@virtual
async def test_a_redis_that_is_not_there_at_the_start_is_found_later_and_loaded_then() -> None:
    with capture_logs() as entries:
        redis = FakeRedis({name_of(CLIENT): sealed(CLIENT)}, error=OSError("refused"))
        async with stack(redis, up=False) as relay:
            await asyncio.sleep(30)
            assert await relay.asks(CLIENT) == [None]
            redis.error = None
            await until(lambda: relay.door.loaded)
    assert words(entries) == [AWAY, UP]


@pytest.mark.parametrize("error", [OutOfMemoryError("OOM"), ReadOnlyError("READONLY")])
@virtual
async def test_a_redis_that_refuses_writes_is_still_read(error: Exception) -> None:
    with capture_logs() as entries:
        async with stack() as relay:
            relay.redis.held[name_of(CLIENT)] = sealed(CLIENT)
            relay.redis.write_error = error
            for number in range(40):
                relay.door.named.append((client(number), ROUTE))
                assert await relay.asks(CLIENT) == [ROUTE]
                await asyncio.sleep(0.5)
            assert relay.store.refuses_writes
            assert relay.counters.writes[Write.FAILED] <= 40
            assert (relay.redis.disconnected > 0) is isinstance(error, ReadOnlyError)
            relay.redis.write_error = None
            await asyncio.sleep(WRITE_AGAIN_AFTER + 1)
            relay.door.named.append((OTHER, ROUTE))
            await until(lambda: name_of(OTHER) in relay.redis.held)
            assert not relay.store.refuses_writes
    assert words(entries) == [UP, "Redis refuses writes", "Redis takes writes again"]


@pytest.mark.parametrize("garbage", [[], ["text"], [1], "OK", None, {}])
@virtual
async def test_an_answer_that_is_no_answer_is_a_failure(garbage: Any) -> None:
    async with stack() as relay:

        async def mget(_names: object) -> Any:
            return garbage

        relay.redis.mget = mget  # type: ignore[assignment,method-assign]
        assert await relay.asks(CLIENT) == [None]
        assert relay.looked_up() == {Lookup.FAILED: 1}


@virtual
async def test_look_ups_are_bundled_and_bounded() -> None:
    async with stack() as relay:
        await until(lambda: relay.counters.loaded == 0)
        relay.redis.delay = 0.04
        relay.redis.commands.clear()
        many = [client(number) for number in range(6 * NAMES_AT_ONCE)]
        assert await relay.asks(*many) == [None] * len(many)
        assert relay.redis.commands == [NAMES_AT_ONCE] * LOOKUPS_AT_ONCE
        assert relay.redis.most_under_way == LOOKUPS_AT_ONCE
        await until(lambda: relay.redis.under_way == 0)
        assert relay.looked_up() == {
            Lookup.BUSY: 2 * NAMES_AT_ONCE,
            Lookup.MISSED: LOOKUPS_AT_ONCE * NAMES_AT_ONCE,
        }


@virtual
async def test_the_queue_of_writes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stack(FakeRedis(error=OSError()), up=False) as relay:
        relay.door.named = [(client(number), ROUTE) for number in range(module.QUEUE + 5)]
        await until(lambda: relay.counters.queued)
        assert relay.counters.queued == module.QUEUE
        assert relay.written() == {Write.LOST: 5}


@virtual
async def test_what_a_failing_write_carried_is_written_later() -> None:
    async with stack() as relay:
        relay.redis.error = RedisConnectionError("gone")
        relay.door.named = [(client(number), ROUTE) for number in range(600)]
        await until(lambda: not relay.store.is_up)
        relay.redis.error = None
        await until(lambda: len(relay.redis.held) == 600)
        assert relay.written() == {Write.WRITTEN: 600}


@virtual
async def test_the_mappings_of_this_pool_are_loaded_at_the_start_up_to_a_bound() -> None:
    held: dict[bytes, Any] = {name_of(client(number)): sealed(client(number)) for number in range(2_500)}
    held[name_of(client(7, listener=2))] = sealed(client(7, listener=2))
    held[b"usher:rate:1"] = b"1"
    held[name_of(OTHER)] = sealed(CLIENT)
    held[b"usher:flow:0001:nonsense"] = sealed(CLIENT)
    async with stack(FakeRedis(held), max_loaded=5_000) as relay:
        await until(lambda: len(relay.door.loaded) == 2_500)
        await asyncio.sleep(1)
        assert relay.counters.loaded == 2_500
        assert relay.counters.refusals[Refusal.MAC] == 1
    async with stack(FakeRedis(held), max_loaded=100) as relay:
        await asyncio.sleep(1)
        assert (len(relay.door.loaded), relay.counters.loaded) == (100, 100)


@virtual
async def test_a_fault_of_ours_is_logged_and_the_rest_goes_on() -> None:
    with capture_logs() as entries:
        async with stack() as relay:
            whole = relay.door.take_named
            faults = iter([True])

            def faulty() -> list[tuple[bytes, bytes]]:
                if next(faults, False):
                    raise AssertionError("a fault made by this test")
                return whole()

            relay.door.take_named = faulty  # type: ignore[method-assign]
            await until(lambda: any("fault of ours" in entry["event"] for entry in entries))
            relay.door.named = [(CLIENT, ROUTE)]
            await until(lambda: relay.redis.held)


@virtual
async def test_new_keys_count_at_once_and_a_file_without_any_is_refused() -> None:
    fresh = {"version": 1, "store": [{"id": 2, "key": base64.b64encode(bytes(range(32))).decode()}]}
    async with stack() as relay:
        with pytest.raises(LocalError):
            relay.recovery.set_keys(KeyFile(version=1))
        relay.redis.held[name_of(CLIENT)] = sealed(CLIENT)
        assert await relay.asks(CLIENT) == [ROUTE]
        relay.recovery.set_keys(KeyFile.model_validate(fresh))
        assert await relay.asks(CLIENT) == [None]
        assert relay.counters.refusals[Refusal.KEY] == 1


def test_probes_grow_seldom_and_are_spread() -> None:
    breakers = [Breaker(random.Random(seed)) for seed in range(100)]
    for breaker in breakers:
        now = 0.0
        for tries in range(20):
            assert breaker.may_probe(now)
            assert breaker.failed(now) is (tries == 0)
            assert not breaker.may_probe(now + FIRST_PAUSE / 2 - 0.001)
            now += LONGEST_PAUSE
    first = {breaker._probe_at for breaker in breakers}
    assert len(first) == 100
    assert max(first) - min(first) > LONGEST_PAUSE / 4


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("redis://:word@redis.example:6380/2", None),
        ("rediss://user:word@redis.example/0", None),
        ("unix:///run/redis.sock", None),
        ("redis+sentinel://:word@a:26379,b:26380/calls/3", [("a", 26379), ("b", 26380)]),
        ("rediss+sentinel://user:word@[fd00::1]:26379/calls?sentinel_password=other", [("fd00::1", 26379)]),
    ],
)
def test_urls_of_redis(url: str, hosts: list[tuple[str, int]] | None) -> None:
    pool: Any = redis_client(url, max_connections=1, connect_within=1.0, answer_within=1.0).connection_pool
    made = pool.make_connection()
    if hosts is None:
        return
    manager = pool.sentinel_manager
    found = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    assert [(each["host"], each["port"]) for each in found] == hosts
    assert pool.service_name == "calls"
    assert (made.password, made.db) == ("word", 3 if "/3" in url else 0)
    assert found[0]["password"] == ("other" if "other" in url else None)
    assert ("SSL" in type(made).__name__) is url.startswith("rediss")


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a:26379",
        "redis+sentinel://:word@a/calls",
        "redis://:word@host:x/0",
        "redis://:word@host/0?db=x",
    ],
)
def test_a_url_that_can_t_be_read_is_a_local_error_without_it(url: str) -> None:
    with pytest.raises(LocalError) as caught:
        _ = redis_client(url, max_connections=1, connect_within=1.0, answer_within=1.0)
    assert "can't be read" in str(caught.value)
    assert ":word" not in str(caught.value)


@pytest.mark.parametrize("address", ["rediss://:word@host/0", "rediss+sentinel://:word@a:26379/calls"])
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("ssl_ca_cert=/x", "'ssl_ca_cert'"),
        ("ssl_ca_certs=/x&pasword=word", "'pasword'"),
        ("retry=x", "'retry'"),
        ("connection_class=x", "'connection_class'"),
        ("db=x", "can't be read"),
        ("x=y:word@host/0", "written %3F"),
        ("word@host/0", "written %3F"),
        ("protocol=x", "can't be read"),
        ("ssl_cert_reqs=perhaps", "can't be read"),
    ],
)
def test_an_option_that_is_none_is_found_before_the_first_question(address: str, option: str, told: str) -> None:
    with pytest.raises(LocalError) as caught:
        _ = redis_client(f"{address}?{option}", max_connections=1, connect_within=1.0, answer_within=1.0)
    assert told in str(caught.value)
    assert "word@" not in str(caught.value)
    assert "=word" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "unix", "redis+sentinel"])
def test_an_option_of_tls_without_tls_is_a_local_error(scheme: str) -> None:
    with pytest.raises(LocalError, match="ssl_ca_certs, but no TLS"):
        _ = redis_client(f"{scheme}://a:1/b?ssl_ca_certs=/x", max_connections=1, connect_within=1.0, answer_within=1.0)
