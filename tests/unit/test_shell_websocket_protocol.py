"""WebSockets in the log: one that is refused by an HTTP answer is no error, and headers are in no line."""

from __future__ import annotations

import logging

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from usher_shell.http_server import HttpServer
from usher_shell.websocket_protocol import WebSocketProtocol
from usher_signaling.websocket_client import connect_directly


async def refuse(socket: WebSocket) -> None:
    await socket.send_denial_response(JSONResponse({"error": "no"}, 401))


async def forget(_socket: WebSocket) -> None:
    """Neither accept nor refuse."""


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


@pytest.mark.parametrize(("path", "status", "errors"), [("refuse", 401, 0), ("forget", 500, 1)])
async def test_only_a_socket_that_is_neither_taken_nor_refused_is_an_error(
    caplog: pytest.LogCaptureFixture, path: str, status: int, errors: int
) -> None:
    routes = [WebSocketRoute("/refuse", refuse), WebSocketRoute("/forget", forget), WebSocketRoute("/echo", echo)]
    app = Starlette(routes=routes)
    server = HttpServer(app, "127.0.0.1:0", "--http", lifespan="off", ws=WebSocketProtocol)
    caplog.set_level(logging.WARNING)
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    _ = await server.start()
    try:
        url = server.url.replace("http", "ws", 1)
        with pytest.raises(InvalidStatus) as caught:
            await connect(f"{url}/{path}", proxy=None)
        async with connect(f"{url}/echo", proxy=None) as taken:
            await taken.send("a")
            assert await taken.recv() == "a"
    finally:
        await server.stop()
        logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert caught.value.response.status_code == status
    assert path == "forget" or caught.value.response.body == b'{"error":"no"}'
    assert len({id(record) for record in caplog.records if "handshake" in record.getMessage()}) == errors


async def test_no_header_of_a_socket_is_logged_at_level_debug_by_who_opens_it_or_who_takes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = HttpServer(
        Starlette(routes=[WebSocketRoute("/echo", echo)]), "127.0.0.1:0", "--http", lifespan="off", ws=WebSocketProtocol
    )
    _ = await server.start()
    try:
        with caplog.at_level(logging.DEBUG):
            url = server.url.replace("http", "ws", 1)
            async with connect_directly(f"{url}/echo", additional_headers={"X": "of-ours"}, proxy=None) as ours:
                await ours.send("a")
                assert await ours.recv() == "a"
            assert "of-ours" not in caplog.text
            async with connect(f"{url}/echo", additional_headers={"X": "of-theirs"}, proxy=None) as theirs:
                await theirs.send("a")
    finally:
        await server.stop()
    # The client of the test does log its headers, once: so there was something to be heard.
    assert caplog.text.count("of-theirs") == 1
