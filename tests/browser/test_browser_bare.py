"""Chromium on a page of another origin that uses nothing but the web platform: CORS, mDNS names, WHIP."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.browser.conftest import HERE, Launcher, new_page
from tests.browser.hearing import TONE_DB, TONE_HZ, Heard, hear
from tests.browser.stack import Stack

pytestmark = [pytest.mark.timed, pytest.mark.needs("chromium"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain_browser(launch: Launcher) -> Browser:
    """Without microphone permission, so that Chromium hides its addresses behind mDNS names."""
    return await launch()


@pytest_asyncio.fixture(loop_scope="module")
async def bare_page(plain_browser: Browser, other_origin: tuple[Path, str]) -> AsyncIterator[Page]:
    folder, url = other_origin
    (folder / "index.html").write_text('<!doctype html><script src="bare.js"></script>')
    (folder / "bare.js").write_text((HERE / "bare.js").read_text())
    page = await new_page(plain_browser)
    await page.goto(url)
    yield page
    await page.context.close()


async def call(page: Page, url: str, key: str, complete: bool = False) -> dict[str, Any]:
    placed: dict[str, Any] = await page.evaluate("(o) => call(o)", {"url": url, "key": key, "complete": complete})
    return placed


async def listen(page: Page, seconds: float) -> Heard:
    return hear(await page.evaluate("(s) => ear.listen(s)", seconds))


def assert_whole(heard: Heard, longest_gap_ms: float = 60) -> None:
    print(heard)
    assert heard.frequency_hz == pytest.approx(TONE_HZ, abs=2)
    assert heard.level_db == pytest.approx(TONE_DB, abs=3)
    assert heard.share >= 0.95
    assert heard.longest_gap_ms <= longest_gap_ms


async def until_heard(page: Page) -> None:
    await page.wait_for_function("ear.peers.at(-1).getReceivers()[0].getSynchronizationSources().length")


async def test_a_page_of_another_origin_gets_its_tone_back(bare_page: Page, usher_with_key: Stack):
    placed = await call(bare_page, usher_with_key.calls_url, usher_with_key.key)
    await until_heard(bare_page)

    assert "a=candidate" not in placed["offer"]
    assert placed["location"].startswith(usher_with_key.calls_url + "/")
    assert_whole(await listen(bare_page, 4))
    assert (await bare_page.evaluate("events[0].type")) == "session.created"


async def test_every_packet_of_chromium_carries_a_copy_of_the_one_before(bare_page: Page, usher_with_key: Stack):
    await call(bare_page, usher_with_key.calls_url, usher_with_key.key)
    await until_heard(bare_page)

    assert await bare_page.evaluate("pc.getSenders()[0].getParameters().codecs[0].mimeType") == "audio/red"
    assert_whole(await listen(bare_page, 2))
    sent = await bare_page.evaluate("ear.stat('outbound-rtp')")
    assert sent["targetBitrate"] == pytest.approx(32_000, rel=0.1)
    assert sent["bytesSent"] / sent["packetsSent"] > 1.7 * sent["targetBitrate"] / 8 / 50


async def test_mdns_candidates_in_the_offer_do_no_harm(bare_page: Page, usher_with_key: Stack):
    placed = await call(bare_page, usher_with_key.calls_url, usher_with_key.key, complete=True)
    await until_heard(bare_page)

    assert ".local " in placed["offer"]
    assert_whole(await listen(bare_page, 2))


async def test_the_server_answers_events_of_the_page(bare_page: Page, usher_with_key: Stack):
    await call(bare_page, usher_with_key.calls_url, usher_with_key.key)

    await bare_page.evaluate("channel.send(JSON.stringify({type: 'session.update', session: {type: 'realtime'}}))")
    await bare_page.wait_for_function("events.some((event) => event.type === 'session.updated')")
    await bare_page.evaluate("channel.send('this is no JSON')")
    await bare_page.wait_for_function("events.some((event) => event.type === 'error')")
    assert await bare_page.evaluate("pc.connectionState") == "connected"


async def test_hanging_up_closes_the_data_channel(bare_page: Page, usher_with_key: Stack):
    placed = await call(bare_page, usher_with_key.calls_url, usher_with_key.key)

    ended = await bare_page.request.post(f"{placed['location']}/hangup", headers=usher_with_key.authorization)

    assert ended.status == 200
    await bare_page.wait_for_function("channel.readyState === 'closed'", timeout=2_000)


async def test_ice_restart_over_whip_keeps_the_tone(bare_page: Page, usher_with_key: Stack):
    placed = await call(bare_page, f"{usher_with_key.url}/whip", usher_with_key.key)
    await until_heard(bare_page)

    listening = asyncio.create_task(listen(bare_page, 4))
    restarted = await asyncio.wait_for(bare_page.evaluate("restartIce()"), 10)

    assert restarted["type"] == "application/trickle-ice-sdpfrag"
    assert placed["etag"]
    assert restarted["etag"] != placed["etag"]
    assert restarted["ufrag"] not in placed["answer"]
    assert_whole(await listening, longest_gap_ms=60)
    ended = await bare_page.request.delete(placed["location"], headers=usher_with_key.authorization)
    assert ended.status == 200
