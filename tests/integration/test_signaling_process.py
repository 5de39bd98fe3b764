"""The program itself: its announce line, its end, and clients that are slow, greedy or speak no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn

from tests.signaling_fakes import API_KEY, OFFER, FakeTransceiver, assert_error, place, until, write_files
from usher_core.routes import RouteFile

HEADERS = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/sdp"}


@dataclass
class Program:
    process: asyncio.subprocess.Process
    url: str

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def program(folder: Path, *flags: str) -> AsyncIterator[Program]:
    """Run `usher signaling` on a free port until it is announced; kill it in the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "usher_cli", "signaling", "--http", "127.0.0.1:0"),
        *("--keys-file", str(folder / "keys.json"), "--token-file", str(folder / "token")),
        *("--routes-file", str(folder / "routes.json"), "--api-keys-file", str(folder / "api-keys")),
        *("--advertise", "1=127.0.0.1:3478", *flags),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        announced = json.loads(line)
        assert announced == {"ready": True, "program": "signaling", "http": announced["http"]}
        yield Program(process, announced["http"])
    finally:
        if process.returncode is None:
            process.kill()
        # Reading to the end closes the pipe, which otherwise warns when it is collected.
        await process.communicate()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals stay with pytest


@contextlib.asynccontextmanager
async def serving(fake: FakeTransceiver) -> AsyncIterator[str]:
    """Serve a pretended transceiver on a real port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(fake.app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=0))
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def write_route(folder: Path, fake: FakeTransceiver, url: str) -> None:
    entry = fake.entry.model_copy(update={"http": url})
    (folder / "routes.json").write_text(RouteFile(version=1, transceivers=(entry,)).model_dump_json())


async def is_closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(65_536), 20) == b""
    return True


async def test_a_call_is_placed_over_real_http_and_sigterm_waits_for_requests_under_way(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    write_files(tmp_path, [])
    async with serving(fake) as url, program(tmp_path, "--load-interval", "0.05") as running:
        write_route(tmp_path, fake, url)
        async with httpx.AsyncClient(base_url=running.url, headers=HEADERS) as client:

            async def ready() -> bool:
                return (await client.get("/readyz")).status_code == 200

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
    write_route(tmp_path, fake, "http://127.0.0.1:9")
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
        for connection in ((reader, writer), await running.connect()):
            connection[1].write(b"GET /livez HTTP/1.1\r\nHo")
            assert await is_closed(connection[0])
            connection[1].close()

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

        # More connections than are allowed: those past the bound are closed at once, the first ones stay.
        kept = [await running.connect() for _ in range(8)]
        for _ in range(4):
            reader, writer = await running.connect()
            assert await is_closed(reader)
            writer.close()
        kept[0][1].write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await kept[0][0].readuntil(b'{"live":true}')
        for _, writer in kept:
            writer.close()


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
        write_route(tmp_path, fake, url)
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
