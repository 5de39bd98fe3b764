"""The reference: an echo server as aiortc's own examples are written, one RTCPeerConnection for each call.

Run by the bench:  python -m benches.transceiver.stock

It has the part of the calls API that `usher call` needs, and tells at /stats what the bench asks of a server: how many
calls are connected, and how late a timer of its loop comes.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from bisect import bisect_left
from itertools import accumulate

import aioice.ice
import uvicorn
from aiortc import MediaStreamTrack, RTCPeerConnection, RTCSessionDescription
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from usher_transceiver.media.frame import FRAME_SECONDS
from usher_transceiver.media.ticker import LATENESS_S, PHASES

PATH = "/v1/realtime/calls"

# It would gather every address but that of loopback, where the bench is.
aioice.ice.get_host_addresses = lambda **_families: ["127.0.0.1"]


class Lag:
    """How late a timer comes, as often as the transceiver's ticker looks."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENESS_S) + 1)

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + FRAME_SECONDS / PHASES, loop.time())
            await asyncio.sleep(due - loop.time())
            self.counts[bisect_left(LATENESS_S, max(0.0, loop.time() - due))] += 1


class Server:
    """The calls."""

    def __init__(self) -> None:
        self._calls: dict[str, RTCPeerConnection] = {}
        self.lag = Lag()

    async def place(self, request: Request) -> Response:
        connection = RTCPeerConnection()

        @connection.on("track")
        def send_back(track: MediaStreamTrack) -> None:
            connection.addTrack(track)

        offer = (await request.body()).decode()
        await connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        await connection.setLocalDescription(await connection.createAnswer())
        name = f"rtc_{secrets.token_hex(8)}"
        self._calls[name] = connection
        return Response(
            connection.localDescription.sdp, 201, {"Location": f"{PATH}/{name}"}, media_type="application/sdp"
        )

    async def hang_up(self, request: Request) -> Response:
        connection = self._calls.pop(request.path_params["name"], None)
        if connection is not None:
            await connection.close()
        return Response(status_code=200)

    async def describe(self, request: Request) -> Response:
        return JSONResponse({})

    async def stats(self, request: Request) -> Response:
        connected = sum(connection.connectionState == "connected" for connection in self._calls.values())
        return JSONResponse({"connected": connected, "lateness": list(accumulate(self.lag.counts))})

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route(PATH, self.place, methods=["POST"]),
                Route(PATH + "/{name}/hangup", self.hang_up, methods=["POST"]),
                Route(PATH + "/{name}", self.describe),
                Route("/stats", self.stats),
            ]
        )


async def main() -> None:
    server = Server()
    listening = socket.create_server(("127.0.0.1", 0))
    watching = asyncio.create_task(server.lag.watch())
    print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
    try:
        await uvicorn.Server(uvicorn.Config(server.app(), log_level="error")).serve([listening])
    finally:
        watching.cancel()


if __name__ == "__main__":
    asyncio.run(main())
