"""Chromium behind a network that loses packets: copies of them are sent, received and used."""

import re

import pytest
from playwright.async_api import Page

from tests.browser.stack import Stack
from tests.browser.test_browser_bare import bare_page, call, plain_browser, until_heard
from tests.integration.udp_proxy import UdpProxy, Weather

__all__ = ["bare_page", "plain_browser"]  # fixtures

pytestmark = [pytest.mark.timed, pytest.mark.needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

LOSS = 0.1
THROUGH_PROXY = """(proxy) => {
  const native = RTCPeerConnection.prototype.setRemoteDescription;
  RTCPeerConnection.prototype.setRemoteDescription = function ({ type, sdp }) {
    const port = sdp.match(/^m=audio ([0-9]+)/m)[1];
    return native.call(this, { type, sdp: sdp.replaceAll(` ${port} `, ` ${proxy} `) });
  };
}"""


async def test_at_10_percent_loss_chromium_repairs_most_of_it_with_our_copies(
    bare_page: Page, usher_with_key: Stack
) -> None:
    placed = await call(bare_page, usher_with_key.calls_url, usher_with_key.key)
    port = re.search(r"m=audio (\d+)", placed["answer"])
    assert port is not None
    async with UdpProxy(("127.0.0.1", int(port[1])), Weather(loss=LOSS)) as proxy:
        await bare_page.evaluate(THROUGH_PROXY, proxy.address[1])
        await call(bare_page, usher_with_key.calls_url, usher_with_key.key)
        await until_heard(bare_page)
        await bare_page.wait_for_timeout(8_000)  # Chromium reports loss every few seconds
        before = await bare_page.evaluate("ear.stat('inbound-rtp')")
        await bare_page.wait_for_timeout(8_000)
        after = await bare_page.evaluate("ear.stat('inbound-rtp')")
    change = {name: after[name] - before[name] for name in ("packetsLost", "packetsReceived", "concealedSamples")}
    heard = after["totalSamplesReceived"] - before["totalSamplesReceived"]
    lost = change["packetsLost"] / (change["packetsReceived"] + change["packetsLost"])
    concealed = change["concealedSamples"] / heard
    print(f"lost {lost:.1%}, concealed {concealed:.1%}")
    assert lost > LOSS / 2
    assert concealed < lost / 2
