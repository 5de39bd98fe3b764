"""The demo page of `usher up` with several regions: a call that enters in one and is served in another."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.browser.stack import Stack, usher_up
from tests.browser.test_browser_page import press_and_wait
from tests.browser.test_browser_screenshots import picture_folder, pictures

pytestmark = [pytest.mark.timed, pytest.mark.needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

WAN_MS = 40


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("regions")
    with usher_up(folder, "--clusters=2", "--ingress=2", f"--wan={WAN_MS}ms", "--engine=python") as stack:
        yield stack


async def milliseconds(page: Page, hop: str) -> float:
    shown = page.locator(f"#hop-{hop}")
    await expect(shown).to_have_text(re.compile(r"\d ms$"), timeout=15_000)
    return float((await shown.inner_text()).removeprefix("< ").removesuffix(" ms"))


async def test_a_call_into_another_region_shows_both_relays_and_the_time_of_each_hop(
    page: Page, regions: Stack
) -> None:
    await page.goto(f"{regions.url}/?region=region-2")
    await press_and_wait(page)

    trunk = await milliseconds(page, "home")
    assert WAN_MS <= trunk <= 3 * WAN_MS
    assert await milliseconds(page, "relay") < WAN_MS
    assert await milliseconds(page, "transceiver") < WAN_MS
    await expect(page.locator("#path li.lit")).to_have_count(5)
    await expect(page.locator("#path h3:visible")).to_have_text(
        ["Browser", "Ingress relay", "Home relay", "Transceiver", "Backend"]
    )
    await expect(page.locator("#stop-relay")).to_have_text(re.compile("region-1$"))
    await expect(page.locator("#stop-transceiver")).to_have_text(
        re.compile(r"cluster 2\s+pod \d+, worker\s0\s+region-2")
    )
    await expect(page.locator("#elsewhere")).to_be_hidden()


async def test_a_call_within_a_region_shows_one_relay(page: Page, regions: Stack) -> None:
    await page.goto(regions.url)
    await press_and_wait(page)

    assert await milliseconds(page, "transceiver") < WAN_MS
    await expect(page.locator("#hop-home")).to_be_hidden()
    await expect(page.locator("#path li.lit")).to_have_count(4)
    await expect(page.locator("#relay-title")).to_have_text("Relay")
    await expect(page.locator("#stop-relay")).to_have_text(re.compile("region-1$"))
    await expect(page.locator("#elsewhere")).to_be_hidden()


async def test_a_call_that_is_not_served_in_the_region_asked_for_says_so(
    page: Page, regions: Stack, tmp_path: Path
) -> None:
    await page.goto(f"{regions.url}/?region=region-9")
    await expect(page.locator("#elsewhere")).to_be_hidden()
    await press_and_wait(page)

    said = page.locator("#elsewhere")
    await expect(said).to_have_text(re.compile(r"^You asked for region-9\. This call is served in region-[12]\.$"))
    served = (await said.inner_text()).removesuffix(".").split()[-1]
    await expect(page.locator("#stop-transceiver")).to_have_text(re.compile(f"{served}$"))
    await pictures(page, picture_folder(tmp_path), "elsewhere")
