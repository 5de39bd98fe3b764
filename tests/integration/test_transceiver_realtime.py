"""Calls over the Realtime bridge: stock aiortc, a transceiver, and a server of a few lines whose every step is ours."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.raw_client import RawClient
from tests.transceiver_rig import TONE_HZ, Rig, rig, until
from usher_core.errors import LocalError

KEY = "sk-secret-of-the-test"
SESSION = {"id": "sess_up", "object": "realtime.session", "type": "realtime", "model": "gpt-test"}


def tone(seconds: float) -> str:
    samples = np.sin(2 * np.pi * TONE_HZ * np.arange(round(24_000 * seconds)) / 24_000) * 12_000
    return base64.b64encode(samples.astype("<i2").tobytes()).decode()


class Upstream:
    """One connection at a time. What came stands in `events`, its audio in `audio`."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.audio = bytearray()
        self.request: Request | None = None
        self.status = 101
        self.closed: int | None = None
        self.socket: ServerConnection | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def admit(self, socket: ServerConnection, request: Request) -> Response | None:
        self.request = request
        await self.gate.wait()
        if self.status == 101:
            return None
        error = {"code": "invalid_api_key", "message": f"Wrong key {request.headers.get('Authorization')}"}
        return socket.respond(self.status, json.dumps({"error": error}))

    async def talk(self, socket: ServerConnection) -> None:
        self.socket = socket
        await self.say(type="session.created", session=SESSION)
        with contextlib.suppress(ConnectionClosed):
            async for text in socket:
                event = json.loads(text)
                if event["type"] == "input_audio_buffer.append" and "event_id" not in event:
                    self.audio += base64.b64decode(event["audio"])
                else:
                    self.events.append(event)
                    self.texts.append(str(text))
        self.closed = socket.close_code

    async def say(self, **event: Any) -> None:
        assert self.socket is not None
        await self.socket.send(json.dumps({"event_id": "event_up", **event}))

    async def speak(self, response: str, item: str, seconds: float, *, finish: bool = True) -> None:
        await self.say(type="response.created", response={"id": response, "status": "in_progress"})
        for _ in range(round(seconds / 0.2)):
            names = {"response_id": response, "item_id": item, "output_index": 0, "content_index": 0}
            await self.say(type="response.output_audio.delta", delta=tone(0.2), **names)
        if finish:
            await self.say(type="response.output_audio.done", **names)
            await self.say(type="response.done", response={"id": response, "status": "completed"})

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    server: Server
    async with serve(made.talk, "127.0.0.1", 0, process_request=made.admit, close_timeout=0.5) as server:
        made.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/realtime"  # type: ignore[attr-defined]
        yield made
        made.gate.set()


@pytest.fixture
async def stack(tmp_path: Path, upstream: Any, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Rig]:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "key").write_text(KEY + "\n")
    (tmp_path / "headers").write_text('{"X-Team": "a-secret-team"}')
    settings = {
        "backend": "realtime",
        "realtime_url": upstream.url,
        "realtime_api_key_file": tmp_path / "key",
        "realtime_headers_file": tmp_path / "headers",
        "realtime_model": "gpt-default",
    }
    async with rig(tmp_path, **settings) as built:
        yield built
    for secret in (KEY, "a-secret-team", upstream.url):
        assert secret not in caplog.text


async def metrics(stack: Rig) -> str:
    return (await stack.http.get("/metrics")).text


