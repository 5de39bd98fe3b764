"""When a call cannot be: the demo page says why in words, and what to do."""

import json
import re
from functools import partial

import pytest
from playwright.async_api import Page, Route, expect

from tests.browser.conftest import API_KEY, Launcher, new_page
from tests.browser.fickle import FickleBackend
from tests.browser.stack import Stack

pytestmark = [pytest.mark.programs, pytest.mark.needs("chromium"), pytest.mark.asyncio(loop_scope="module")]


async def press(page: Page, url: str) -> None:
    await page.goto(url)
    await page.locator("#talk").click()


async def expect_problem(page: Page, title: str, advice: str) -> None:
    alert = page.get_by_role("alert")
    await expect(alert.get_by_role("heading")).to_have_text(title)
    await expect(alert).to_contain_text(advice)


async def test_a_key_is_asked_for_refused_and_then_taken(page: Page, usher_with_key: Stack):
    await page.goto(usher_with_key.url)
    await expect(page.get_by_role("status")).to_have_text("API key needed")
    await expect(page.get_by_label("API key")).to_be_focused()
    await expect(page.locator("#hint")).to_contain_text("Enter your API key")
    await expect(page.get_by_role("alert")).to_be_hidden()

    await page.get_by_role("button", name="Start the call").click()
    await expect_problem(page, "This server asks for an API key", "Enter the key")
    await expect(page.get_by_role("alert")).not_to_contain_text("Authorization")
    await expect(page.get_by_label("API key")).to_be_focused()

    await page.keyboard.type("sk-not-this-one")
    await page.keyboard.press("Enter")
    await expect_problem(page, "The key was refused", "enter it again")

    await page.get_by_label("API key").fill(API_KEY)
    await page.get_by_role("button", name="Use key and call").click()
    await page.wait_for_selector("body[data-phase=live]")
    await expect(page.locator("#stop-backend")).to_have_text("echo")
    await expect(page.get_by_role("alert")).to_be_hidden()


async def test_a_key_stays_in_its_tab(page: Page, usher_with_key: Stack):
    await press(page, usher_with_key.url)
    await page.get_by_label("API key").fill(API_KEY)
    await page.keyboard.press("Enter")
    await page.wait_for_selector("body[data-phase=live]")

    assert await page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert await page.evaluate("document.body.innerHTML.includes('sk-')") is False
    another = await page.context.new_page()
    await press(another, usher_with_key.url)
    await expect_problem(another, "This server asks for an API key", "Enter the key")


async def test_a_stored_key_that_is_refused_is_asked_for_again_at_once(page: Page, usher_with_key: Stack):
    await page.add_init_script("sessionStorage.setItem('usher-api-key', 'sk-of-yesterday')")
    await page.goto(usher_with_key.url)

    await expect(page.get_by_role("status")).to_have_text("API key needed")
    await expect_problem(page, "The key was refused", "not known here")
    await expect(page.get_by_label("API key")).to_be_focused()


@pytest.mark.parametrize("when", ["made", "started", "spoken to"])
async def test_a_backend_that_fails_is_said_to_have_failed_and_at_once(
    page: Page, usher_with_fickle: Stack, fickle: FickleBackend, when: str
):
    fickle.fail_when(when)
    await press(page, usher_with_fickle.url)

    await expect_problem(page, "The backend failed", "the transceiver's log says why")
    await expect(page.locator("#problem-detail")).to_contain_text("fickle")
    await expect(page.get_by_role("status")).to_have_text("Call failed")

    fickle.fail_when("never")
    await page.get_by_role("button", name="Try again").click()
    await page.wait_for_selector("body[data-phase=live]")
    await expect(page.get_by_role("alert")).to_be_hidden()


