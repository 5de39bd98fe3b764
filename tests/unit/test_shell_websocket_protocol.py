"""WebSockets that are refused by an HTTP answer: the client gets it, and the log holds no error."""

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
