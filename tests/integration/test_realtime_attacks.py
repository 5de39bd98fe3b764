"""A Realtime server, or who stands in its way, that never lets a handshake end: the call does, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.integration.test_realtime_connection import backends, begin, descriptors, port_of
from tests.transceiver_rig import until

CONNECT_LIMIT_S = 0.5
UPGRADES = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"

Answer = Callable[[], AsyncIterator[bytes]]


async def a_byte_at_a_time() -> AsyncIterator[bytes]:
    for byte in UPGRADES:
        yield bytes((byte,))
        await asyncio.sleep(0.02)
    while True:
        yield b"x"
        await asyncio.sleep(0.02)


async def headers_without_end() -> AsyncIterator[bytes]:
    yield UPGRADES
    for number in range(1 << 30):
        yield b"x-%d: %s\r\n" % (number, b"y" * 1_000)


async def a_header_without_end() -> AsyncIterator[bytes]:
    yield UPGRADES + b"x: "
    while True:
        yield b"y" * 10_000


async def a_refusal_a_byte_at_a_time() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 1000\r\n\r\n"
    while True:
        yield b" "
        await asyncio.sleep(0.02)


async def a_refusal_without_end() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 401 Unauthorized\r\n\r\n"
    while True:
        yield b" " * 100_000


async def nothing() -> AsyncIterator[bytes]:
    while True:
        yield b""
        await asyncio.sleep(0.02)


ANSWERS = (
    a_byte_at_a_time,
    a_header_without_end,
    a_refusal_a_byte_at_a_time,
    a_refusal_without_end,
    headers_without_end,
    nothing,
)


def waited_for_cpu_s() -> float:
    """Return how long this thread could have run while others had the CPU, in all."""
    _, waited_ns, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(waited_ns) / 1e9


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.__name__)
async def test_a_handshake_that_never_ends_ends_the_call_in_time_and_leaves_nothing(
    answer: Answer,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            async for data in answer():
                writer.write(data)
                await writer.drain()
                if reader.at_eof():
                    break
        writer.transport.abort()

    tasks, files = len(asyncio.all_tasks()), descriptors()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        makes = backends(port_of(server), realtime_connect_limit=CONNECT_LIMIT_S)
        began, waited_s = time.monotonic(), waited_for_cpu_s()
        backend, call = await begin(makes)
        await until(lambda: call.ended, "the call is over")
        assert time.monotonic() - began - (waited_for_cpu_s() - waited_s) < CONNECT_LIMIT_S + 2.0
        assert call.ended == "upstream_failed"
        [error] = call.events
        assert error["error"]["code"] in ("upstream_timeout", "upstream_handshake")
        await backend.close("upstream_failed")
        assert makes.counters.held_bytes == 0
    await until(lambda: descriptors() <= files, "descriptors are as before")
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "tasks are as before")
