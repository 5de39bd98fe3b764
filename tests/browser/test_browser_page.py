"""The demo page in Chromium: a person presses the button, speaks, and hears the answer."""

import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from tests.browser.hearing import TONE_DB, TONE_HZ, hear
from tests.browser.stack import Stack, end_on_server

pytestmark = [pytest.mark.programs, pytest.mark.needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

LIVE = "body[data-phase=live]"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


async def start_call(page: Page, usher: Stack) -> None:
    await page.goto(usher.url)
    await press_and_wait(page)


async def press_and_wait(page: Page) -> None:
    """From the press to the first audio. Raw microphone: noise suppression takes a steady tone for noise."""
    await page.get_by_label("Raw microphone").check()
    await page.get_by_role("button", name="Start the call").click()
    await page.wait_for_selector(LIVE)
    await expect(page.locator("#timings tr.done")).to_have_count(4)


async def call_url(page: Page, usher: Stack) -> str:
    """Where the call of this page can be asked about: from the Location header of its answer."""
    async with page.expect_response(lambda r: r.url == usher.calls_url and r.status == 201) as answered:
        await start_call(page, usher)
    location = await (await answered.value).header_value("location")
    assert location is not None
    return usher.url + location


def console_errors(page: Page) -> list[str]:
    """Filled with what the browser complains about from now on."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


async def axe_violations(page: Page) -> list[str]:
    """What axe, already loaded into the page, complains about in light and in dark."""
    found = []
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        report = await page.evaluate("(rules) => axe.run({runOnly: rules})", AXE_RULES)
        found += [f"{scheme}: {v['help']}: {[n['html'] for n in v['nodes']]}" for v in report["violations"]]
    return found


@pytest.mark.timed
async def test_pressing_the_button_brings_the_tone_back_whole(page: Page, usher: Stack):
    await start_call(page, usher)

    heard = hear(await page.evaluate("ear.listen(4)"))
    print(heard, "offer to first audio:", await page.locator("#total").inner_text())

    assert heard.frequency_hz == pytest.approx(TONE_HZ, abs=2)
    assert heard.level_db == pytest.approx(TONE_DB, abs=3)
    assert heard.share >= 0.95
    assert heard.longest_gap_ms <= 60
    stats = await page.evaluate("ear.stat('inbound-rtp')")
    assert stats["packetsLost"] == 0


async def test_the_page_works_under_its_own_content_security_policy(page: Page, usher: Stack):
    complaints = console_errors(page)
    response = await page.goto(usher.url)
    assert response is not None
    await start_call(page, usher)

    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert complaints == []


async def test_a_call_with_the_browsers_sound_processing_connects(page: Page, usher: Stack):
    await page.goto(usher.url)
    await page.get_by_role("button", name="Start the call").click()
    await page.wait_for_selector(LIVE)


async def test_session_created_is_the_first_event_of_the_data_channel(page: Page, usher: Stack):
    await start_call(page, usher)

    first = page.locator("#events li[data-direction=in]").first
    await expect(first).to_have_attribute("data-type", "session.created")
    await first.locator("summary").click()
    await expect(first.locator("pre")).to_contain_text('"session"')


async def test_the_path_of_the_call_lights_up_and_names_every_stop(page: Page, usher: Stack):
    await start_call(page, usher)

    await expect(page.locator("#path li.lit")).to_have_count(4)
    await expect(page.locator("#stop-relay")).to_have_text(re.compile(rf":{usher.state['udp'].rpartition(':')[2]}$"))
    await expect(page.locator("#stop-transceiver")).to_have_text(re.compile(r"cluster \d+\s+pod \d+, worker\s0"))
    await expect(page.locator("#stop-backend")).to_have_text("echo")


async def test_set_up_times_and_live_numbers_are_shown(page: Page, usher: Stack):
    await start_call(page, usher)

    for number in ("total", "rtt", "jitter"):
        await expect(page.locator(f"#{number}")).to_have_text(re.compile(r"^(< 1|\d+(\.\d)?) ms$"))
    for number in ("loss-down", "loss-up"):
        # The second comes with the first receiver report.
        await expect(page.locator(f"#{number}")).to_have_text(re.compile(r"^\d+(\.\d)? %$"), timeout=15_000)


async def test_both_meters_show_the_level(page: Page, usher: Stack):
    await start_call(page, usher)

    for meter in ("You", "Reply"):
        await expect(page.get_by_role("meter", name=meter)).to_have_attribute("aria-valuenow", re.compile(r"^-1\d$"))


async def test_mute_silences_the_call_and_speaking_goes_on_after_it(page: Page, usher: Stack):
    await start_call(page, usher)
    reply = page.get_by_role("meter", name="Reply")

    await page.get_by_role("button", name="Mute").click()
    await expect(page.get_by_role("button", name="Muted")).to_have_attribute("aria-pressed", "true")
    await expect(reply).to_have_text("silent")
    assert hear(await page.evaluate("ear.listen(1)")).level_db < -60

    await page.get_by_role("button", name="Muted").click()
    await expect(reply).to_have_attribute("aria-valuenow", re.compile(r"^-1\d$"))


async def test_hang_up_ends_the_call_here_and_on_the_server(page: Page, usher: Stack):
    url = await call_url(page, usher)
    assert (await page.request.get(url)).status == 200

    complaints = console_errors(page)

    async with page.expect_response(lambda r: r.url == f"{url}/hangup") as hung_up:
        await page.get_by_role("button", name="Hang up").click()

    assert (await hung_up.value).status == 200
    await expect(page.get_by_role("status")).to_have_text("Call ended")
    await expect(page.get_by_role("alert")).to_be_hidden()
    await page.wait_for_function("ear.peers.at(-1).connectionState === 'closed'")
    assert await end_on_server(page, url) == "hangup"
    assert complaints == []
    await page.get_by_role("button", name="Call again").click()
    await page.wait_for_selector(LIVE)


async def test_closing_the_tab_ends_the_call_on_the_server(page: Page, usher: Stack):
    url = await call_url(page, usher)

    await page.goto("about:blank")

    assert await end_on_server(page, url) in ("hangup", "client_closed")


async def test_a_call_ended_by_the_server_is_noticed_at_once(page: Page, usher: Stack):
    url = await call_url(page, usher)
    complaints = console_errors(page)

    assert (await page.request.post(f"{url}/hangup")).status == 200

    await expect(page.get_by_role("status")).to_have_text("The server ended the call", timeout=2_000)
    await expect(page.locator("#hint")).to_contain_text("Somebody ended the call at the server.")
    await page.wait_for_function("ear.peers.at(-1).connectionState === 'closed'")
    assert complaints == []


async def test_the_whole_call_works_by_keyboard(page: Page, usher: Stack):
    await page.goto(usher.url)
    button = page.get_by_role("button", name="Start the call")
    for _ in range(5):
        await page.keyboard.press("Tab")
        if await button.evaluate("(it) => it === document.activeElement"):
            break
    await page.keyboard.press("Enter")
    await page.wait_for_selector(LIVE)

    await page.keyboard.press("Tab")
    await page.keyboard.press("Space")
    await expect(page.get_by_role("button", name="Muted")).to_be_focused()

    await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text("Call ended")


@pytest.mark.needs("node")
async def test_axe_finds_nothing_to_complain_about(page: Page, usher: Stack, node_modules: Path):
    await page.goto(usher.url)
    await page.evaluate((node_modules / "axe-core" / "axe.min.js").read_text())

    assert await axe_violations(page) == []
    await press_and_wait(page)
    assert await axe_violations(page) == []
    await page.route(usher.calls_url, lambda route: route.abort())
    await page.get_by_role("button", name="Hang up").click()
    await page.get_by_role("button", name="Call again").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    assert await axe_violations(page) == []
