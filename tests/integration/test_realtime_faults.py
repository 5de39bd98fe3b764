"""What a caller notices when the server behind the Realtime bridge refuses, breaks, stalls or talks nonsense."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from http import HTTPStatus

import httpx
import numpy as np
import pytest

from tests.integration.realtime_fleet import UPSTREAM_KEY, USHER_KEY, Bridge, reserved_port, running_bridge
from tests.realtime_audio import FRAME_MS, PCM, SPEECH_RMS
from tests.realtime_caller import Caller, calling
from tests.realtime_connection import Behaviour, wait_until
from tests.realtime_events import SERVER, faults
from tests.realtime_response import Speech
from tests.realtime_server import RealtimeServer

pytestmark = [pytest.mark.programs]

ENDS_WITHIN_S = 2.0
FREED_WITHIN_S = 1.0
GAP_MS = 60.0
CONNECT_LIMIT_S = 2.0
OLD, NEW = 600.0, 1000.0


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    settings = {"truncate": "upstream", "connect_limit": str(CONNECT_LIMIT_S)}
    with reserved_port() as port, running_bridge(tmp_path_factory.mktemp("bridge"), port, **settings) as running:
        yield running


def serving(bridge: Bridge, behaviour: Behaviour | None = None) -> RealtimeServer:
    return RealtimeServer(bridge.port, UPSTREAM_KEY, behaviour)


def queued_bytes(bridge: Bridge) -> float:
    """What waits in the bridge for the server."""
    admin = bridge.fleet.state()["transceivers"][0]["admin"]
    lines = httpx.get(f"{admin}/metrics").text.splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("usher_transceiver_realtime_queued_bytes"))


async def assert_ends_with_one_error(caller: Caller, code: str, reason: str) -> None:
    ended = await caller.wait_until_ended()
    (error,) = caller.of("error")
    assert error.event["error"]["code"] == code
    assert faults(error.event, SERVER) == []
    assert ended - error.at <= ENDS_WITHIN_S
    assert await caller.end_reason() == reason


async def test_a_hang_up_frees_the_server_at_once(bridge: Bridge) -> None:
    async with serving(bridge) as server, calling(bridge.fleet.url, USHER_KEY) as caller:
        connection = await server.wait_for_connection()
        caller.send({"type": "response.create"})
        await caller.wait_for("output_audio_buffer.started")
        began = time.monotonic()
        await caller.hang_up()
        assert await connection.wait_until_closed() - began <= FREED_WITHIN_S
        assert connection.close_code in (1000, 1001)
        assert await caller.end_reason() == "client_closed"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (HTTPStatus.UNAUTHORIZED, "invalid_api_key"),
        (HTTPStatus.TOO_MANY_REQUESTS, "insufficient_quota"),
        (HTTPStatus.INTERNAL_SERVER_ERROR, "server_error"),
        (None, "upstream_unreachable"),
    ],
)
async def test_a_server_that_refuses_ends_the_call_with_its_code(
    bridge: Bridge, status: HTTPStatus | None, code: str
) -> None:
    began = time.monotonic()
    if status is None:
        async with calling(bridge.fleet.url, USHER_KEY) as caller:
            await assert_ends_with_one_error(caller, code, "upstream_failed")
    else:
        async with serving(bridge, Behaviour(refuse=status)) as server, calling(bridge.fleet.url, USHER_KEY) as caller:
            await assert_ends_with_one_error(caller, code, "upstream_failed")
            assert len(server.refused) == 1
    assert caller.ended_at is not None
    assert caller.ended_at - began <= ENDS_WITHIN_S
    bridge.assert_keeps_its_secrets(caller)


async def test_a_server_that_does_not_answer_ends_the_call(bridge: Bridge) -> None:
    began = time.monotonic()
    async with serving(bridge) as server:
        server.answers.clear()
        async with calling(bridge.fleet.url, USHER_KEY) as caller:
            await assert_ends_with_one_error(caller, "upstream_timeout", "upstream_failed")
    assert caller.ended_at is not None
    assert caller.ended_at - began <= CONNECT_LIMIT_S + ENDS_WITHIN_S


async def test_what_is_said_before_the_server_is_there_is_not_lost(bridge: Bridge) -> None:
    async with serving(bridge) as server:
        server.answers.clear()
        async with calling(bridge.fleet.url, USHER_KEY) as caller:
            await caller.say()
            server.answers.set()
            connection = await server.wait_for_connection()
            await caller.wait_for("input_audio_buffer.speech_stopped")
        said = connection.audio[: len(connection.audio) // 480 * 480].reshape(-1, 480).astype(float)
    loud_ms = FRAME_MS * int(np.sum(np.sqrt(np.mean(said**2, axis=1)) > SPEECH_RMS))
    assert loud_ms == pytest.approx(400, abs=60)


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "broken"])
async def test_a_server_that_goes_away_is_heard_to_the_end(bridge: Bridge, clean: bool) -> None:
    wanted = Behaviour(replies=[(Speech(OLD, 1.0),)], speed=30, close_after_s=1.0 if clean else None)
    async with serving(bridge, wanted) as server, calling(bridge.fleet.url, USHER_KEY) as caller:
        connection = await server.wait_for_connection()
        caller.send({"type": "response.create"})
        await caller.wait_for("output_audio_buffer.started")
        if not clean:
            await caller.wait_for("response.done")
            connection.abort()
        gone = await connection.wait_until_closed()
        await assert_ends_with_one_error(caller, "upstream_closed", "upstream_closed")
    assert caller.heard_ms(OLD) == pytest.approx(1000, abs=40)
    last = caller.heard(OLD)[-1].at
    assert last - gone > 0.5
    assert caller.of("error")[0].at >= last - 0.04  # events and audio go their own ways
    told = [kind for kind in caller.types() if kind.startswith("output_audio_buffer.") or kind == "error"]
    assert told == ["output_audio_buffer.started", "output_audio_buffer.stopped", "error"]
    bridge.assert_keeps_its_secrets(caller)


async def test_a_caller_without_events_talks_interrupts_and_is_hung_up(bridge: Bridge) -> None:
    wanted = Behaviour(replies=[(Speech(OLD, 5.0),), (Speech(NEW, 0.5),)], speed=30)
    async with serving(bridge, wanted) as server, calling(bridge.fleet.url, USHER_KEY, channel=False) as caller:
        connection = await server.wait_for_connection()
        connection.respond()
        await wait_until(lambda: len(connection.sent_of("response.done")) == 1, "the reply is sent")
        await caller.say()
        await wait_until(lambda: len(connection.sent_of("response.done")) == 2, "the next one too")
        await connection.close()
        gone = await connection.wait_until_closed()
        assert await caller.end_reason() == "upstream_closed"
        assert time.monotonic() - gone <= 0.5 + ENDS_WITHIN_S
    assert 0 < caller.heard_ms(OLD) < 3000
    assert caller.heard_ms(NEW) == pytest.approx(500, abs=40)


@pytest.mark.timed
async def test_a_server_that_stalls_delays_no_audio(bridge: Bridge) -> None:
    wanted = Behaviour(replies=[(Speech(OLD, 1.0),)], speed=30)
    async with serving(bridge, wanted) as server, calling(bridge.fleet.url, USHER_KEY) as caller:
        connection = await server.wait_for_connection()
        connection.pause_reading()
        for _ in range(8):
            caller.send({"type": "vendor.filler", "pad": "x" * 100_000})
        await caller.wait_until(lambda: queued_bytes(bridge) > 24_000, "half a second of audio waits for the server")
        caller.microphone.late_s = 0.0
        connection.respond()
        began = (await caller.wait_for("output_audio_buffer.started")).at
        stopped = (await caller.wait_for("output_audio_buffer.stopped")).at
        gap, late = caller.longest_gap_ms(began, stopped), caller.microphone.late_s * 1000
        print(f"longest gap {gap:.0f} ms; this client was late by {late:.0f} ms")
        assert gap <= GAP_MS + late
        assert caller.heard_ms(OLD) == pytest.approx(1000, abs=40)
        connection.resume_reading()
        await connection.wait_for("vendor.filler", 8)
        await caller.wait_until(lambda: len(connection.audio) > PCM.rate, "what was said meanwhile arrives, too")


async def test_nonsense_of_the_server_does_no_harm(bridge: Bridge) -> None:
    async with (
        serving(bridge, Behaviour(replies=[(Speech(OLD, 0.5),)])) as server,
        calling(bridge.fleet.url, USHER_KEY) as caller,
    ):
        connection = await server.wait_for_connection()
        delta = {"type": "response.output_audio.delta", "response_id": "r", "item_id": "i", "content_index": 0}
        nonsense: list[str | bytes] = [
            *("", "no json", "[]", '"text"', "{}", '{"type": 5}', "[" * 100_000, b"\x00\xff", b"{}"),
            *(json.dumps(delta | more) for more in ({}, {"delta": 7}, {"delta": "%%"}, {"delta": "AA=="})),
            *(json.dumps({"type": kind}) for kind in ("response.created", "response.done", "session.updated", "error")),
            json.dumps({"type": "session.updated", "session": {"audio": {"output": {"format": 3}}, "tools": None}}),
            json.dumps({"type": "response.done", "response": [1]}),
        ]
        for message in nonsense:
            connection.send(message)
        connection.respond()
        await caller.wait_for("output_audio_buffer.stopped")
        assert caller.heard_ms(OLD) == pytest.approx(500, abs=40)
        assert caller.ended_at is None


async def test_a_server_that_truncates_by_itself_is_not_told_to(bridge: Bridge) -> None:
    async with (
        serving(bridge, Behaviour(replies=[(Speech(OLD, 4.0),)], speed=30)) as server,
        calling(bridge.fleet.url, USHER_KEY) as caller,
    ):
        connection = await server.wait_for_connection()
        connection.respond()
        await caller.wait_for("output_audio_buffer.started")
        await asyncio.sleep(0.3)
        await caller.say()
        await caller.wait_for("output_audio_buffer.cleared")
        await caller.wait_for("input_audio_buffer.speech_stopped")
        assert connection.received_of("conversation.item.truncate") == []
        assert caller.heard_ms(OLD) < 3000
