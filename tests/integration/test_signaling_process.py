"""The program itself: its announce line, its end, and clients that are slow, greedy or speak no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.signaling_fakes import API_KEY, OFFER, FakeTransceiver, assert_error, place, until, write_files
from tests.signaling_program import HEADERS, program, serving, write_route
from usher_shell.descriptors import raise_descriptor_limit
from usher_signaling.main import RESERVED_DESCRIPTORS


async def is_closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(65_536), 20) == b""
    return True


async def test_a_call_is_placed_over_real_http_and_sigterm_waits_for_requests_under_way(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    write_files(tmp_path, [])
    async with serving(fake) as url, program(tmp_path, "--load-interval", "0.05") as running:
        write_route(tmp_path, {url: fake})
        async with httpx.AsyncClient(base_url=running.url, headers=HEADERS) as client:

            async def ready() -> bool:
                return bool((await client.get("/readyz")).json()["can_place"])

            await until(ready)
            call = await place(client)
            assert call.status_code == 201
            assert (await client.post(f"{call.headers['location']}/hangup")).status_code == 200

            fake.answer_delay = 0.5
            late = asyncio.create_task(place(client))

            async def under_way() -> bool:
                return len(fake.created) == 2

            await until(under_way)
            running.process.send_signal(signal.SIGTERM)
            assert (await late).status_code == 201
        assert await asyncio.wait_for(running.process.wait(), 20) == 0


async def test_a_transceiver_that_is_not_there_takes_no_call(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    write_files(tmp_path, [])
    write_route(tmp_path, {"http://127.0.0.1:9": fake})
    async with program(tmp_path) as running, httpx.AsyncClient(base_url=running.url, headers=HEADERS) as client:
        assert_error(await place(client), 503, "no_transceiver")
        assert (await client.get("/livez")).status_code == 200


async def test_slow_and_greedy_clients_are_bounded(tmp_path: Path) -> None:
    write_files(tmp_path, [])
    async with program(tmp_path, "--body-deadline", "0.5", "--max-connections", "8") as running:
        # A header that never ends, first on a new connection, then on one that has served a request.
        reader, writer = await running.connect()
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b'{"live":true}')
        for again in (True, False):
            writer.write(b"GET /livez HTTP/1.1\r\nHo")
            answer = await asyncio.wait_for(reader.read(), 20)
            assert answer.startswith(b"HTTP/1.1 408")
            assert b'"header_too_slow"' in answer
            writer.close()
            if again:
                reader, writer = await running.connect()

        # A connection on which nothing ever comes.
        silent_reader, silent_writer = await running.connect()
        assert await is_closed(silent_reader)
        silent_writer.close()

        # A body that never ends.
        head = f"POST /v1/realtime/calls HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
        reader, writer = await running.connect()
        writer.write(f"{head}Content-Type: application/sdp\r\nContent-Length: 9\r\n\r\nv=0".encode())
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"body_too_slow"' in answer
        writer.close()

        # A header that is too long.
        reader, writer = await running.connect()
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)
        with contextlib.suppress(ConnectionResetError):
            assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 4")
        writer.close()

        # More connections than are allowed: those that have waited longest make room.
        kept = [await running.connect() for _ in range(12)]
        for reader, _ in kept[:4]:
            assert await is_closed(reader)
        for reader, writer in (kept[4], kept[11]):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b'{"live":true}')
        for _, writer in kept:
            writer.close()


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_the_soft_limit_on_descriptors_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    write_files(tmp_path, [])
    async with program(tmp_path, descriptors=(256, 4096)) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE) == (4096, 4096)
        assert await metric(client, "usher_signaling_max_connections") == (4096 - RESERVED_DESCRIPTORS) // 2
    assert "fewer connections than --max-connections" in (tmp_path / "log").read_text()


@pytest.mark.programs
async def test_1300_idle_connections_beyond_the_descriptors_do_not_keep_a_call_waiting(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    write_files(tmp_path, [])
    with many_descriptors():
        async with serving(fake) as url, contextlib.AsyncExitStack() as opened:
            write_route(tmp_path, {url: fake})
            running = await opened.enter_async_context(program(tmp_path, descriptors=(1024, 1024)))
            for _ in range(1300):
                _, writer = await running.connect()
                opened.callback(writer.close)
            async with httpx.AsyncClient(base_url=running.url, headers=HEADERS) as client:
                began = time.monotonic()
                assert (await place(client)).status_code == 201
                assert time.monotonic() - began < 1
                evicted = await metric(client, "usher_signaling_connections_evicted_total")
                assert evicted >= 1300 - await metric(client, "usher_signaling_max_connections")
    text = (tmp_path / "log").read_text()
    assert "Too many open files" not in text
    assert 1 <= text.count("connections are full") <= 10


async def test_a_program_without_descriptors_left_goes_on_once_it_has_some(tmp_path: Path) -> None:
    write_files(tmp_path, [])
    async with program(tmp_path) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.get("/livez")).status_code == 200
        held = len(os.listdir(f"/proc/{running.process.pid}/fd"))  # noqa: PTH208 - /proc does not block
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (held + 4, 4096))
        idle = [await running.connect() for _ in range(50)]
        await until(lambda: asyncio.to_thread(lambda: "no descriptor" in (tmp_path / "log").read_text()))
        # The oldest make room, so a new one is served all the same.
        reader, writer = await running.connect()
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 200")
        for _, each in (*idle, (reader, writer)):
            each.close()
    assert (tmp_path / "log").read_text().count("no descriptor") <= 3


@pytest.mark.parametrize("linger", ["0", "30"])
async def test_a_second_signal_ends_it_at_once_and_says_nothing_of_it(tmp_path: Path, linger: str) -> None:
    fake = FakeTransceiver(pod=1)
    fake.answer_delay = 20
    write_files(tmp_path, [])
    flags = ("--grace", "60", "--linger", linger, "--attempt-timeout", "50", "--answer-deadline", "50")
    async with serving(fake) as url:
        write_route(tmp_path, {url: fake})
        async with program(tmp_path, *flags) as running, httpx.AsyncClient(base_url=running.url) as client:
            call = asyncio.create_task(place(client, headers=HEADERS))

            async def under_way() -> bool:
                return bool(fake.created)

            await until(under_way)
            running.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)  # else both would be one
            running.process.send_signal(signal.SIGTERM)
            assert_error(await call, 503, "server_ending")
            assert await asyncio.wait_for(running.process.wait(), 5) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


async def test_what_is_no_http_gets_a_json_error(tmp_path: Path) -> None:
    write_files(tmp_path, [])
    async with program(tmp_path) as running:
        for garbage in (b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"):
            reader, writer = await running.connect()
            writer.write(garbage)
            head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            assert json.loads(body)["error"]["code"] == "bad_http"
            writer.close()


async def test_an_address_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    write_files(tmp_path, [])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "usher_cli", "signaling", "--http", f"127.0.0.1:{taken.getsockname()[1]}"),
            *("--keys-file", str(tmp_path / "keys.json"), "--token-file", str(tmp_path / "token")),
            *("--routes-file", str(tmp_path / "routes.json")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert out == b""
    assert b"can't serve HTTP on 127.0.0.1" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_with_status_0(tmp_path: Path, number: signal.Signals) -> None:
    write_files(tmp_path, [])
    async with program(tmp_path) as running:
        _, idle = await running.connect()  # an idle connection must not hold it up
        running.process.send_signal(number)
        assert await asyncio.wait_for(running.process.wait(), 5) == 0
        idle.close()


async def test_a_request_that_takes_longer_than_the_grace_does_not_hold_it_up(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    write_files(tmp_path, [])
    flags = ("--load-interval", "0.05", "--grace", "1", "--attempt-timeout", "50", "--answer-deadline", "50")
    async with serving(fake) as url:
        write_route(tmp_path, {url: fake})
        async with program(tmp_path, *flags) as running:
            reader, writer = await running.connect()
            head = f"POST /v1/realtime/calls HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
            fake.answer_delay = 8

            async def arrived() -> bool:
                return bool(fake.created)

            writer.write(f"{head}Content-Type: application/sdp\r\nContent-Length: {len(OFFER)}\r\n\r\n{OFFER}".encode())
            await until(arrived)
            running.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(running.process.wait(), 7) == 0
            writer.close()
            assert reader is not None
