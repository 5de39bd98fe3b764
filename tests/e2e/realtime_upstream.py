"""A server of the Realtime protocol in a pod: it answers each call with a tone, and logs who asked with what.

It runs in the image of transceivers, which has Python and the library for WebSockets.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

PORT = 8000
RATE = 24_000
SECONDS = 3
TONE = struct.pack(f"<{RATE}h", *(round(8000 * math.sin(2 * math.pi * 600 * n / RATE)) for n in range(RATE)))
"""A second of it."""


async def answer(client: ServerConnection) -> None:
    """Tell who calls, wait until he is heard, speak."""
    assert client.request is not None
    headers = client.request.headers
    heard = {"path": client.request.path, "key": headers.get("Authorization"), "team": headers.get("X-Team")}
    print(json.dumps(heard), flush=True)
    await client.send(json.dumps({"type": "session.created", "session": {"type": "realtime", "id": "sess_1"}}))
    async for message in client:
        if json.loads(message)["type"] == "input_audio_buffer.append":
            break
    response = {"response_id": "resp_1", "item_id": "item_1", "output_index": 0, "content_index": 0}
    delta = base64.b64encode(TONE).decode()
    for event in (
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        *[{"type": "response.output_audio.delta", **response, "delta": delta}] * SECONDS,
        {"type": "response.output_audio.done", **response},
        {"type": "response.done", "response": {"id": "resp_1", "status": "completed"}},
    ):
        await client.send(json.dumps(event))
    async for _ in client:
        pass


def admit(client: ServerConnection, request: Request) -> Response | None:
    """Answer the kubelet, who is no caller."""
    return client.respond(HTTPStatus.OK, "well\n") if request.path == "/livez" else None


async def main() -> None:
    async with serve(answer, "0.0.0.0", PORT, process_request=admit):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
