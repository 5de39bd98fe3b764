"""Calls through the Realtime bridge, whole programs and a stock client: talk, barge-in, tools, side-band."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator

import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio

from tests.integration.realtime_fleet import (
    HEADER,
    MODEL,
    UPSTREAM_KEY,
    USHER_KEY,
    Bridge,
    reserved_port,
    running_bridge,
)
from tests.realtime_audio import PCM, PCMA, PCMU, strongest_hertz
from tests.realtime_caller import LARGEST_MESSAGE, VOICE_HZ, VOICE_PEAK, Caller, calling
from tests.realtime_connection import Behaviour, Connection
from tests.realtime_events import CLIENT, SERVER, faults
from tests.realtime_response import Dialect, Event, FunctionCall, Speech
from tests.realtime_server import RealtimeServer

pytestmark = [pytest.mark.programs]

CUT_MS = 60.0
"""After speech was noticed upstream, old sound may be heard for so long at most, and a round trip."""
ROUND_TRIP_MS = 5.0
HEARD_WITHIN_MS = 40.0
"""Of what was heard, a truncation may differ by so much: two frames."""
OLD, QUEUED, NEW = 600.0, 800.0, 1000.0
DELTAS = {"response.output_audio.delta", "response.audio.delta"}


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    folder = tmp_path_factory.mktemp("bridge")
    # At level debug, where secrets would show first.
    with reserved_port() as port, running_bridge(folder, port, log_level="debug") as running:
        yield running


@pytest_asyncio.fixture
async def upstream(bridge: Bridge) -> AsyncIterator[RealtimeServer]:
    async with RealtimeServer(bridge.port, UPSTREAM_KEY) as server:
        yield server


@contextlib.asynccontextmanager
async def talking(
    bridge: Bridge, upstream: RealtimeServer, session: Event | None = None
) -> AsyncIterator[tuple[Caller, Connection]]:
    """A call, connected, with its connection upstream. What passed must be events, and nothing secret."""
    async with calling(bridge.fleet.url, USHER_KEY, session) as caller:
        connection = await upstream.wait_for_connection()
        await caller.wait_for("session.created")
        yield caller, connection
    await connection.wait_until_closed()
    bridge.assert_keeps_its_secrets(caller)


def wrong_events(caller: Caller, connection: Connection) -> list[tuple[str, str]]:
    """What is no event of the protocol, of all that usher sent to either side."""
    up = [(noted.event["type"], fault) for noted in connection.received for fault in faults(noted.event, CLIENT)]
    down = [(noted.event["type"], fault) for noted in caller.events for fault in faults(noted.event, SERVER)]
    return up + down


def assert_all_passed(caller: Caller, connection: Connection) -> None:
    """The client got every event of the server but audio, as it was and in order, as far as it stayed to hear them."""
    got = [noted.event for noted in caller.events if not noted.event["type"].startswith("output_audio_buffer.")]
    sent = [noted.event for noted in connection.sent if noted.event["type"] not in DELTAS]
    assert got == sent[: len(got)]


def truncations(connection: Connection) -> dict[str, int]:
    """Milliseconds by item."""
    cuts = connection.received_of("conversation.item.truncate")
    assert len({cut["item_id"] for cut in cuts}) == len(cuts)
    assert {cut["content_index"] for cut in cuts} <= {0}
    return {cut["item_id"]: cut["audio_end_ms"] for cut in cuts}


def items_said(connection: Connection) -> list[str]:
    """Ids of the model's items, in order."""
    return [event["item_id"] for event in connection.sent_of("response.content_part.added")]


def cut_after_ms(caller: Caller, connection: Connection) -> float:
    """From the moment the server noticed that the caller interrupts until the last old sound came to the client."""
    noticed = next(n for n in connection.sent if n.event["type"] == "input_audio_buffer.speech_started")
    took = (caller.heard(OLD)[-1].at - noticed.at) * 1000
    print(f"last old sound after {took:.0f} ms; this client was late by {caller.microphone.late_s * 1000:.0f} ms")
    return took - caller.microphone.late_s * 1000


async def interrupt(caller: Caller) -> None:
    """Listen to a reply for a while, then talk, and listen to the next reply."""
    caller.send({"type": "response.create"})
    await caller.wait_for("output_audio_buffer.started")
    await asyncio.sleep(0.9)
    caller.microphone.late_s = 0.0
    await caller.say()
    await caller.wait_for("output_audio_buffer.cleared")
    await caller.wait_for("output_audio_buffer.stopped")


