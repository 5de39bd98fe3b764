"""A server of the Realtime protocol that says back what it hears, frame by frame, to tell what a bridged call costs.

It is one answer without an end, so the bridge has to decode, keep, play and encode all the time. It understands no more
than that, in order to be no limit itself.
"""

from __future__ import annotations

import json

import uvloop
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

BEFORE = '{"type":"input_audio_buffer.append","audio":"'
DELTA = '{"type":"response.output_audio.delta","response_id":"r","item_id":"i","content_index":0,"delta":"%s"}'
CREATED = ('{"type":"session.created","session":{}}', '{"type":"response.created","response":{"id":"r"}}')


async def answer(socket: ServerConnection) -> None:
    try:
        for event in CREATED:
            await socket.send(event)
        async for message in socket:
            if isinstance(message, str) and message.startswith(BEFORE):
                await socket.send(DELTA % message[len(BEFORE) : -2])
    except ConnectionClosed:
        return


async def main() -> None:
    async with serve(answer, "127.0.0.1", 0, compression=None) as server:
        (listening,) = server.sockets
        print(json.dumps({"url": f"ws://127.0.0.1:{listening.getsockname()[1]}/v1/realtime"}), flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
