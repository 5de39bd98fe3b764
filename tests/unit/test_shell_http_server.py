"""An HTTP server in one's own loop: bound before it serves, ended when told."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from usher_core.errors import LocalError
from usher_shell.http_server import HttpServer
from usher_shell.udp_buffers import granted_buffers, set_buffers


class Slow:
    """An application whose one answer waits until it is let go."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()

    async def answer(self, _request: Request) -> PlainTextResponse:
        self.asked.set()
        await self.let_go.wait()
        return PlainTextResponse("done")

    def server(self) -> HttpServer:
        app = Starlette(routes=[Route("/", self.answer)])
        return HttpServer(app, "127.0.0.1:0", "--http", lifespan="off", timeout_graceful_shutdown=5)


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
