"""What the demo page offers beside the call: backends, ephemeral keys, side-band, snippet. And the fleet page."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Page, Request, Route, expect

from tests.browser.conftest import API_KEY
from tests.browser.stack import Stack
from tests.browser.test_browser_page import LIVE, axe_violations, start_call

pytestmark = [pytest.mark.programs, pytest.mark.needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

SLOW_MS = 15_000  # for what the page reads once a second from a server that asks its transceivers once a second


async def call_with_key(page: Page, usher: Stack) -> None:
    await page.goto(usher.url)
    await page.get_by_label("Raw microphone").check()
    await page.get_by_role("button", name="Start the call").click()
    await page.get_by_label("API key").fill(API_KEY)
    await page.keyboard.press("Enter")
    await page.wait_for_selector(LIVE)


async def test_choosing_parrot_calls_parrot_which_says_it_back_after_a_pause(page: Page, usher: Stack):
    await page.goto(usher.url)
    await page.get_by_label("Raw microphone").check()
    await page.get_by_label("Backend").select_option("parrot")
    await page.get_by_role("button", name="Start the call").click()
    await page.wait_for_selector(LIVE)
    await expect(page.get_by_label("Backend")).to_be_disabled()
    await expect(page.locator("#stop-backend")).to_have_text("parrot")

    await expect(page.locator("#events [data-type='input_audio_buffer.speech_started']")).to_be_visible()
    await expect(page.locator("#clock")).to_have_text("0:03")
    await expect(page.get_by_role("meter", name="Reply")).to_have_attribute("aria-valuenow", "-60")
    await page.get_by_role("button", name="Mute").click()

    await expect(page.get_by_role("meter", name="Reply")).to_have_attribute("aria-valuenow", re.compile(r"^-1\d$"))


async def test_the_api_key_makes_an_ephemeral_key_and_is_not_sent_with_the_offer(page: Page, usher_with_key: Stack):
    sent: dict[str, Request] = {}
    page.on("request", lambda request: sent.update({request.url.removeprefix(usher_with_key.url): request}))

    await call_with_key(page, usher_with_key)

    asked, placed = sent["/v1/realtime/client_secrets"], sent["/v1/realtime/calls"]
    assert (await asked.all_headers())["authorization"] == f"Bearer {API_KEY}"
    assert asked.post_data_json == {"session": {"type": "realtime"}}
    headers = await placed.all_headers()
    assert headers["authorization"].startswith("Bearer ek_")
    assert API_KEY not in f"{headers}{placed.post_data}"


async def test_backends_are_offered_once_the_key_is_known_and_the_choice_is_in_the_secret(
    page: Page, usher_with_key: Stack
):
    await page.goto(usher_with_key.url)
    await expect(page.get_by_label("Backend")).to_be_hidden()
    await call_with_key(page, usher_with_key)
    await page.get_by_role("button", name="Hang up").click()
    await page.get_by_label("Backend").select_option("parrot")

    async with page.expect_request("**/v1/realtime/client_secrets") as asking:
        await page.get_by_role("button", name="Call again").click()
    asked = await asking.value
    await page.wait_for_selector(LIVE)

    assert asked.post_data_json == {"session": {"type": "realtime", "model": "parrot"}}
    await expect(page.locator("#stop-backend")).to_have_text("parrot")


@pytest.mark.parametrize(
    ("status", "title"),
    [
        (400, "The server failed"),
        (403, "The server refused this page"),
        (404, "No call service at this address"),
        (429, "Too many calls for now"),
        (503, "The server failed"),
    ],
)
async def test_no_ephemeral_key_is_told_in_words_and_no_call_is_placed(
    page: Page, usher: Stack, status: int, title: str
):
    async def refuse(route: Route) -> None:
        await route.fulfill(status=status, json={"error": {"code": "any", "message": "not now"}})

    placed: list[str] = []
    page.on("request", lambda request: placed.append(request.url) if request.url == usher.calls_url else None)
    await page.route("**/v1/realtime/client_secrets", refuse)
    await page.goto(usher.url)
    await page.get_by_role("button", name="Start the call").click()

    alert = page.get_by_role("alert")
    await expect(alert.get_by_role("heading")).to_have_text(title)
    await expect(alert).to_contain_text(f"HTTP {status}: not now")
    assert placed == []


async def test_the_side_band_shows_events_as_they_come_and_closes_with_the_call(page: Page, usher_with_key: Stack):
    addresses: list[str] = []
    page.on("websocket", lambda socket: addresses.append(socket.url))
    await call_with_key(page, usher_with_key)
    await expect(page.locator("#events [data-type='input_audio_buffer.speech_started']")).to_be_visible()

    await page.get_by_role("button", name="Look on by side-band").click()
    side = page.locator("#side-events")
    await expect(side.locator("li[data-direction=in]").first).to_have_attribute("data-type", "session.created")
    await page.get_by_role("button", name="Mute").click()
    for log in (page.locator("#events"), side):
        await expect(log.locator("[data-type='input_audio_buffer.speech_stopped']")).to_be_visible()
    assert await side.locator("[data-type='input_audio_buffer.speech_started']").count() == 0  # it was before

    await page.get_by_role("button", name="Hang up").click()
    await expect(side.locator("li").last).to_have_text(re.compile("side-band closed: 1000 (hangup|client_closed)"))
    await expect(page.get_by_role("button", name="side-band")).to_be_hidden()
    assert len(addresses) == 1
    assert API_KEY not in addresses[0]


async def test_closing_the_side_band_leaves_the_call_running(page: Page, usher: Stack):
    await start_call(page, usher)
    await page.get_by_role("button", name="Look on by side-band").click()
    await expect(page.locator("#side-events [data-type='session.created']")).to_be_visible()

    await page.get_by_role("button", name="Close the side-band").click()

    await expect(page.locator("#side-events li").last).to_contain_text("side-band closed")
    await expect(page.get_by_role("button", name="Look on by side-band")).to_be_visible()
    await expect(page.get_by_role("status")).to_have_text("In a call")


async def test_the_snippet_names_this_server_and_the_chosen_backend(page: Page, usher: Stack):
    await page.goto(usher.url)
    snippet = page.locator("#snippet")
    await expect(snippet).to_contain_text(f'baseUrl: "{usher.calls_url}"')
    await expect(snippet).to_contain_text(f"POST {usher.url}/v1/realtime/client_secrets")
    await expect(snippet).to_contain_text('"model": "echo"')

    await page.get_by_label("Backend").select_option("parrot")

    await expect(snippet).to_contain_text('"model": "parrot"')


async def test_copy_puts_the_snippet_on_the_clipboard(page: Page, usher: Stack):
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(usher.url)
    await expect(page.locator("#snippet")).not_to_be_empty()

    await page.get_by_role("button", name="Copy").click()

    await expect(page.locator("#copied")).to_have_text("Copied.")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == await page.locator("#snippet").text_content()


async def test_where_copying_is_not_allowed_copy_says_what_to_do(page: Page, usher: Stack):
    refuse = "navigator.clipboard.writeText = () => Promise.reject(new DOMException('no', 'NotAllowedError'))"
    await page.add_init_script(refuse)
    await page.goto(usher.url)

    await page.get_by_role("button", name="Copy").click()

    await expect(page.locator("#copied")).to_contain_text("select the text and copy it")


async def test_the_fleet_shows_relays_and_transceivers_and_counts_a_live_call(page: Page, usher: Stack):
    fleet = await page.context.new_page()
    await fleet.goto(f"{usher.url}/fleet")
    await expect(fleet.locator("#transceivers tr .tag")).to_have_text(["live", "live"])
    await expect(fleet.locator("#relays tr .tag")).to_have_text(["ready", "ready"])
    status = fleet.get_by_role("status")
    await expect(status).to_have_text("0 calls", timeout=2 * SLOW_MS)  # those of the tests before have to end

    await page.bring_to_front()  # else Chromium draws it, and so reacts, late
    await start_call(page, usher)
    await expect(status).to_have_text("1 call", timeout=SLOW_MS)
    await expect(fleet.locator("#transceivers tr", has_text=re.compile(r"1 of \d+"))).to_have_count(1)

    await page.get_by_role("button", name="Hang up").click()
    await expect(status).to_have_text("0 calls", timeout=SLOW_MS)


async def test_the_fleet_asks_for_a_key_refuses_the_wrong_ones_and_takes_the_right_one(
    page: Page, usher_with_key: Stack
):
    await page.goto(f"{usher_with_key.url}/fleet")
    await expect(page.get_by_role("status")).to_have_text("API key needed")
    await expect(page.get_by_label("API key")).to_be_focused()
    await expect(page.get_by_role("heading", name="This server asks for an API key")).to_be_visible()
    await expect(page.get_by_role("table")).to_have_count(0)

    made = await page.request.post(
        f"{usher_with_key.url}/v1/realtime/client_secrets", headers=usher_with_key.authorization, data={}
    )
    for wrong, why in (("sk-not-this-one", "HTTP 401"), ((await made.json())["value"], "use an API key")):
        await page.get_by_label("API key").fill(wrong)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text(why)
        await expect(page.get_by_role("alert").get_by_role("heading")).to_have_text("The key was refused")

    await page.get_by_label("API key").fill(API_KEY)
    await page.get_by_role("button", name="Use key").click()
    await expect(page.locator("#transceivers tr")).to_have_count(2)
    await expect(page.get_by_role("alert")).to_be_hidden()
    await expect(page.get_by_label("API key")).to_be_hidden()
    assert await page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


async def test_a_key_entered_for_a_call_opens_the_fleet_in_the_same_tab(page: Page, usher_with_key: Stack):
    await call_with_key(page, usher_with_key)

    await page.get_by_role("link", name="Fleet").click()

    await expect(page.locator("#transceivers tr")).to_have_count(2)


async def test_the_fleet_says_that_the_server_is_gone_and_goes_on_when_it_is_back(page: Page, usher: Stack):
    await page.goto(f"{usher.url}/fleet")
    await expect(page.locator("#transceivers tr")).to_have_count(2)

    await page.context.set_offline(True)
    await expect(page.get_by_role("alert").get_by_role("heading")).to_have_text("The server cannot be reached")
    await expect(page.get_by_role("status")).to_have_text("Out of reach")

    await page.context.set_offline(False)
    await expect(page.get_by_role("alert")).to_be_hidden()


async def test_on_a_phone_the_fleet_shows_every_number_with_its_name_within_the_screen(page: Page, usher: Stack):
    await page.set_viewport_size({"width": 375, "height": 812})
    await page.goto(f"{usher.url}/fleet")
    await expect(page.locator("#relays tr")).to_have_count(2)
    await expect(page.locator(".page")).to_be_visible()
    for table, names in (
        ("transceivers", ["Region", "State", "Sessions", "Reported"]),
        ("relays", ["State", "Flows", "Packets", "Dropped"]),
    ):
        for name in names:
            cells = await page.locator(f"#{table} td[data-label={name}]").all()
            assert len(cells) == 2
            for cell in cells:
                box = await cell.bounding_box()
                assert box is not None
                assert 0 <= box["x"] <= box["x"] + box["width"] <= 375
    assert await page.locator(".scroll").evaluate_all("(them) => them.every((it) => it.scrollWidth <= it.clientWidth)")


async def test_a_fleet_of_none_says_so(page: Page, usher: Stack):
    await page.route("**/v1/fleet", lambda route: route.fulfill(json={"relays": [], "transceivers": []}))
    await page.goto(f"{usher.url}/fleet")
    await expect(page.get_by_text("New calls are refused until one comes")).to_be_visible()
    await expect(page.get_by_text("told of no relay's admin page")).to_be_visible()


async def test_the_fleet_names_what_is_wrong_with_a_member(page: Page, usher: Stack):
    def transceiver(pod: int, **differs: object) -> dict[str, object]:
        states = {"placeable": True, "live": True, "draining": False}
        load = {"sessions": 1, "max_sessions": 100, "reported_s": 0.1}
        return {"route": f"1/{pod}/0", "region": "", **states, **load, **differs}

    transceivers = [
        transceiver(1),
        transceiver(2, sessions=100),
        transceiver(3, live=False, draining=True),
        transceiver(4, placeable=False),
        transceiver(5, live=False, sessions=None, max_sessions=None, reported_s=None),
    ]
    dead = {"address": "10.0.0.7:9478", "ready": False, "reason": "did not answer within 2 s"}
    fleet = {"transceivers": transceivers, "relays": [{**dead, "flows": None, "packets": None, "drops": None}]}
    await page.route("**/v1/fleet", lambda route: route.fulfill(json=fleet))
    await page.goto(f"{usher.url}/fleet")

    await expect(page.locator("#transceivers .tag")).to_have_text(["live", "full", "draining", "closed", "silent"])
    await expect(page.locator("#relays .tag")).to_have_text("did not answer within 2 s")
    await expect(page.get_by_role("status")).to_have_text("103 calls")


@pytest.mark.needs("node")
async def test_axe_finds_nothing_to_complain_about_on_the_fleet_page_and_the_side_band(
    page: Page, usher: Stack, usher_with_key: Stack, node_modules: Path
):
    axe = (node_modules / "axe-core" / "axe.min.js").read_text()
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 844})
        await page.goto(f"{usher.url}/fleet")
        await expect(page.locator("#relays tr")).to_have_count(2)
        await page.evaluate(axe)
        assert await axe_violations(page) == []
    await page.goto(f"{usher_with_key.url}/fleet")
    await expect(page.get_by_label("API key")).to_be_visible()
    await page.evaluate(axe)
    assert await axe_violations(page) == []

    await start_call(page, usher)
    await page.get_by_role("button", name="Look on by side-band").click()
    await expect(page.locator("#side-events [data-type='session.created']")).to_be_visible()
    await page.evaluate(axe)
    assert await axe_violations(page) == []
