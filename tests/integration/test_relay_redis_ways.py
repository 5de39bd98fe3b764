"""The ways to a Redis that operators use: TLS, Sentinels and their failovers, a password that changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from tests.certificates import write_certificate
from tests.redis_server import RedisServer, free_port, running, sentinel
from tests.signaling_fakes import until
from usher_relay.store.counters import StoreCounters
from usher_relay.store.redis_store import ANSWER_WITHIN, CONNECT_WITHIN, MAX_CONNECTIONS, RedisStore
from usher_shell.redis_client import redis_client

pytestmark = [pytest.mark.needs("redis-server"), pytest.mark.programs]

TIMEOUT = 0.2
"""Of a look-up, on a busy machine."""
UP, AWAY = "Redis answers: it is asked for unknown clients", "Redis is away"


@contextlib.asynccontextmanager
async def keeping(url: str) -> AsyncIterator[RedisStore]:
    """A store that is kept up."""
    client = redis_client(
        url, max_connections=MAX_CONNECTIONS, connect_within=CONNECT_WITHIN, answer_within=ANSWER_WITHIN
    )
    store = RedisStore(client, TIMEOUT, StoreCounters(), time.monotonic)
    keeper = asyncio.create_task(store.keep())
    try:
        yield store
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def is_up(store: RedisStore) -> None:
    async def up() -> bool:
        return store.is_up

    await until(up)


def words(entries: Iterable[Any]) -> list[str]:
    return [entry["event"].split(";")[0] for entry in entries if entry["event"].startswith("Redis")]


async def test_tls_with_a_ca_of_ones_own(tmp_path: Path) -> None:
    certificate, secret = write_certificate(tmp_path)
    port = free_port()
    flags = ("--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(secret))
    server = RedisServer(free_port(), flags=(*flags, "--tls-auth-clients", "no"))
    with capture_logs() as entries:
        async with running(server):
            async with keeping(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}") as store:
                await is_up(store)
                assert await store.write([(b"a", b"1")], 60) == 1
                assert await store.look_up([b"a", b"b"]) == [b"1", None]
            async with keeping(f"rediss://127.0.0.1:{port}/0") as store:

                async def is_known() -> bool:
                    return len(words(entries)) == 2

                await until(is_known)
                assert not store.is_up, "nobody has signed it for us"
    assert words(entries) == [UP, AWAY]


async def test_a_failover_behind_sentinels_is_followed(tmp_path: Path) -> None:
    master, second = RedisServer(free_port()), RedisServer(free_port())
    second.flags = ("--replicaof", f"127.0.0.1 {master.port}")
    with capture_logs() as entries:
        async with running(master, second), sentinel(tmp_path, master.port) as port:
            await knows_a_replica(port)
            async with keeping(f"redis+sentinel://127.0.0.1:{port}/calls/0") as store:
                await is_up(store)
                assert await store.write([(b"before", b"1")], 60) == 1
                await has(second, b"before")
                master.kill()

                async def writes() -> bool:
                    return store.takes_writes and await store.write([(b"after", b"2")], 60) == 1

                await until(writes, 20)
                assert await store.look_up([b"before", b"after"]) == [b"1", b"2"]
    assert words(entries) in ([UP, AWAY, UP], [UP, AWAY, UP, "Redis refuses writes", "Redis takes writes again"])


async def test_a_password_that_becomes_right_is_found_out() -> None:
    server = RedisServer(free_port(), "one")
    with capture_logs() as entries:
        async with running(server), keeping(server.url("other")) as store:

            async def is_known() -> bool:
                return AWAY in words(entries)

            await until(is_known)
            admin: Any = Redis.from_url(server.url())
            await admin.config_set("requirepass", "other")
            await admin.aclose()
            await is_up(store)
    assert words(entries) == [AWAY, UP]


async def knows_a_replica(port: int) -> None:
    async def known() -> bool:
        finder: Any = Redis(port=port)
        try:
            return len(await finder.execute_command("SENTINEL", "REPLICAS", "calls")) == 1
        except RedisError:
            return False
        finally:
            await finder.aclose()

    await until(known, 20)


async def has(server: RedisServer, name: bytes) -> None:
    async def there() -> bool:
        reader: Any = Redis(port=server.port)
        try:
            return bool(await reader.exists(name))
        finally:
            await reader.aclose()

    await until(there)
