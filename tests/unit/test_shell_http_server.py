"""An HTTP server in one's own loop: bound before it serves, ended when told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from usher_core.errors import LocalError
from usher_core.ids import split_host_port
from usher_shell import http_protocol, http_server
from usher_shell.http_protocol import MAX_SPARE
from usher_shell.http_server import HttpServer
from usher_shell.udp_buffers import granted_buffers, kernel_drops, set_buffers
from usher_shell.websocket_protocol import WebSocketProtocol


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
    refusal = await asyncio.wait_for(refused[0].read(), 5)
    assert json.loads(refusal.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_requests"
    slow.let_go.set()
    for reader, _ in busy:
        assert b"200 OK" in await asyncio.wait_for(reader.readline(), 5)
    for _, writer in (*busy, spare, refused):
        writer.close()
    await server.stop()
    assert serving.done()
    assert MAX_SPARE == 16


HEAD = b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
UPGRADE = (
    b"GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
DRIBBLES = {
    "nothing": (b"", b""),
    "a header": (b"", b"G"),
    "blank lines": (b"", b"\r\n"),
    "the header after a request": (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"G"),
    "nothing after a request": (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    "a body that is read": (HEAD.replace(b"early", b"read"), b"b"),
    "a chunked body that is read": (
        b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1\r\nb\r\n",
    ),
    "a body that was answered before": (HEAD, b"b"),
    "what is no HTTP": (b"GARBAGE\r\n\r\n", b"b"),
    "a WebSocket that nobody accepts": (UPGRADE, b"b"),
}


async def never_accept(socket: WebSocket) -> None:
    await asyncio.Event().wait()


async def early(_request: Request) -> JSONResponse:
    return JSONResponse({"early": True}, 401)


async def read(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())}")


async def large(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("x" * 50_000_000)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINGER_S", "BODY_MARGIN_S", "UNREAD_LIMIT_S", "UPGRADE_DEADLINE_S"):
        monkeypatch.setattr(http_protocol, name, 0.3)


@contextlib.asynccontextmanager
async def running(more: Sequence[WebSocketRoute] = (), **options: Any) -> AsyncIterator[HttpServer]:
    routes = [
        *more,
        Route("/livez", Slow().live),
        Route("/early", early, methods=["POST"]),
        Route("/read", read, methods=["POST"]),
        Route("/large", large),
        WebSocketRoute("/socket", never_accept),
    ]
    defaults: dict[str, Any] = {"header_deadline": 0.3, "timeout_keep_alive": 1, "ws": "websockets-sansio"}
    server = HttpServer(Starlette(routes=routes), "127.0.0.1:0", "--http", lifespan="off", **(defaults | options))
    serving = await server.start()
    yield server
    await server.stop(at_once=True)
    assert serving.done()


async def until_none_is_open(server: HttpServer, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
    async with asyncio.timeout(5):
        while server._server.server_state.connections:
            await asyncio.sleep(0.02)
            if meanwhile is not None:
                await meanwhile()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", DRIBBLES)
async def test_no_dribble_holds_a_connection(name: str) -> None:
    first, drop = DRIBBLES[name]
    async with running() as server:
        reader, writer = await connect(server)
        writer.write(first)

        async def dribble() -> None:
            while True:
                writer.write(drop)
                await asyncio.sleep(0.02)

        dribbling = asyncio.create_task(dribble())
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)
        await until_none_is_open(server)
        dribbling.cancel()
        writer.close()


async def accept(socket: WebSocket) -> None:
    await socket.accept()
    await socket.receive()


async def refuse(socket: WebSocket) -> None:
    await socket.send_denial_response(JSONResponse({}, 401))


@pytest.mark.parametrize("path", [b"/accept", b"/refuse", b"/socket"])
async def test_a_socket_that_was_handed_over_has_no_deadline_of_a_request(
    monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "BODY_MARGIN_S", 0.0)
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    more = [WebSocketRoute("/accept", accept), WebSocketRoute("/refuse", refuse)]
    async with running(header_deadline=0.1, more=more, ws=WebSocketProtocol) as server:
        reader, writer = await connect(server)
        writer.write(UPGRADE.replace(b"/socket", path))
        if path != b"/socket":
            assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == (b"101" if path == b"/accept" else b"401")
        await asyncio.sleep(0.2)  # the deadline of a body goes by
        writer.close()
        assert faults == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("taken", [0, 1])
async def test_an_answer_that_is_not_taken_does_not_hold_a_connection(taken: int) -> None:
    async with running() as server:
        reader, writer = await asyncio.open_connection(*split_host_port(server.url.removeprefix("http://")), limit=1)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.read(1)
        await until_none_is_open(server, lambda: reader.read(taken))
        writer.close()


@pytest.mark.parametrize("first", [HEAD, HEAD.replace(b"100000", b"3000000"), HEAD.replace(b"/early", b"/nothing")])
async def test_an_answer_before_the_whole_body_is_the_last_and_arrives_whole(first: bytes) -> None:
    async with running(header_deadline=20) as server:
        reader, writer = await connect(server)
        writer.write(first)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert b"connection: close" in head.lower()
        for _ in range(50):
            writer.write(bytes(1000))
        rest = await asyncio.wait_for(reader.read(), 5)
        assert rest in (b'{"early":true}', b"Not Found")
        writer.close()


async def test_a_body_in_time_leaves_the_connection_open() -> None:
    async with running(header_deadline=20) as server, httpx.AsyncClient(base_url=server.url) as client:
        for size in (0, 1, 300_000):
            answer = await client.post("/read", content=bytes(size))
            assert answer.text == str(size)
            assert "connection" not in answer.headers
        assert len(server._server.server_state.connections) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET /", 408, "header_too_slow"),
        (HEAD.replace(b"early", b"read"), 408, "body_too_slow"),
        (b"GARBAGE\r\n\r\n", 400, "bad_http"),
    ],
)
async def test_what_the_server_answers_by_itself_is_json(sent: bytes, status: int, code: str) -> None:
    async with running() as server:
        reader, writer = await connect(server)
        writer.write(sent)
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(body)["error"]["code"] == code
        writer.close()


async def test_who_has_shown_a_key_that_counts_makes_room_last() -> None:
    async def admitted(request: Request) -> PlainTextResponse:
        setattr(request.state, http_protocol.ADMITTED, True)
        return PlainTextResponse("in")

    evictions = []
    server = HttpServer(
        Starlette(routes=[Route("/", admitted), Route("/livez", Slow().live)]),
        "127.0.0.1:0",
        "--http",
        lifespan="off",
        max_connections=3,
        timeout_keep_alive=30,
        header_deadline=30,
        on_evicted=lambda: evictions.append(1),
    )
    serving = await server.start()
    known = await connect(server)
    assert await status(known, "/") == 200
    strangers = []
    for _ in range(4):
        strangers.append(await connect(server))
        assert await status(strangers[-1], "/livez") == 200
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(strangers[0][0].read(), 5)
    known[1].write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await asyncio.wait_for(known[0].read(), 5)).count(b"HTTP/1.1 200") == 1
    assert len(evictions) == 2
    for _, writer in (known, *strangers):
        writer.close()
    await server.stop()
    assert serving.done()


@pytest.mark.parametrize("at_once", [True, False])
async def test_no_connection_outlives_its_server(at_once: bool) -> None:
    server = Slow().server(timeout_keep_alive=30)
    serving = await server.start()
    opened = [await connect(server) for _ in range(5)]
    assert await status(opened[0], "/livez") == 200
    opened[1][1].write(HEAD)
    await server.stop(at_once=at_once)
    assert serving.done()
    assert not server._server.server_state.connections
    assert not server._server._arriving
    for reader, writer in opened:
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)
        writer.close()


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