async def test_a_caller_talks_and_hears_the_reply(bridge: Bridge, upstream: RealtimeServer) -> None:
    upstream.behaviour = Behaviour(replies=[(Speech(OLD, 1.0),)])
    session = {"type": "realtime", "model": "gpt-realtime-of-call", "instructions": "Be brief."}
    async with talking(bridge, upstream, session) as (caller, connection):
        updated = await caller.wait_for("session.updated")
        await caller.say(0.6)
        await caller.wait_for("output_audio_buffer.stopped")

    # It was there before the caller was: ICE and DTLS need no server.
    assert caller.connected_at is not None
    assert connection.opened_at < caller.connected_at
    assert connection.query == {"model": ["gpt-realtime-of-call"]}
    assert connection.headers["Authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert connection.headers[HEADER[0]] == HEADER[1]
    # The session is the server's, and what the call was made with is its first update.
    first = connection.received_of("session.update")[0]["session"]
    assert first == {"type": "realtime", "instructions": "Be brief."}
    assert updated.event["session"]["instructions"] == "Be brief."

    assert strongest_hertz(connection.audio, PCM.rate) == pytest.approx(VOICE_HZ, abs=2)
    appended = connection.received_of("input_audio_buffer.append")
    assert {len(b64decode(event["audio"])) / 48 for event in appended} == {20}
    assert caller.heard_ms(OLD) == pytest.approx(1000, abs=HEARD_WITHIN_MS)

    kinds = caller.types()
    started, stopped = kinds.index("output_audio_buffer.started"), kinds.index("output_audio_buffer.stopped")
    assert kinds.index("response.created") < started < stopped
    response_id = connection.sent_of("response.created")[0]["response"]["id"]
    told = caller.of("output_audio_buffer.started", "output_audio_buffer.stopped")
    assert [noted.event["response_id"] for noted in told] == [response_id] * 2
    assert truncations(connection) == {}
    assert wrong_events(caller, connection) == []
    assert_all_passed(caller, connection)


@pytest.mark.timed
async def test_speech_cuts_what_is_said_and_the_model_learns_what_was_heard(
    bridge: Bridge, upstream: RealtimeServer
) -> None:
    replies = [(Speech(OLD, 5.0), Speech(QUEUED, 2.0)), (Speech(NEW, 0.6),)]
    upstream.behaviour = Behaviour(replies=replies, speed=30)
    async with talking(bridge, upstream) as (caller, connection):
        await interrupt(caller)

    assert connection.query == {"model": [MODEL]}
    assert cut_after_ms(caller, connection) <= CUT_MS + ROUND_TRIP_MS
    partly, unheard, _ = items_said(connection)
    cuts = truncations(connection)
    assert cuts == {partly: pytest.approx(caller.heard_ms(OLD), abs=HEARD_WITHIN_MS), unheard: 0}
    assert caller.heard(QUEUED) == []
    assert caller.heard_ms(NEW) == pytest.approx(600, abs=HEARD_WITHIN_MS)
    # The server took them, and the client was told so.
    assert [connection.conversation.items[item].truncated_ms for item in (partly, unheard)] == list(cuts.values())
    assert len(caller.of("conversation.item.truncated")) == 2
    response_ids = [event["response"]["id"] for event in connection.sent_of("response.created")]
    assert [noted.event["response_id"] for noted in caller.of("output_audio_buffer.cleared")] == response_ids[:1]
    assert [noted.event["response_id"] for noted in caller.of("output_audio_buffer.stopped")] == response_ids[1:]
    assert wrong_events(caller, connection) == []
    assert_all_passed(caller, connection)


@pytest.mark.timed
async def test_audio_that_comes_late_for_a_cancelled_response_is_not_heard(
    bridge: Bridge, upstream: RealtimeServer
) -> None:
    replies = [(Speech(OLD, 8.0),), (Speech(NEW, 0.6),)]
    upstream.behaviour = Behaviour(replies=replies, speed=2, late_deltas=10)
    async with talking(bridge, upstream) as (caller, connection):
        await interrupt(caller)
        cancelled, _ = connection.sent_of("response.done")
        assert cancelled["response"]["status"] == "cancelled"
        old = [event for event in connection.sent_of(*DELTAS) if event["response_id"] == cancelled["response"]["id"]]
        heard = caller.heard_ms(OLD)
        connection.send(old[-1])
        await asyncio.sleep(0.5)  # and listen on

    assert cut_after_ms(caller, connection) <= CUT_MS + ROUND_TRIP_MS
    assert caller.heard_ms(OLD) == heard
    assert truncations(connection) == {old[-1]["item_id"]: pytest.approx(heard, abs=HEARD_WITHIN_MS)}
    assert len(caller.of("output_audio_buffer.cleared")) == 1


@pytest.mark.timed
async def test_a_client_may_clear_what_is_said(bridge: Bridge, upstream: RealtimeServer) -> None:
    upstream.behaviour = Behaviour(replies=[(Speech(OLD, 4.0),)], speed=30)
    async with talking(bridge, upstream) as (caller, connection):
        caller.send({"type": "response.create"})
        await caller.wait_for("output_audio_buffer.started")
        await asyncio.sleep(0.6)
        caller.microphone.late_s = 0.0
        asked = time.monotonic()
        caller.send({"type": "output_audio_buffer.clear"})
        await caller.wait_for("conversation.item.truncated")
        await asyncio.sleep(0.5)  # and listen on

    took = (caller.heard(OLD)[-1].at - asked - caller.microphone.late_s) * 1000
    assert took <= CUT_MS + ROUND_TRIP_MS
    (item,) = items_said(connection)
    assert truncations(connection) == {item: pytest.approx(caller.heard_ms(OLD), abs=HEARD_WITHIN_MS)}
    assert len(caller.of("output_audio_buffer.cleared")) == 1
    assert connection.received_of("output_audio_buffer.clear") == []
    assert wrong_events(caller, connection) == []


async def test_tools_and_events_that_nobody_knows_pass_both_ways_unchanged(
    bridge: Bridge, upstream: RealtimeServer
) -> None:
    call = FunctionCall("weather", '{"city": "Zürich"}')
    upstream.behaviour = Behaviour(replies=[(call,), (Speech(NEW, 0.5),)])
    unknown = '{"type": "vendor.hello",  "n": 1.50, "text": "gr\u00fcezi"}'
    async with talking(bridge, upstream) as (caller, connection):
        await caller.say()
        asked = (await caller.wait_for("response.function_call_arguments.done")).event
        assert (asked["name"], asked["arguments"]) == (call.name, call.arguments)
        output = {"type": "function_call_output", "call_id": asked["call_id"], "output": "☀"}
        answers: list[Event] = [
            {"type": "conversation.item.create", "event_id": "mine_1", "item": output},
            {"type": "response.create", "event_id": "mine_2"},
        ]
        for answer in answers:
            caller.send(answer)
        await caller.wait_for("output_audio_buffer.stopped")
        assert caller.heard_ms(NEW) == pytest.approx(500, abs=HEARD_WITHIN_MS)

        caller.send(json.loads(unknown))
        refused = (await caller.wait_for("error")).event
        assert refused == connection.sent_of("error")[0]
        connection.send(unknown)
        await caller.wait_for("vendor.hello")
        assert unknown in caller.texts

        caller.send("no json")
        assert (await caller.wait_for("error", 2)).event["error"]["code"] == "invalid_json"

    asked_upstream = connection.received_of("conversation.item.create", "response.create", "vendor.hello")
    assert asked_upstream == [*answers, json.loads(unknown)]
    assert connection.garbage == []


async def test_the_largest_messages_pass_both_ways(bridge: Bridge, upstream: RealtimeServer) -> None:
    def event(kind: str, number: int = 0) -> Event:
        empty = {"type": kind, "event_id": f"large_{number}", "pad": ""}
        return {**empty, "pad": "x" * (LARGEST_MESSAGE - len(json.dumps(empty)))}

    async with talking(bridge, upstream) as (caller, connection):
        # At once twice as much as may wait in a channel: the server has to wait.
        for number in range(8):
            connection.send(event("vendor.down", number))
        await caller.wait_for("vendor.down", 8)
        assert [noted.event for noted in caller.of("vendor.down")] == [event("vendor.down", n) for n in range(8)]
        caller.send(event("vendor.up"))
        assert await connection.wait_for("vendor.up") == [event("vendor.up")]


async def test_a_server_of_the_beta_is_understood(bridge: Bridge, upstream: RealtimeServer) -> None:
    upstream.behaviour = Behaviour(replies=[(Speech(OLD, 5.0),)], dialect=Dialect.BETA, speed=30)
    async with talking(bridge, upstream) as (caller, connection):
        await caller.say()
        await caller.wait_for("output_audio_buffer.started")
        await caller.wait_for("response.done")
        caller.send({"type": "output_audio_buffer.clear"})
        await caller.wait_for("conversation.item.truncated")
        await asyncio.sleep(0.3)  # and listen on

    assert {"response.audio.done", "conversation.item.created"} <= set(caller.types())
    (item,) = items_said(connection)
    assert 0 < caller.heard_ms(OLD) < 3000
    assert truncations(connection) == {item: pytest.approx(caller.heard_ms(OLD), abs=HEARD_WITHIN_MS)}
    assert strongest_hertz(connection.audio, PCM.rate) == pytest.approx(VOICE_HZ, abs=2)
    assert_all_passed(caller, connection)


async def test_a_session_may_have_g711_each_direction_its_own(bridge: Bridge, upstream: RealtimeServer) -> None:
    upstream.behaviour = Behaviour(replies=[(Speech(NEW, 0.5),)])
    audio = {"input": {"format": {"type": PCMU.name}}, "output": {"format": {"type": PCMA.name}}}
    async with talking(bridge, upstream, {"type": "realtime", "audio": audio}) as (caller, connection):
        await caller.say()
        await caller.wait_for("output_audio_buffer.stopped")

    assert caller.heard_ms(NEW) == pytest.approx(500, abs=HEARD_WITHIN_MS)
    assert strongest_hertz(connection.audio, PCMU.rate) == pytest.approx(VOICE_HZ, abs=2)
    assert np.abs(connection.audio).max() == pytest.approx(VOICE_PEAK, rel=0.2)


async def test_a_side_band_of_the_openai_package_sees_the_call_and_steers_it(
    bridge: Bridge, upstream: RealtimeServer
) -> None:
    upstream.behaviour = Behaviour(replies=[(Speech(NEW, 0.5),)])
    async with (
        talking(bridge, upstream) as (caller, connection),
        openai.AsyncOpenAI(api_key=USHER_KEY, base_url=f"{bridge.fleet.url}/v1") as package,
        package.realtime.connect(call_id=caller.call_id) as side_band,
    ):
        greeted = await side_band.recv()
        assert greeted.type == "session.created"
        assert greeted.session.to_dict() == connection.conversation.session
        await side_band.session.update(session={"type": "realtime", "instructions": "Be kind."})
        await side_band.response.create()
        seen = []
        while "output_audio_buffer.stopped" not in seen:
            seen.append((await asyncio.wait_for(side_band.recv(), 5)).type)
        await caller.wait_for("output_audio_buffer.stopped")

    assert connection.conversation.session["instructions"] == "Be kind."
    assert caller.heard_ms(NEW) == pytest.approx(500, abs=HEARD_WITHIN_MS)
    assert seen == caller.types()[1:]


async def test_a_page_with_the_policy_for_browsers_neither_sees_nor_sets_what_its_server_told_the_model(
    bridge: Bridge, upstream: RealtimeServer
) -> None:
    upstream.behaviour = Behaviour(replies=[(Speech(NEW, 0.2),)])
    told = {"type": "realtime", "instructions": "Never speak of the moon."}
    body = {"session": told, "event_policy": "browser"}
    headers = {"Authorization": f"Bearer {USHER_KEY}"}
    async with httpx.AsyncClient(base_url=bridge.fleet.url, headers=headers) as server:
        key = (await server.post("/v1/realtime/client_secrets", json=body)).json()["value"]
    wanted = {"instructions": "Swear."}
    async with calling(bridge.fleet.url, key, {"type": "realtime", **wanted}) as caller:
        connection = await upstream.wait_for_connection()
        await caller.wait_for("session.updated")
        caller.send({"type": "session.update", "session": wanted})
        caller.send({"type": "response.create", "response": wanted})
        # Whoever reads the first `type` gets an update, and whoever reads the last one what is allowed.
        caller.send('{"type":"session.update","session":{"voice":"v"},"type":"input_audio_buffer.clear"}')
        await caller.wait_for("error", 2)
        caller.send({"type": "response.create"})
        await caller.wait_for("output_audio_buffer.stopped")
    await connection.wait_until_closed()

    events = [noted.event for noted in connection.received if noted.event["type"] != "input_audio_buffer.append"]
    assert [event["type"] for event in events] == ["session.update", "input_audio_buffer.clear", "response.create"]
    assert connection.conversation.session["instructions"] == told["instructions"]
    assert [noted.event["error"]["code"] for noted in caller.of("error")] == ["event_not_allowed"] * 2
    assert "moon" not in "".join(caller.texts)
    bridge.assert_keeps_its_secrets(caller)
