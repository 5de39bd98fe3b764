"""The unmodified npm package @openai/agents-realtime in Chromium, against usher with a Realtime server behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
import pytest_asyncio
from playwright.async_api import Page

from tests.browser.hearing import TONE_HZ, hear
from tests.browser.stack import Stack, ephemeral_key
from tests.integration.realtime_fleet import UPSTREAM_KEY, USHER_KEY, Bridge, reserved_port, running_bridge
from tests.realtime_audio import PCM, SPEECH_RMS, strongest_hertz
from tests.realtime_connection import Behaviour, Connection
from tests.realtime_response import FunctionCall, Speech
from tests.realtime_server import RealtimeServer

pytestmark = [pytest.mark.timed, pytest.mark.needs("chromium", "node"), pytest.mark.asyncio(loop_scope="module")]

MODEL = "gpt-realtime-of-page"
OLD, NEW = 600.0, 1000.0
QUIET_AFTER_S = 0.5
"""After an interruption: the browser's jitter buffer, and the time that a page's events take to us."""
FREED_WITHIN_S = 1.0
CLEAR = 0.7
"""Share of the time in which a tone is there; a browser on a busy machine hears gaps of its own."""


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    with reserved_port() as port, running_bridge(tmp_path_factory.mktemp("bridge"), port) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def upstream(bridge: Bridge) -> AsyncIterator[RealtimeServer]:
    async with RealtimeServer(bridge.port, UPSTREAM_KEY) as server:
        yield server


async def connect(page: Page, site: str, bridge: Bridge, upstream: RealtimeServer) -> Connection:
    """Connect the page, muted; return its connection upstream."""
    usher = Stack(bridge.fleet.url, USHER_KEY, bridge.fleet.state())
    await page.goto(site)
    key = await ephemeral_key(page, usher, MODEL)
    arguments = {"baseUrl": usher.calls_url, "apiKey": key, "model": MODEL, "muted": True}
    await page.evaluate("(o) => connectAgent(o)", arguments)
    return await upstream.wait_for_connection()


async def say(page: Page, seconds: float = 0.5) -> None:
    """Talk for a while: the microphone plays a tone all the time, so it is muted and not."""
    await page.evaluate("session.mute(false)")
    await asyncio.sleep(seconds)
    await page.evaluate("session.mute(true)")


async def came(page: Page, event: str, count: int = 1) -> None:
    """Wait until the library has got so many of these."""
    await page.wait_for_function(f"heard.events.filter((type) => type === '{event}').length >= {count}", timeout=10_000)


async def hears(page: Page, hertz: float, seconds: float = 0.5) -> float:
    """The share of the time in which there is this tone."""
    return hear(await page.evaluate(f"ear.listen({seconds})"), hertz).share


async def test_a_page_connects_talks_hears_and_is_heard_until_it_closes(
    page: Page, agent_site: str, bridge: Bridge, upstream: RealtimeServer
) -> None:
    upstream.behaviour = Behaviour(replies=[(Speech(OLD, 2.5),)])
    connection = await connect(page, agent_site, bridge, upstream)
    assert await page.evaluate("transport.status") == "connected"
    assert {"session.created", "session.updated"} <= set(await page.evaluate("heard.events"))
    assert connection.query == {"model": [MODEL]}
    session = connection.conversation.session
    assert session["instructions"] == "Say it back."
    assert [tool["name"] for tool in session["tools"]] == ["weather"]

    await say(page)
    await came(page, "output_audio_buffer.started")
    assert await hears(page, OLD, 1.0) >= CLEAR
    assert strongest_hertz(connection.audio, PCM.rate) == pytest.approx(TONE_HZ, abs=2)
    assert not [name for name in await page.evaluate("heard.events") if name.endswith("audio.delta")]

    # Muted: what comes now is silence.
    before = len(connection.audio)
    await came(page, "output_audio_buffer.stopped")
    muted = connection.audio[before:].astype(float)
    assert len(muted) > PCM.rate
    assert np.sqrt(np.mean(muted**2)) < SPEECH_RMS / 10

    began = time.monotonic()
    await page.evaluate("session.close()")
    assert await connection.wait_until_closed() - began <= FREED_WITHIN_S
    assert await page.evaluate("heard.errors") == []


async def test_a_caller_interrupts(page: Page, agent_site: str, bridge: Bridge, upstream: RealtimeServer) -> None:
    upstream.behaviour = Behaviour(replies=[(Speech(OLD, 20.0),), (Speech(NEW, 20.0),)], speed=30)
    connection = await connect(page, agent_site, bridge, upstream)
    await say(page)
    await came(page, "output_audio_buffer.started")
    assert await hears(page, OLD) >= CLEAR

    await page.evaluate("session.mute(false)")
    await came(page, "output_audio_buffer.cleared")
    await asyncio.sleep(QUIET_AFTER_S)
    assert await hears(page, OLD, 0.3) == 0
    await page.evaluate("session.mute(true)")
    (cut,) = await connection.wait_for("conversation.item.truncate")
    assert 500 < cut["audio_end_ms"] < 10_000
    # The library asks for the item as it is now, and is answered.
    await came(page, "conversation.item.retrieved")

    await came(page, "output_audio_buffer.started", 2)
    assert await hears(page, NEW) >= CLEAR
    await page.evaluate("session.interrupt()")
    await came(page, "output_audio_buffer.cleared", 2)
    await asyncio.sleep(QUIET_AFTER_S)
    assert await hears(page, NEW, 0.3) == 0
    assert connection.received_of("output_audio_buffer.clear") == []
    await connection.wait_for("conversation.item.truncate", 2)
    assert connection.sent_of("error") == []


async def test_a_tool_of_the_page_is_called_and_answers(
    page: Page, agent_site: str, bridge: Bridge, upstream: RealtimeServer
) -> None:
    upstream.behaviour = Behaviour(replies=[(FunctionCall("weather", '{"city": "Zürich"}'),), (Speech(NEW, 2.0),)])
    connection = await connect(page, agent_site, bridge, upstream)
    await say(page)
    await came(page, "output_audio_buffer.started")
    assert await hears(page, NEW) >= CLEAR

    assert await page.evaluate("heard.cities") == ["Zürich"]
    (created,) = connection.received_of("conversation.item.create")
    (asked,) = connection.sent_of("response.function_call_arguments.done")
    item = created["item"]
    assert (item["type"], item["call_id"], item["output"]) == (
        "function_call_output",
        asked["call_id"],
        "Rain in Zürich.",
    )
    assert await page.evaluate("heard.errors") == []
