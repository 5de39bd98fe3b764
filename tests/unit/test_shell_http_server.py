"""An HTTP server in one's own loop: bound before it serves, ended when told."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from usher_core.errors import LocalError
from usher_core.ids import split_host_port
from usher_shell import http_server
from usher_shell.http_protocol import MAX_SPARE
from usher_shell.http_server import HttpServer
from usher_shell.udp_buffers import granted_buffers, kernel_drops, set_buffers


class Slow:
    """An application whose one answer waits until it is let go."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()

    async def answer(self, _request: Request) -> PlainTextResponse:
        self.asked.set()
        await self.let_go.wait()
        return PlainTextResponse("done")

    async def live(self, _request: Request) -> PlainTextResponse:
        return PlainTextResponse("live")

    def server(self, **options: Any) -> HttpServer:
        app = Starlette(routes=[Route("/", self.answer), Route("/livez", self.live)])
        return HttpServer(app, "127.0.0.1:0", "--http", lifespan="off", timeout_graceful_shutdown=5, **options)


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(server: HttpServer) -> Connection:
    return await asyncio.open_connection(*split_host_port(server.url.removeprefix("http://")))


async def status(connection: Connection, path: str) -> int:
    connection[1].write(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
    return int((await asyncio.wait_for(connection[0].readline(), 5)).split()[1])


async def test_port_zero_is_a_number_before_the_server_starts() -> None:
    server = Slow().server()
    assert not server.url.endswith(":0")
    serving = await server.start()
    await server.stop()
    assert serving.done()


async def test_answers_do_not_wait_for_delayed_acknowledgements() -> None:
    server = Slow().server()
    serving = await server.start()
    assert server._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await server.stop()
    assert serving.done()


async def test_a_request_under_way_is_finished_and_no_new_one_taken() -> None:
    slow = Slow()
    server = slow.server()
    serving = await server.start()
    async with httpx.AsyncClient() as client:
        request = asyncio.create_task(client.get(server.url))
        await asyncio.wait_for(slow.asked.wait(), 5)
        server.stop_soon()
        slow.let_go.set()
        assert (await asyncio.wait_for(request, 5)).text == "done"
    await asyncio.wait_for(serving, 5)


async def test_at_once_gives_up_what_is_under_way() -> None:
    slow = Slow()
    server = slow.server()
    serving = await server.start()
    async with httpx.AsyncClient() as client:
        request = asyncio.create_task(client.get(server.url))
        await asyncio.wait_for(slow.asked.wait(), 5)
        server.stop_soon(at_once=True)
        await asyncio.wait_for(serving, 3)
        slow.let_go.set()
        await asyncio.wait([request], timeout=5)


async def test_a_taken_port_is_an_error_that_names_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(LocalError, match=r"can't serve HTTP on .*--admin HOST:PORT"):
            HttpServer(Starlette(), taken, "--admin")


def test_granted_buffers_are_what_was_asked_for_where_the_kernel_allows_it() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        set_buffers(sock, "test", 65_536, 32_768)
        assert granted_buffers(sock) == (65_536, 32_768)


async def test_connections_that_say_nothing_do_not_keep_a_probe_out() -> None:
    server = Slow().server(max_connections=4, header_deadline=30.0)
    serving = await server.start()
    silent = [await connect(server) for _ in range(8)]
    probe = await connect(server)
    assert await status(probe, "/livez") == 200
    # The one that has waited longest makes room, also for the probe.
    assert [await asyncio.wait_for(reader.read(), 5) for reader, _ in silent[:5]] == [b""] * 5
    assert await status(silent[-1], "/livez") == 200
    for _, writer in (*silent, probe):
        writer.close()
    await server.stop()
    assert serving.done()


async def test_connections_that_say_nothing_are_closed_at_the_deadline() -> None:
    server = Slow().server(header_deadline=0.05)
    serving = await server.start()
    reader, writer = await connect(server)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    await server.stop()
    assert serving.done()


async def test_where_all_are_busy_probes_are_answered_and_nothing_else_and_that_is_bounded() -> None:
    slow = Slow()
    server = slow.server(max_connections=2)
    serving = await server.start()
    busy = [await connect(server) for _ in range(2)]
    for _, writer in busy:
        slow.asked.clear()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(slow.asked.wait(), 5)
    spare = await connect(server)
    assert await status(spare, "/livez") == 200
    refused = await connect(server)
    assert await status(refused, "/") == 503
    slow.let_go.set()
    for reader, _ in busy:
        assert b"200 OK" in await asyncio.wait_for(reader.readline(), 5)
    for _, writer in (*busy, spare, refused):
        writer.close()
    await server.stop()
    assert serving.done()
    assert MAX_SPARE == 16


async def test_a_server_that_does_not_start_is_an_error_that_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STARTED_WITHIN_S", 0.05)
    server = Slow().server()

    async def never(**_options: Any) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(server._server, "serve", never)
    with pytest.raises(LocalError, match=r"--http did not start within 0\.05 s"):
        _ = await server.start()
    server._socket.close()


def test_kernel_drops_are_counted_where_the_receive_buffer_is_full() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        sock.bind(("127.0.0.1", 0))
        set_buffers(sock, "test", 4096, 4096)
        before = kernel_drops(sock)
        if before is None:
            pytest.skip("this kernel does not say")
        for _ in range(64):
            other.sendto(bytes(1000), sock.getsockname())
        assert (kernel_drops(sock) or 0) > before
