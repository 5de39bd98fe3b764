"""What replicas share in Redis, and that nothing fails with it: killed, hanging, with a wrong password, never there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from tests.redis_server import RedisServer, redis_server, sentinel
from tests.signaling_fakes import (
    OFFER,
    OTHER_KEY,
    FakeTransceiver,
    Stack,
    assert_error,
    place,
    signaling,
    until,
    write_files,
)
from tests.signaling_program import HEADERS, program, serving, write_route
from usher_signaling.metrics import Metrics
from usher_signaling.redis_store import RedisStore

pytestmark = pytest.mark.needs("redis-server")

SECRETS = "/v1/realtime/client_secrets"


@contextlib.asynccontextmanager
async def replicas(folder: Path, url: str, **changes: Any) -> AsyncIterator[tuple[Stack, Stack]]:
    """Two replicas over one fleet and one Redis. On a busy machine an answer may take long, so the time-out is."""
    changes = {"redis_timeout": 2.0, "redis_url": url, **changes}
    async with signaling(folder, **changes) as one, signaling(folder, fleet=one.fleet, **changes) as two:
        one.fleet.transceivers[0].max_sessions = 100_000
        yield one, two


async def statuses(*calls: Any) -> list[int]:
    return sorted([response.status_code for response in await asyncio.gather(*calls)])


async def metric(stack: Stack, name: str) -> float:
    text = (await stack.client.get("/metrics")).text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


async def is_away(stack: Stack) -> bool:
    return await metric(stack, "usher_signaling_redis_away") == 1


async def ephemeral(stack: Stack) -> dict[str, str]:
    response = await stack.client.post(SECRETS)
    assert response.status_code == 200
    return {"Authorization": f"Bearer {response.json()['value']}"}


def words(entries: Any) -> list[str]:
    return [entry["event"] for entry in entries if "Redis" in entry["event"]]


async def test_replicas_share_a_rate(tmp_path: Path) -> None:
    async with redis_server() as redis, replicas(tmp_path, redis.url(), rate_limit=0.01, rate_burst=6) as (one, two):
        calls = [place(stack.client) for _ in range(10) for stack in (one, two)]
        assert await statuses(*calls) == [201] * 6 + [429] * 14
        refused = await place(two.client)
        error = assert_error(refused, 429, "rate_limit_exceeded")
        assert 1 < int(refused.headers["retry-after"]) <= 101
        assert error["param"] is None
        # Another tenant has a rate of its own.
        assert (await place(two.client, headers={"Authorization": f"Bearer {OTHER_KEY}"})).status_code == 201


async def test_two_programs_share_a_rate_and_their_logs_have_no_password(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with redis_server("the-right-word") as redis, serving(fake) as url:
        folders = [tmp_path / "one", tmp_path / "two"]
        for folder in folders:
            folder.mkdir()
            write_files(folder, [])
            write_route(folder, {url: fake})
        flags = ["--redis-url", redis.url(), "--rate-limit", "0.01", "--rate-burst", "4", "--redis-timeout", "2"]
        async with (
            program(folders[0], *flags) as one,
            program(folders[1], *flags) as two,
            httpx.AsyncClient(headers=HEADERS) as client,
        ):
            places = [f"{running.url}/v1/realtime/calls" for running in (one, two) for _ in range(6)]
            assert await statuses(*(client.post(place, content=OFFER) for place in places)) == [201] * 4 + [429] * 8
            redis.kill()
            assert (await client.post(places[0], content=OFFER)).status_code in (201, 429)
            assert "usher_signaling_redis_away 0.0" in (await client.get(f"{two.url}/metrics")).text
        for folder in folders:
            assert "-word" not in (folder / "log").read_text()


async def test_redis_keeps_the_same_rule_as_a_replica_and_a_raised_limit_counts_at_once() -> None:
    async with redis_server() as redis:
        store = RedisStore(redis.url(), 2.0, Metrics(), time.monotonic)
        waits = [await store.take("acme", 0.001, 3) for _ in range(5)]
        assert waits[:3] == [0.0] * 3
        assert all(wait is not None and 990 < wait <= 1000 for wait in waits[3:])
        assert [await store.take("acme", 1.0, 2) == 0 for _ in range(3)] == [True, True, False]
        started, taken = time.monotonic(), 0
        while (passed := time.monotonic() - started) < 0.5:
            taken += await store.take("busy", 50.0, 5) == 0
        assert 5 <= taken <= 5 + 50 * (passed + 0.1)
        await store.close()


async def test_a_crowd_behind_sentinels_is_answered_by_the_master_they_name(tmp_path: Path) -> None:
    async with redis_server() as redis, sentinel(tmp_path, redis.port) as port:
        store = RedisStore(f"redis+sentinel://127.0.0.1:{port}/calls/0", 5.0, metrics := Metrics(), time.monotonic)

        async def is_found() -> bool:
            return await store.claim("a", 60) is not None

        await until(is_found)
        failures = metrics.redis_failures._value.get()
        waits = await asyncio.gather(*(store.take("acme", 0.001, 150) for _ in range(200)))
        assert sorted(wait is not None and wait > 0 for wait in waits) == [False] * 150 + [True] * 50
        assert metrics.redis_failures._value.get() == failures
        assert not store.is_away
        await store.close()


async def test_an_ephemeral_key_works_once_at_all_replicas_together(tmp_path: Path) -> None:
    async with redis_server() as redis, replicas(tmp_path, redis.url(), secrets_once=True) as (one, two):
        for _ in range(5):
            key = await ephemeral(one)
            calls = [place(stack.client, headers=key) for _ in range(5) for stack in (one, two)]
            assert await statuses(*calls) == [201] + [401] * 9
            assert_error(await place(two.client, headers=key), 401, "client_secret_used")
        assert one.fleet.session_count == 5


async def test_a_call_that_could_not_be_placed_gives_the_key_back(tmp_path: Path) -> None:
    async with redis_server() as redis, replicas(tmp_path, redis.url(), secrets_once=True) as (one, two):
        key = await ephemeral(one)
        one.fleet.transceivers[0].draining = True
        assert_error(await place(one.client, headers=key), 503, "no_transceiver")
        one.fleet.transceivers[0].draining = False
        await two.app.state.services.directory.refresh()
        assert (await place(two.client, headers=key)).status_code == 201
        assert_error(await place(one.client, headers=key), 401, "client_secret_used")


async def test_what_is_kept_in_redis_expires_and_names_nobody(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rate_limit": 1.0, "secrets_once": True}
    async with redis_server() as server, replicas(tmp_path, server.url(), **changes) as (one, _):
        await place(one.client, headers=await ephemeral(one))
        redis = Redis.from_url(server.url())
        names = [name async for name in redis.scan_iter()]
        assert len(names) == 2
        for name in names:
            assert name.startswith((b"usher:rate:", b"usher:used:"))
            assert b"acme" not in name
            assert 0 < await redis.ttl(name) <= 700
        await redis.aclose()


async def test_a_killed_redis_fails_no_request_and_is_found_again(tmp_path: Path) -> None:
    with capture_logs() as entries:
        async with redis_server() as redis:
            changes: dict[str, Any] = {"rate_limit": 1000.0, "rate_burst": 1000, "secrets_once": True}
            async with replicas(tmp_path, redis.url(), **changes) as (one, two):
                assert (await place(one.client)).status_code == 201
                redis.kill()
                assert await statuses(*(place(one.client) for _ in range(50))) == [201] * 50
                key = await ephemeral(one)
                assert await statuses(*(place(one.client, headers=key) for _ in range(5))) == [201] + [401] * 4
                # Each replica by itself, as the page says.
                assert (await place(two.client, headers=key)).status_code == 201
                assert await is_away(one)
                assert await metric(one, "usher_signaling_redis_failures_total") >= 1
                await redis.start()

                async def is_back() -> bool:
                    assert (await place(one.client)).status_code == 201
                    assert (await place(two.client)).status_code == 201
                    return not await is_away(one) and not await is_away(two)

                await until(is_back)
    assert sorted(words(entries)) == ["Redis is away; this replica goes on by itself"] * 2 + ["Redis is back"] * 2


async def test_a_hanging_redis_costs_a_few_requests_one_time_out(tmp_path: Path) -> None:
    async with redis_server() as redis:
        changes: dict[str, Any] = {"rate_limit": 1000.0, "rate_burst": 1000, "redis_timeout": 0.2}
        async with replicas(tmp_path, redis.url(), **changes) as (one, _):
            assert (await place(one.client)).status_code == 201
            redis.hang()
            started = time.monotonic()
            assert (await place(one.client)).status_code == 201
            assert time.monotonic() - started >= 0.15
            assert await is_away(one)
            failures = await metric(one, "usher_signaling_redis_failures_total")
            started = time.monotonic()
            for _ in range(100):
                assert (await place(one.client)).status_code == 201
            # Without the rule it would be 100 time-outs of 0.2 s.
            assert await metric(one, "usher_signaling_redis_failures_total") - failures <= 10
            redis.go_on()

            async def is_back() -> bool:
                await place(one.client)
                return not await is_away(one)

            await until(is_back)


async def test_a_late_answer_is_not_taken_for_the_answer_to_another_question() -> None:
    async with redis_server() as redis:
        store = RedisStore(redis.url(), 0.3, Metrics(), time.monotonic)
        assert await store.claim("a", 60) is True
        redis.hang()
        assert await store.claim("a", 60) is None
        redis.go_on()

        async def is_back() -> bool:
            return await store.claim("b", 60) is True

        await until(is_back)
        assert [await store.claim("a", 60), await store.claim("b", 60), await store.claim("c", 60)] == [
            False,
            False,
            True,
        ]
        await store.close()


async def test_a_wrong_password_fails_no_request_and_is_in_no_log(tmp_path: Path) -> None:
    with capture_logs() as entries:
        async with redis_server("the-right-word") as redis:
            for url in (redis.url("the-wrong-word"), redis.url("")):
                async with signaling(
                    tmp_path, redis_url=url, redis_timeout=2.0, rate_limit=0.01, rate_burst=2
                ) as stack:
                    calls = [place(stack.client) for _ in range(5)]
                    assert await statuses(*calls) == [201] * 2 + [429] * 3
                    assert await is_away(stack)
    assert "-word" not in str(entries)
    assert [entry["error"] for entry in entries if "Redis" in entry["event"]] == ["AuthenticationError"] * 2


async def test_a_redis_that_is_not_there_keeps_nothing_from_starting(tmp_path: Path) -> None:
    nobody = RedisServer(9)
    async with signaling(tmp_path, redis_url=nobody.url(), rate_limit=100.0) as stack:
        assert (await place(stack.client)).status_code == 201


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n" * 50, b":x\r\n", b"\xff\xfe\r\n", b"$-7\r\n", b""]
)
async def test_something_that_is_no_redis_fails_no_request(tmp_path: Path, answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(100)
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        changes: dict[str, Any] = {
            "redis_url": f"redis://127.0.0.1:{port}/0",
            "rate_limit": 100.0,
            "secrets_once": True,
        }
        async with signaling(tmp_path, **changes) as stack:
            key = await ephemeral(stack)
            assert (await place(stack.client, headers=key)).status_code == 201
            assert (await place(stack.client)).status_code == 201


async def test_a_crowd_has_one_probe_at_a_time() -> None:
    now = 0.0
    store = RedisStore("redis://127.0.0.1:9/0", 5.0, metrics := Metrics(), lambda: now)

    async def ask_all() -> float:
        before = metrics.redis_failures._value.get()
        assert await asyncio.gather(*(store.take("acme", 1.0, 1) for _ in range(200))) == [None] * 200
        return float(metrics.redis_failures._value.get() - before)

    assert await ask_all() >= 1
    assert await ask_all() == 0  # within the pause
    for pause in (0.5, 1, 2, 4, 8, 16, 30, 30):
        now += pause
        assert await ask_all() == 1
        assert await ask_all() == 0
    await store.close()
