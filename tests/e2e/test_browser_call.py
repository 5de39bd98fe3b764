"""Chromium outside the cluster: its call goes through the relays' Service, as those of people do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import HERE, Launcher, launch, new_page, other_origin
from tests.browser.hearing import TONE_HZ, hear
from tests.e2e.conftest import Figure
from tests.e2e.fleet import API_KEY, RELAY_SERVICE, Fleet

__all__ = ["launch", "other_origin"]  # fixtures of the browser tests

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.needs("kubernetes", "helm", "chromium"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]


async def test_chromium_hears_its_tone_through_the_relays_of_the_cluster(
    fleet: Fleet, launch: Launcher, other_origin: tuple[Path, str], figure: Figure
) -> None:
    folder, origin = other_origin
    (folder / "index.html").write_text('<!doctype html><script src="bare.js"></script>')
    (folder / "bare.js").write_text((HERE / "bare.js").read_text())
    browser = await launch()
    page = await new_page(browser)
    await page.goto(origin)
    given = {"url": f"{fleet.url}/v1/realtime/calls", "key": API_KEY, "complete": False}
    placed = await page.evaluate("(o) => call(o)", given)
    heard_something = "ear.peers.at(-1).getReceivers()[0].getSynchronizationSources().length"
    await page.wait_for_function(heard_something, timeout=15_000)
    heard = hear(await page.evaluate("(s) => ear.listen(s)", 4))
    await browser.close()
    figure("what Chromium heard", heard)
    status = fleet.namespace.get(f"service/{RELAY_SERVICE}")["status"]
    for address in status["loadBalancer"].get("ingress", ()):
        assert address["ip"] in placed["answer"]
    assert heard.frequency_hz == pytest.approx(TONE_HZ, abs=3)
    assert heard.share > 0.5, "a busy machine tears holes, but a call that works is heard most of the time"
