"""The unmodified npm package @openai/agents-realtime in Chromium, pointed at usher."""

import time

import pytest
import pytest_asyncio
from playwright.async_api import Page

from tests.browser.hearing import TONE_DB, TONE_HZ, hear
from tests.browser.stack import Stack, end_on_server, ephemeral_key

pytestmark = [pytest.mark.programs, pytest.mark.needs("chromium", "node"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module")
async def agent_page(page: Page, agent_site: str, usher_with_key: Stack) -> Page:
    """A page whose session has connected with an ephemeral key."""
    await page.goto(agent_site)
    arguments = {"baseUrl": usher_with_key.calls_url, "apiKey": await ephemeral_key(page, usher_with_key)}
    await page.evaluate("(o) => connectAgent(o)", arguments)
    return page


async def test_connects_and_the_tone_comes_back(agent_page: Page, usher_with_key: Stack):
    assert await agent_page.evaluate("transport.status") == "connected"
    assert "session.updated" in await agent_page.evaluate("heard.events")
    await agent_page.wait_for_function("ear.peers.at(-1).getReceivers()[0].getSynchronizationSources().length")

    heard = hear(await agent_page.evaluate("ear.listen(3)"))
    print(heard)

    assert heard.frequency_hz == pytest.approx(TONE_HZ, abs=2)
    assert heard.level_db == pytest.approx(TONE_DB, abs=3)
    assert heard.share >= 0.95
    assert await agent_page.evaluate("heard.errors") == []
    # The library plays what it gets: event.streams[0] on the audio element.
    assert await agent_page.evaluate("document.querySelector('audio').srcObject.active")


async def test_call_id_is_the_one_the_server_knows(agent_page: Page, usher_with_key: Stack):
    call_id = await agent_page.evaluate("transport.callId")

    asked = await agent_page.request.get(f"{usher_with_key.calls_url}/{call_id}", headers=usher_with_key.authorization)

    assert asked.status == 200
    assert (await asked.json())["id"] == call_id


async def test_interrupt_leaves_the_call_running(agent_page: Page):
    await agent_page.evaluate("session.interrupt()")
    assert hear(await agent_page.evaluate("ear.listen(1)")).frequency_hz == pytest.approx(TONE_HZ, abs=4)
    assert await agent_page.evaluate("transport.status") == "connected"


async def test_close_ends_the_call_on_the_server_without_a_hang_up_request(agent_page: Page, usher_with_key: Stack):
    call_id = await agent_page.evaluate("transport.callId")

    await agent_page.evaluate("session.close()")

    url = f"{usher_with_key.calls_url}/{call_id}"
    assert await end_on_server(agent_page, url, usher_with_key.authorization) == "client_closed"


async def test_a_session_ended_by_the_server_is_noticed(agent_page: Page, usher_with_key: Stack):
    call_id = await agent_page.evaluate("transport.callId")

    url = f"{usher_with_key.calls_url}/{call_id}/hangup"
    assert (await agent_page.request.post(url, headers=usher_with_key.authorization)).status == 200

    await agent_page.wait_for_function("transport.status === 'disconnected'", timeout=10_000)
    # The library has no name for it, and leaves it to those who listen to all.
    assert (await agent_page.evaluate("heard.events"))[-1] == "usher.call.ended"
    assert not any("usher" in error for error in await agent_page.evaluate("heard.errors"))


async def test_with_the_policy_for_browsers_the_library_connects_at_once_and_sets_no_prompt(
    page: Page, agent_site: str, usher_with_key: Stack
):
    await page.goto(agent_site)
    key = await ephemeral_key(page, usher_with_key, event_policy="browser")
    begun = time.monotonic()
    await page.evaluate("(o) => connectAgent(o)", {"baseUrl": usher_with_key.calls_url, "apiKey": key})
    assert time.monotonic() - begun < 4.5, "it waits 5 s for session.updated"
    assert await page.evaluate("transport.status") == "connected"
    errors = await page.evaluate("heard.errors")
    assert errors, "it sends a session.update at the start"
    assert all("event_not_allowed" in error for error in errors)
    await page.wait_for_function("ear.peers.at(-1).getReceivers()[0].getSynchronizationSources().length")
    assert await page.evaluate("transport._rawSessionConfig.instructions ?? 'hidden'") == "hidden"
    assert "Say it back." not in str(await page.evaluate("transport._rawSessionConfig"))


async def test_a_wrong_key_is_reported_with_its_status(page: Page, agent_site: str, usher_with_key: Stack):
    await page.goto(agent_site)
    arguments = {"baseUrl": usher_with_key.calls_url, "apiKey": "ek_made_up"}

    refused = await page.evaluate("(o) => connectAgent(o).then(() => 'connected', (error) => error.message)", arguments)

    assert "401" in refused