async def test_a_call_talks_with_the_server_and_is_interrupted(stack: Rig, upstream: Upstream) -> None:
    client = stack.client()
    given = {"type": "realtime", "model": "gpt-of-the-call", "instructions": "Be brief."}
    session = await client.call(session=given)
    await until(lambda: client.of_type("session.created"), "the server's session.created")
    assert client.events == [{"event_id": "event_up", "type": "session.created", "session": SESSION}]

    request = upstream.request
    assert request is not None
    assert request.path == "/v1/realtime?model=gpt-of-the-call"
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.headers["X-Team"] == "a-secret-team"
    first = {"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}}
    await until(lambda: upstream.events, "the first session.update")
    assert upstream.events == [first]

    # Both ways as it was written: the order of fields, unknown types, 256 KiB, spaces.
    assert client.channel is not None
    odd = '{ "type":"something.new",  "number": 1.0, "text": "é" }'
    large = json.dumps({"type": "conversation.item.create", "padding": "x" * 262_000})
    for text in (odd, large):
        client.channel.send(text)
    await until(lambda: upstream.texts[-1:] == [large], "both events at the server")
    assert upstream.texts[1:] == [odd, large]
    await upstream.say(type="another.new", numbers=[1, 2])
    await until(lambda: client.of_type("another.new"), "an unknown event at the client")
    await upstream.say(type="error", error={"code": "invalid_api_key", "message": f"Wrong key {KEY} of a-secret-team"})
    await until(lambda: client.of_type("error"), "the server's error at the client")
    [error] = client.of_type("error")
    assert error["error"] == {"code": "invalid_api_key", "message": "not shown"}
    await until(lambda: len(upstream.audio) > 24_000, "half a second of the client's audio")
    heard = np.abs(np.frombuffer(bytes(upstream.audio[-9_600:]), "<i2")).max()
    assert heard > 3_000

    await upstream.speak("resp_1", "item_1", 0.6)
    await until(lambda: client.of_type("output_audio_buffer.stopped"), "the answer played")
    assert client.hears_tone()
    assert "delta" not in json.dumps(client.events)
    kinds = [event["type"] for event in client.events[3:]]
    assert (kinds[0], kinds[-1]) == ("response.created", "output_audio_buffer.stopped")
    assert set(kinds[1:-1]) == {"output_audio_buffer.started", "response.output_audio.done", "response.done"}
    assert client.of_type("output_audio_buffer.started")[0]["response_id"] == "resp_1"

    await upstream.speak("resp_2", "item_2", 3.0, finish=False)
    await until(lambda: len(client.of_type("output_audio_buffer.started")) == 2, "the second answer heard")
    await asyncio.sleep(0.2)
    await upstream.say(type="input_audio_buffer.speech_started", audio_start_ms=0, item_id="item_u")
    await until(lambda: client.of_type("output_audio_buffer.cleared"), "cleared")
    [truncate] = await until(lambda: upstream.of_type("conversation.item.truncate"), "a truncation")
    assert truncate["item_id"] == "item_2"
    assert 150 <= truncate["audio_end_ms"] <= 1_000
    assert session._call.queued_ms == 0

    await client.close()
    await until(lambda: upstream.closed is not None, "the server's connection closed")
    assert upstream.closed == 1000
    await until(lambda: len(stack.transceiver.sessions) == 0, "the session gone")
    shown = await metrics(stack)
    assert 'usher_transceiver_realtime_calls_total{outcome="completed"} 1.0' in shown
    assert 'usher_transceiver_realtime_truncations_total{kind="partly_heard"} 1.0' in shown
    assert "usher_transceiver_realtime_queued_bytes 0.0" in shown


@pytest.mark.parametrize(
    ("status", "code", "outcome"), [(401, "invalid_api_key", "refused"), (429, "invalid_api_key", "rate_limited")]
)
async def test_a_refused_call_tells_its_client_and_ends(
    stack: Rig, upstream: Upstream, status: int, code: str, outcome: str
) -> None:
    upstream.status = status
    client = stack.client()
    await client.call()
    sessions = stack.transceiver.sessions
    await until(lambda: len(sessions) == 0, "the call ended", 3.0)
    await until(lambda: client.of_type("error"), "the error at the client")
    [event] = client.of_type("error")
    assert event["error"]["code"] == code
    assert KEY not in json.dumps(event)
    info = sessions.info(client.session_id)
    assert info is not None
    assert info.end_reason == "upstream_failed"
    assert f'usher_transceiver_realtime_calls_total{{outcome="{outcome}"}} 1.0' in await metrics(stack)


async def test_what_a_lost_server_had_said_is_played_before_the_call_ends(stack: Rig, upstream: Upstream) -> None:
    client = stack.client()
    await client.call()
    await until(lambda: client.of_type("session.created"), "the server's session.created")
    await upstream.speak("resp_1", "item_1", 1.0, finish=False)
    assert upstream.socket is not None
    await upstream.socket.close(1011)
    await until(lambda: client.of_type("error"), "the error at the client")
    kinds = [event["type"] for event in client.events]
    assert kinds[kinds.index("error") - 1] == "output_audio_buffer.stopped"
    assert client.of_type("error")[0]["error"]["code"] == "upstream_closed"
    assert client.hears_tone()
    await until(lambda: len(stack.transceiver.sessions) == 0, "the call ended")
    info = stack.transceiver.sessions.info(client.session_id)
    assert info is not None
    assert info.end_reason == "upstream_closed"


async def test_more_audio_than_can_wait_slows_the_server_down_and_is_all_kept(stack: Rig, upstream: Upstream) -> None:
    client = stack.client()
    session = await client.call()
    await until(lambda: client.of_type("session.created"), "the server's session.created")
    ids = {"response_id": "resp_1", "item_id": "item_1", "output_index": 0, "content_index": 0}
    delta = tone(20)

    async def speak() -> None:
        for _ in range(30):
            await upstream.say(type="response.output_audio.delta", delta=delta, **ids)

    speaking = asyncio.create_task(speak())
    backend: Any = session._backend
    playout = backend._bridge._playout
    await until(lambda: playout.is_full, "five minutes waiting")
    await asyncio.sleep(0.3)
    assert not speaking.done(), "ten minutes of audio are not taken at once"
    assert playout._waiting_bytes <= (300 + 20) * 48_000
    client.channel.send('{"type":"output_audio_buffer.clear"}')  # type: ignore[union-attr]
    await until(lambda: client.of_type("output_audio_buffer.cleared"), "cleared")
    await asyncio.wait_for(speaking, 5)
    assert backend._counters.dropped_bytes["cancelled_audio"] > 0


async def test_the_server_is_called_before_the_first_packet_of_the_client(stack: Rig, upstream: Upstream) -> None:
    session = await RawClient(stack, 2000).create()
    await until(lambda: upstream.socket, "a connection")
    assert session.state == "new"


async def test_a_caller_who_leaves_while_the_server_is_being_reached_leaves_nothing(
    stack: Rig, upstream: Upstream
) -> None:
    upstream.gate.clear()
    client = stack.client()
    session = await client.call()
    channel = client.channel
    await until(lambda: channel is not None and channel.readyState == "open", "a client that can hang up")
    backend: Any = session._backend
    await client.close()
    await until(lambda: len(stack.transceiver.sessions) == 0, "the session gone")
    await until(lambda: backend._counters.calls["abandoned"], "the connection given up")


async def test_a_transceiver_without_the_servers_address_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="USHER_REALTIME_URL"):
        async with rig(tmp_path, backend="realtime"):
            raise AssertionError("it started")
