"""A Realtime server for tests, on a WebSocket: the protocol of `realtime_conversation.py`, and faults on command.

In a test: `async with RealtimeServer() as server`, with `server.url` for the client. How the next connection behaves
is `server.behaviour`, one value that a test replaces; what connections saw and did is in `server.connections`. As a
program it answers whoever talks to it with tones: `python -m tests.realtime_server --port 9000`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
from http import HTTPStatus
from typing import Self
from urllib.parse import urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from tests.realtime_connection import WAIT_S, Behaviour, Connection, wait_until
from tests.realtime_response import Dialect

PATH = "/v1/realtime"
MAX_MESSAGE = 16 * 1024 * 1024
SEGMENT_BYTES, BUFFER_BYTES = 1400, 4096
"""As between machines. By the measures of loopback the kernel would hold megabytes before who is not read feels it."""
_ERRORS = {
    HTTPStatus.UNAUTHORIZED: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    HTTPStatus.NOT_FOUND: ("invalid_request_error", "unknown_url", "Unknown request URL."),
    HTTPStatus.TOO_MANY_REQUESTS: ("insufficient_quota", "insufficient_quota", "You exceeded your current quota."),
}


class RealtimeServer:
    """Listens on loopback. An async context manager.

    Args:
        port: 0 picks one.
        api_key: which clients must present as Bearer; none: everybody may connect.
        behaviour: of connections, until another one is set.
    """

    def __init__(self, port: int = 0, api_key: str | None = None, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.connections: list[Connection] = []
        self.refused: list[Request] = []
        self.answers = asyncio.Event()
        """While it is not set, nobody who connects gets an answer."""
        self.answers.set()
        self._api_key = api_key
        self._server: Server | None = None
        self._listener = socket.create_server(("127.0.0.1", port))
        # Connections take both from the socket that listens.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._listener.getsockname()[1]}{PATH}"

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._talk,
            sock=self._listener,
            process_request=self._admit,
            max_size=MAX_MESSAGE,
            max_queue=4,
            close_timeout=0.5,
            compression=None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.answers.set()
        for connection in self.connections:
            connection.resume_reading()  # else it would not see the end
        self._server.close()
        await self._server.wait_closed()

    async def wait_for_connection(self, count: int = 1, seconds: float = WAIT_S) -> Connection:
        """Wait for the connection of this number, counted from 1."""
        await wait_until(lambda: len(self.connections) >= count, f"{count} connections", seconds)
        return self.connections[count - 1]

    async def _admit(self, client: ServerConnection, request: Request) -> Response | None:
        behaviour = self.behaviour
        await self.answers.wait()
        status = behaviour.refuse
        if urlsplit(request.path).path != PATH:
            status = HTTPStatus.NOT_FOUND
        elif self._api_key is not None and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            status = HTTPStatus.UNAUTHORIZED
        if status is None:
            return None
        self.refused.append(request)
        kind, code, message = _ERRORS.get(status, ("server_error", None, "The server had an error."))
        error = {"message": message, "type": kind, "code": code, "param": None}
        answer = client.respond(status, json.dumps({"error": error}))
        answer.headers.pop("Content-Type", None)
        answer.headers["Content-Type"] = "application/json"
        return answer

    async def _talk(self, client: ServerConnection) -> None:
        connection = Connection(client, self.behaviour)
        self.connections.append(connection)
        await connection.serve()


async def main() -> None:
    parser = argparse.ArgumentParser(description="A Realtime server that answers every sentence with a tone.")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--api-key", help="which clients must present; none: everybody may connect")
    parser.add_argument("--beta", action="store_true", help="names of events as in the beta of the protocol")
    chosen = parser.parse_args()
    behaviour = Behaviour(dialect=Dialect.BETA if chosen.beta else Dialect.GA)
    async with RealtimeServer(chosen.port, chosen.api_key, behaviour) as server:
        print(f"ready {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