async def test_a_backend_that_fails_while_no_packet_comes_through_is_named_and_not_the_firewall(
    page: Page, usher: Stack
):
    await page.route(f"{usher.calls_url}/*", partial(answer_ended, reason="backend_failed"))
    await page.route(usher.calls_url, to_nowhere)
    await press(page, usher.url)

    await expect_problem(page, "The backend failed", "the transceiver's log says why")


async def test_a_transceiver_that_is_gone_is_named_and_not_the_network(page: Page, usher: Stack):
    await page.route(
        f"{usher.calls_url}/*", lambda route: route.fulfill(status=410, json={"error": {"code": "call_gone"}})
    )
    await page.route(usher.calls_url, to_nowhere)
    await press(page, usher.url)

    await expect_problem(page, "The server that had your call is gone", "another one takes it")


async def answer_ended(route: Route, reason: str) -> None:
    """As `GET` of a call that has ended."""
    await route.fulfill(json={"state": "ended", "end_reason": reason, "backend": "echo"})


async def to_nowhere(route: Route) -> None:
    """The server's answer with an address where nobody listens."""
    answered = await route.fetch()
    sdp = re.sub(r"(a=candidate:\S+ \d+ \S+ \d+) \S+ \d+ ", r"\1 127.0.0.1 9 ", await answered.text())
    await route.fulfill(response=answered, body=sdp)


async def test_no_microphone(launch: Launcher, usher: Stack):
    page = await new_page(await launch("--use-fake-ui-for-media-stream"))
    await press(page, usher.url)
    await expect_problem(page, "No microphone found", "Plug one in")


async def test_a_blocked_microphone(launch: Launcher, usher: Stack):
    page = await new_page(await launch("--use-fake-device-for-media-stream", "--deny-permission-prompts"))
    await press(page, usher.url)
    await expect_problem(page, "The microphone is blocked", "Allow the microphone")


async def test_an_insecure_address(page: Page, usher_with_key: Stack):
    async def from_usher(route: Route) -> None:
        path = route.request.url.removeprefix("http://usher.test")
        await route.fulfill(response=await route.fetch(url=usher_with_key.url + path))

    await page.route("http://usher.test/**", from_usher)
    await page.goto("http://usher.test/")

    await expect_problem(page, "This address is not secure", "https://")
    await expect(page.locator("#talk")).to_be_disabled()
    await page.unroute_all(behavior="ignoreErrors")  # the icon may still be on its way


async def test_no_transceiver_free(page: Page, usher: Stack):
    error = {"error": {"type": "server_error", "code": "no_transceiver", "message": "all are full", "param": None}}
    await page.route(usher.calls_url, lambda route: route.fulfill(status=503, body=json.dumps(error)))
    await press(page, usher.url)
    await expect_problem(page, "Nobody is free to take the call", "HTTP 503: all are full")


async def test_a_failing_proxy_that_speaks_no_json(page: Page, usher: Stack):
    await page.route(usher.calls_url, lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    await press(page, usher.url)
    await expect_problem(page, "The server failed", "HTTP 502")


async def test_the_network_is_gone(page: Page, usher: Stack):
    await page.goto(usher.url)
    await page.context.set_offline(True)
    await page.locator("#talk").click()
    await expect_problem(page, "The server cannot be reached", "Check your network")


async def test_blocked_udp_names_the_address_that_must_pass(page: Page, usher: Stack):
    await page.clock.install()
    await page.route(usher.calls_url, to_nowhere)
    await press(page, usher.url)
    await expect(page.locator("#timings tr.done")).to_have_count(1)
    await page.clock.fast_forward(15_000)

    await expect_problem(page, "No packet came through", "UDP 127.0.0.1:9")


async def test_hanging_up_while_connecting_leaves_no_error(page: Page, usher: Stack):
    await page.route(usher.calls_url, lambda route: None)  # never answered
    await press(page, usher.url)
    await expect(page.get_by_role("status")).to_have_text("Connecting")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("status")).to_have_text("Call ended")
    await expect(page.get_by_role("alert")).to_be_hidden()
