"""What is asked of other regions and what of it is counted, against a network and a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.signaling_fakes import until
from usher_signaling.background import BackgroundTasks
from usher_signaling.breaker import LATELY_S, LONGEST_PAUSE_S
from usher_signaling.errors import ApiError
from usher_signaling.metrics import Metrics
from usher_signaling.peer_regions.client import Passed, PeerClient, PeerError
from usher_signaling.peer_regions.origin import Origin, parse_region_tokens
from usher_signaling.peer_regions.peers import FULL_S, MAX_UNDER_WAY, PassedOverError, Peers, build_peers
from usher_signaling.peer_regions.table import parse_regions_file
from usher_signaling.tracing import NoTracer

TOKENS = parse_region_tokens("a" * 40)
REGIONS = [{"name": "us", "url": "http://us.test"}, {"name": "eu", "url": "http://eu.test", "clusters": [2]}]
TABLE = parse_regions_file(json.dumps({"version": 1, "regions": REGIONS}), "us")
OFFER = Passed("POST", "/whip", body=b"v=0")
LOOK = Passed("GET", "/v1/realtime/calls/rtc_x")


def refusal(status: int, code: str) -> httpx.Response:
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": code}
    return httpx.Response(status, json={"error": error})


def placed() -> httpx.Response:
    headers = {"Content-Type": "application/sdp", "Location": "/whip/rtc_x"}
    return httpx.Response(201, headers=headers, content=b"v=0")


def closed() -> httpx.Response:
    return httpx.Response(204)


@dataclass
class Eu:
    """The signaling of the region, by what it answers, and the time here."""

    offer: Callable[[], httpx.Response] = placed
    close: Callable[[], httpx.Response] = closed
    look: Callable[[], httpx.Response] = lambda: httpx.Response(200, json={})
    now: float = 1000.0
    held: asyncio.Event | None = None
    came: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.came.append(request.method)
        if self.held is not None:
            await self.held.wait()
        made = {"POST": self.offer, "DELETE": self.close, "GET": self.look}[request.method]()
        return httpx.Response(made.status_code, headers=made.headers, stream=httpx.ByteStream(made.content))

    async def has_come(self, count: int) -> bool:
        return len(self.came) == count

    def count(self, kind: str, outcome: str) -> float:
        value: float = self.metrics.region_forwards.labels("eu", kind, outcome)._value.get()
        return value


@contextlib.asynccontextmanager
async def peers_of(eu: Eu) -> AsyncIterator[Peers]:
    transport = httpx.MockTransport(eu.answer)
    peers = build_peers(lambda: TABLE, lambda: TOKENS, None, eu.metrics, lambda: eu.now, transport, NoTracer())
    try:
        yield peers
    finally:
        await peers.close()


async def is_passed_over(peers: Peers) -> bool:
    try:
        _ = await peers.offer("eu", OFFER, "us", 5)
    except PassedOverError:
        return True
    return False


def dead() -> httpx.Response:
    raise httpx.ConnectError("nobody is there")


def late() -> httpx.Response:
    raise httpx.ReadTimeout("no answer")


async def test_a_region_without_room_is_left_alone_for_a_second() -> None:
    eu = Eu(offer=lambda: refusal(503, "no_transceiver"))
    async with peers_of(eu) as peers:
        assert await is_passed_over(peers)
        eu.offer = placed
        eu.now += FULL_S - 0.01
        assert await is_passed_over(peers)
        eu.now += 0.02
        assert not await is_passed_over(peers)
        assert (len(eu.came), peers.away_count()) == (2, 0)
        assert [eu.count("offer", word) for word in ("refused", "skipped", "answered")] == [1, 1, 1]


async def test_a_region_is_away_while_offers_fail_and_no_longer_when_nobody_has_tried_for_a_minute() -> None:
    eu = Eu(offer=dead)
    async with peers_of(eu) as peers:
        for _ in range(10):
            assert await is_passed_over(peers)
            assert peers.away_count() == 1
            eu.now += LONGEST_PAUSE_S
            assert peers.away_count() == 1, "also between two probes"
        eu.now += LATELY_S
        assert peers.away_count() == 0
        assert await is_passed_over(peers)
        assert peers.away_count() == 1, "it was away all the time"


async def test_what_a_region_tells_of_a_call_does_not_say_that_it_places_calls() -> None:
    eu = Eu(offer=late)
    async with peers_of(eu) as peers:
        assert await is_passed_over(peers)
        eu_itself = TABLE.find("eu")
        assert eu_itself is not None
        assert (await peers.pass_on(eu_itself, LOOK, "us")).status == 200
        assert await is_passed_over(peers)
        assert eu.came.count("POST") == 1


@pytest.mark.parametrize(
    ("close", "outcome"),
    [
        (closed, "answered"),
        (lambda: refusal(503, "too_many_requests"), "refused"),
        (lambda: refusal(404, "not_found"), "refused"),
        (lambda: refusal(403, "wrong_region_token"), "failed"),
        (lambda: httpx.Response(502, content=b"<html>"), "failed"),
        (dead, "failed"),
        (late, "timed_out"),
    ],
)
@pytest.mark.parametrize("offer", [late, dead, lambda: httpx.Response(201, content=b"<html>")])
async def test_an_offer_without_a_good_answer_is_closed_and_what_came_of_that_is_counted(
    close: Callable[[], httpx.Response], outcome: str, offer: Callable[[], httpx.Response]
) -> None:
    eu = Eu(offer=offer, close=close)
    async with peers_of(eu) as peers:
        assert await is_passed_over(peers)
    assert eu.came == ["POST", "DELETE"]
    counted = ("answered", "refused", "failed", "timed_out", "cancelled", "own_fault", "skipped")
    assert {word for word in counted if eu.count("close", word)} == {outcome}


GOOD = {b"Content-Type": b"application/sdp", b"Location": b"/whip/rtc_x"}
ERROR = b'{"error": {"type": "x", "code": "c", "message": "m", "param": null}}'
STRANGE_VALUES = ("→".encode(), b"\xff", b"x" * 5000, b"a\tb", b"")


@pytest.mark.parametrize("name", [b"X-Served-By", b"ETag", b"Retry-After", b"WWW-Authenticate", b"Usher-Path"])
@pytest.mark.parametrize("value", STRANGE_VALUES)
async def test_a_strange_header_of_an_answer_costs_nobody_the_call(name: bytes, value: bytes) -> None:
    eu = Eu(offer=lambda: httpx.Response(201, headers={**GOOD, name: value}, content=b"v=0"))
    async with peers_of(eu) as peers:
        answer = await peers.offer("eu", OFFER, "us", 5)
    assert (answer.status, answer.headers["Location"], answer.headers["Content-Type"]) == (
        201,
        "/whip/rtc_x",
        "application/sdp",
    )
    assert all(each.isascii() and len(each) <= 1024 for each in answer.headers.values())
    assert eu.came == ["POST"]


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (201, {**GOOD, b"Content-Type": b"application/sdp-evil; <script>"}, b"v=0"),
        (201, {**GOOD, b"Content-Type": b"application/sdp,text/html"}, b"v=0"),
        (201, {**GOOD, b"Content-Type": "application/sdp; é".encode()}, b"v=0"),
        *((201, {**GOOD, b"Location": value}, b"v=0") for value in STRANGE_VALUES),
        (200, GOOD, b"v=0"),
        (204, {}, b""),
        *((status, {b"Content-Type": b"application/json"}, ERROR) for status in (300, 302, 399, 600, 999)),
        (400, {b"Content-Type": b"application/jsonp"}, ERROR),
    ],
)
async def test_an_answer_that_is_none_of_signalings_is_passed_over_and_its_call_is_closed(
    status: int, headers: dict[bytes, bytes], body: bytes
) -> None:
    eu = Eu(offer=lambda: httpx.Response(status, headers=headers, content=body))
    async with peers_of(eu) as peers:
        assert await is_passed_over(peers)
        assert peers.away_count() == 1
    assert (eu.came, eu.count("offer", "failed")) == (["POST", "DELETE"], 1)


async def assert_a_look_fails(peers: Peers) -> None:
    """Whoever asks about a call of that region is told so."""
    eu_itself = TABLE.find("eu")
    assert eu_itself is not None
    with pytest.raises(ApiError) as caught:
        _ = await peers.pass_on(eu_itself, LOOK, "us")
    assert (caught.value.status, caught.value.code) == (502, "region_failed")


UNUSABLE = (
    UnicodeError("label empty or too long"),
    OverflowError("port must be 0-65535"),
    ExceptionGroup("unhandled errors in a TaskGroup", [OverflowError("port must be 0-65535")]),
    OSError("no route"),
)


@pytest.mark.parametrize("fault", UNUSABLE)
async def test_what_is_wrong_with_a_regions_url_is_a_fault_of_the_region(fault: Exception) -> None:
    def refuse() -> httpx.Response:
        raise fault

    eu = Eu(offer=refuse, look=refuse)
    async with peers_of(eu) as peers:
        assert await is_passed_over(peers)
        assert (peers.away_count(), eu.count("offer", "failed")) == (1, 1)
        await assert_a_look_fails(peers)


@pytest.mark.parametrize("url", ["http://eu.test:abc", "http://xn--zz--", "http://a..b:1", "http://127.0.0.1:99999"])
async def test_a_url_that_a_table_should_not_have_is_a_fault_of_its_region_for_every_request(url: str) -> None:
    client = PeerClient(lambda: TOKENS, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    try:
        with pytest.raises(PeerError):
            _ = await client.ask(url, OFFER, Origin("us", "request"), 5)
        with pytest.raises(PeerError):
            _ = await client.observe(url, "/v1/realtime?call_id=rtc_x", "Bearer k", Origin("us"))
    finally:
        await client.close()


@pytest.mark.parametrize(("status", "code"), [(403, "wrong_region_token"), (400, "invalid_forward")])
async def test_a_region_that_does_not_take_what_we_hand_on_has_failed_and_made_no_call(status: int, code: str) -> None:
    eu = Eu(offer=lambda: refusal(status, code), look=lambda: refusal(status, code))
    async with peers_of(eu) as peers:
        assert await is_passed_over(peers), "the caller is not told what is no fault of theirs"
        assert (peers.away_count(), eu.count("offer", "failed")) == (1, 1)
        await assert_a_look_fails(peers)
    assert "DELETE" not in eu.came


async def test_a_fault_of_ours_is_not_counted_as_a_cancellation() -> None:
    def broken() -> Any:
        raise RuntimeError("a bug")

    eu = Eu(offer=broken)
    async with peers_of(eu) as peers:
        with pytest.raises(RuntimeError, match="a bug"):
            _ = await peers.offer("eu", OFFER, "us", 5)
        assert (eu.count("offer", "own_fault"), eu.count("offer", "cancelled")) == (1, 0)
    assert eu.came == ["POST", "DELETE"], "it may have made a call"


async def test_an_offer_that_its_client_gives_up_is_closed() -> None:
    eu = Eu(held=asyncio.Event())
    async with peers_of(eu) as peers:
        offer = asyncio.create_task(peers.offer("eu", OFFER, "us", 5))
        await until(lambda: eu.has_come(1))
        offer.cancel()
        with pytest.raises(asyncio.CancelledError):
            _ = await offer
        assert eu.held is not None
        eu.held.set()
    assert eu.came == ["POST", "DELETE"]
    assert (eu.count("offer", "cancelled"), eu.count("close", "answered")) == (1, 1)


async def test_one_region_holds_up_no_more_than_its_share() -> None:
    eu = Eu(held=asyncio.Event())
    eu_itself = TABLE.find("eu")
    assert eu_itself is not None
    assert eu.held is not None
    async with peers_of(eu) as peers:
        offers = [asyncio.create_task(peers.offer("eu", OFFER, "us", 60)) for _ in range(MAX_UNDER_WAY)]
        await until(lambda: eu.has_come(MAX_UNDER_WAY))
        assert await is_passed_over(peers)
        with pytest.raises(ApiError) as caught:
            _ = await peers.pass_on(eu_itself, LOOK, "us")
        assert (caught.value.status, caught.value.code) == (503, "too_many_requests")
        eu.held.set()
        assert [answer.status for answer in await asyncio.gather(*offers)] == [201] * MAX_UNDER_WAY
        assert (await peers.pass_on(eu_itself, LOOK, "us")).status == 200
        assert not await is_passed_over(peers)


async def test_work_beyond_the_bound_is_left_out_and_its_caller_knows() -> None:
    tasks, done, go = BackgroundTasks(2), list[int](), asyncio.Event()

    def work(number: int) -> Any:
        async def run() -> None:
            await go.wait()
            done.append(number)

        return run()

    assert [tasks.start(work(number)) for number in range(3)] == [True, True, False]
    go.set()
    await tasks.wait()
    assert done == [0, 1]
    assert tasks.start(work(3))
    await tasks.wait()
    assert done == [0, 1, 3]
