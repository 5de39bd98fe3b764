"""The Realtime server of our tests on a real socket: the unmodified `openai` package talks with it, and faults come."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import numpy as np
import openai
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Data

from tests.realtime_audio import PCM, strongest_hertz, tone
from tests.realtime_connection import Behaviour, wait_until
from tests.realtime_response import Dialect, Event, Speech
from tests.realtime_server import RealtimeServer

KEY = "sk-fake-realtime"


def speech() -> list[str]:
    """A second of sound and one of silence, in base64 of 20 ms."""
    samples = np.concatenate([tone(300, 1, PCM.rate), np.zeros(PCM.rate, np.int16)])
    return [base64.b64encode(PCM.encode(frame)).decode() for frame in samples.reshape(-1, 480)]


async def read_until(client: ClientConnection, event_type: str) -> list[Event]:
    events: list[Event] = []
    while not events or events[-1]["type"] != event_type:
        events.append(json.loads(await asyncio.wait_for(client.recv(), 5)))
    return events


async def _until_closed(client: ClientConnection) -> AsyncIterator[Data]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            yield await client.recv()


async def test_the_openai_package_has_a_conversation() -> None:
    async with RealtimeServer(api_key=KEY, behaviour=Behaviour(replies=[(Speech(700, 0.5),)])) as server:
        base = server.url.removesuffix("/realtime")
        async with (
            openai.AsyncOpenAI(api_key=KEY, base_url="http://unused/v1", websocket_base_url=base) as package,
            package.realtime.connect(model="gpt-realtime-mini") as talk,
        ):
            await talk.session.update(session={"type": "realtime", "instructions": "Be brief."})
            for frame in speech():
                await talk.input_audio_buffer.append(audio=frame)
            heard, kinds = b"", []
            async for event in talk:
                kinds.append(event.type)
                if event.type == "response.output_audio.delta":
                    heard += base64.b64decode(event.delta)
                if event.type == "session.updated":
                    assert event.session.type == "realtime"
                    assert (event.session.model, event.session.instructions) == ("gpt-realtime-mini", "Be brief.")
                if event.type == "response.done":
                    break
        assert kinds[:2] == ["session.created", "session.updated"]
        assert strongest_hertz(PCM.decode(heard), PCM.rate) == pytest.approx(700, abs=4)
        (connection,) = server.connections
        await connection.wait_until_closed()
        assert connection.query == {"model": ["gpt-realtime-mini"]}
        assert len(connection.audio) == 2 * PCM.rate


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus(500)])
async def test_a_connection_is_refused_with_the_status_of_the_test(status: HTTPStatus) -> None:
    async with RealtimeServer(behaviour=Behaviour(refuse=status)) as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url)
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body or b"")["error"]["message"]
        assert (len(server.refused), server.connections) == (1, [])


async def test_a_wrong_key_and_a_wrong_path_are_refused() -> None:
    async with RealtimeServer(api_key=KEY) as server:
        for url, status in ((server.url, 401), (server.url.replace("/v1/", "/v2/"), 404)):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, additional_headers={"Authorization": "Bearer sk-other"})
            assert refused.value.response.status_code == status


async def test_delays_and_names_are_those_of_the_behaviour() -> None:
    wanted = Behaviour(dialect=Dialect.BETA, greeting_delay_s=0.1, reply_delay_s=0.1)
    async with RealtimeServer(behaviour=wanted) as server:
        server.answers.clear()
        with pytest.raises(TimeoutError):
            await connect(server.url, open_timeout=0.1)
        server.answers.set()
        began = time.monotonic()
        async with connect(server.url) as client:
            await read_until(client, "session.created")
            assert time.monotonic() - began >= 0.1
            began = time.monotonic()
            await client.send(json.dumps({"type": "response.create"}))
            events = await read_until(client, "response.audio.delta")
            assert time.monotonic() - began >= 0.1
            assert events[0]["type"] == "response.created"


async def test_audio_comes_faster_than_it_plays() -> None:
    async with (
        RealtimeServer(behaviour=Behaviour(replies=[(Speech(700, 4.0),)], speed=20)) as server,
        connect(server.url) as client,
    ):
        await client.send(json.dumps({"type": "response.create"}))
        began = time.monotonic()
        await read_until(client, "response.done")
        assert 0.2 <= time.monotonic() - began < 2


async def test_it_breaks_off_within_a_response() -> None:
    async with RealtimeServer(behaviour=Behaviour(close_after_s=0.5)) as server, connect(server.url) as client:
        await client.send(json.dumps({"type": "response.create"}))
        events = [json.loads(message) async for message in _until_closed(client)]
        assert client.close_code == 1011
        assert [event["type"] for event in events].count("response.output_audio.delta") == 5


async def test_a_test_may_send_what_it_likes_and_sees_what_is_no_event() -> None:
    large = {"type": "conversation.item.done", "event_id": "event_large", "text": "x" * 200 * 1024}
    async with RealtimeServer() as server, connect(server.url, max_size=None) as client:
        await read_until(client, "session.created")
        connection = await server.wait_for_connection()
        for message in ("no json", b"\x00\x01", large):
            connection.send(message)
        assert [await client.recv(), await client.recv()] == ["no json", b"\x00\x01"]
        assert json.loads(await client.recv()) == large
        await client.send("[]")
        assert (await read_until(client, "error"))[-1]["error"]["code"] == "invalid_json"
        assert connection.garbage == ["[]"]
        connection.abort()
        await connection.wait_until_closed()


async def test_it_stalls_until_it_may_read_on() -> None:
    wanted = Behaviour(reads=False)
    async with RealtimeServer(behaviour=wanted) as server, connect(server.url, max_queue=None) as client:
        connection = await server.wait_for_connection()
        message = json.dumps({"type": "no.such.event", "text": "x" * 200_000})

        async def send() -> int:
            for count in range(1000):
                try:
                    await asyncio.wait_for(client.send(message), 0.3)
                except TimeoutError:
                    return count
            return 1000

        assert 0 < await send() < 100
        assert connection.received == []
        connection.resume_reading()
        await connection.wait_for("no.such.event", 3)


async def test_nothing_is_left_when_it_closes() -> None:
    async with RealtimeServer() as server:
        client = await connect(server.url)
        await read_until(client, "session.created")
        await client.send(json.dumps({"type": "response.create"}))
        await read_until(client, "response.created")
    await wait_until(lambda: client.state is websockets.State.CLOSED, "the client is told")
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    assert server.connections[0].closed_at is not None


@pytest.mark.programs
async def test_as_a_program_it_answers_whoever_talks_to_it() -> None:
    command = [sys.executable, "-m", "tests.realtime_server", "--port", "0", "--beta"]
    program = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert program.stdout is not None
    try:
        ready: Any = (await asyncio.wait_for(program.stdout.readline(), 20)).decode().split()
        assert ready[0] == "ready"
        async with connect(ready[1]) as client:
            for frame in speech():
                await client.send(json.dumps({"type": "input_audio_buffer.append", "audio": frame}))
            await read_until(client, "response.audio.delta")
    finally:
        program.terminate()
        await program.communicate()
