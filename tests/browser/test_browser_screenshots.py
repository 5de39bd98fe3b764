"""Pictures of the demo page for people to look at, in the folder that USHER_SCREENSHOTS names."""

import os
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.browser.stack import Stack
from tests.browser.test_browser_page import SCHEMES, start_call

pytestmark = [pytest.mark.programs, pytest.mark.needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

SIZES = {"desktop": (1280, 900), "phone": (375, 812)}


async def pictures(page: Page, folder: Path, name: str) -> None:
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        for size, (width, height) in SIZES.items():
            await page.set_viewport_size({"width": width, "height": height})
            path = folder / f"{name}-{scheme}-{size}.png"
            await page.screenshot(path=path, full_page=True, animations="disabled")
            beyond = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert beyond <= 0, f"{path.name} scrolls sideways by {beyond} px"


def picture_folder(otherwise: Path) -> Path:
    return Path(os.environ.get("USHER_SCREENSHOTS") or otherwise)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return picture_folder(tmp_path)


async def test_pictures_of_the_page(page: Page, usher: Stack, folder: Path):
    await page.goto(usher.url)
    await expect(page.get_by_label("Backend")).to_be_visible()
    await pictures(page, folder, "idle")
    await start_call(page, usher)
    await page.get_by_role("button", name="Look on by side-band").click()
    await expect(page.locator("#side-events [data-type='session.created']")).to_be_visible()
    await expect(page.locator("#clock")).to_have_text("0:04")
    await pictures(page, folder, "in-call")
    await page.route(usher.calls_url, lambda route: route.fulfill(status=503))
    await page.get_by_role("button", name="Hang up").click()
    await page.get_by_role("button", name="Call again").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await pictures(page, folder, "error")


async def test_pictures_of_the_fleet(page: Page, usher: Stack, usher_with_key: Stack, folder: Path):
    await page.goto(f"{usher.url}/fleet")
    await expect(page.locator("#relays tr")).to_have_count(2)
    await pictures(page, folder, "fleet")
    await page.goto(f"{usher_with_key.url}/fleet")
    await expect(page.get_by_label("API key")).to_be_visible()
    await pictures(page, folder, "fleet-key")
    await page.get_by_label("API key").fill("sk-not-this-one")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_be_visible()
    await pictures(page, folder, "fleet-locked")


async def test_pictures_of_a_page_that_needs_a_key(page: Page, usher_with_key: Stack, folder: Path):
    await page.goto(usher_with_key.url)
    await expect(page.get_by_label("API key")).to_be_visible()
    await pictures(page, folder, "key")
