"""What holds for every answer: the shape of errors, CORS, security headers, probes, metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.signaling_fakes import API_KEY, OFFER, FakeTransceiver, assert_error, place, signaling, until

CALLS = "/v1/realtime/calls"
SDP = {"Content-Type": "application/sdp"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/realtime/sessions", 404, "not_found"),
        ("GET", "/whip/", 404, "not_found"),
        ("GET", "/assets/nothing.js", 404, "not_found"),
        ("GET", "/assets/../settings.py", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("PATCH", CALLS, 405, "method_not_allowed"),
        ("PUT", CALLS, 405, "method_not_allowed"),
        ("DELETE", f"{CALLS}/rtc_x", 405, "method_not_allowed"),
        ("BREW", CALLS, 405, "method_not_allowed"),
        ("POST", "/", 405, "method_not_allowed"),
        ("POST", "/assets/app.css", 405, "method_not_allowed"),
        ("GET", f"{CALLS}/rtc_forged", 404, "call_not_found"),
        ("POST", f"{CALLS}/%00%ff/hangup", 404, "call_not_found"),
        ("DELETE", "/whip/rtc_forged", 404, "call_not_found"),
        ("POST", CALLS, 415, "unsupported_media_type"),
        ("POST", "/whip", 415, "unsupported_media_type"),
    ],
)
async def test_every_error_has_the_documented_shape(
    tmp_path: Path, method: str, path: str, status: int, code: str
) -> None:
    async with signaling(tmp_path) as stack:
        assert_error(await stack.client.request(method, path), status, code)


async def test_405_names_every_method_of_the_path(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        for path, allowed in (
            (CALLS, "GET, OPTIONS, POST"),
            ("/whip/x", "DELETE, OPTIONS, PATCH"),
            ("/", "GET, HEAD, OPTIONS"),
        ):
            assert (await stack.client.put(path)).headers["allow"] == allowed


async def test_an_unexpected_exception_is_a_500_with_an_id_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from usher_signaling.calls import Calls

    async def explode(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(Calls, "place", explode)
    async with signaling(tmp_path) as stack:
        response = await place(stack.client, headers={"Origin": "https://app.example"})
        error = assert_error(response, 500, "internal_error")
    assert re.search(r"[0-9a-f]{16}", error["message"])
    assert "secret detail" not in response.text
    assert response.headers["access-control-allow-origin"] == "*"


async def test_sdp_over_64_kib_is_413(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        for path in (CALLS, "/whip"):
            fits = await stack.client.post(path, content=b"v" * 65_536, headers=SDP)
            assert fits.status_code == 201
            assert_error(await stack.client.post(path, content=b"v" * 65_537, headers=SDP), 413, "body_too_large")


async def test_a_body_without_a_length_is_bounded_too(tmp_path: Path) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"v" * 65_536

    async with signaling(tmp_path) as stack:
        assert_error(await stack.client.post(CALLS, content=endless(), headers=SDP), 413, "body_too_large")
    assert sent < 20


async def test_a_preflight_of_the_realtime_sdk_is_allowed_without_a_key(tmp_path: Path) -> None:
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-openai-agents-sdk",
    }
    async with signaling(tmp_path) as stack:
        stack.client.headers.pop("authorization")
        for path in (CALLS, f"{CALLS}/rtc_x/hangup", "/whip", "/whip/rtc_x", "/v1/realtime/client_secrets"):
            response = await stack.client.options(path, headers=asked)
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] == "*"
            allowed = response.headers["access-control-allow-headers"].lower()
            assert {"authorization", "content-type", "if-match", "x-openai-agents-sdk"} <= set(allowed.split(", "))
            methods = set(response.headers["access-control-allow-methods"].split(", "))
            assert {"POST", "PATCH", "DELETE"} <= methods
            assert "access-control-allow-credentials" not in response.headers


async def test_a_page_may_read_location_etag_and_errors(tmp_path: Path) -> None:
    origin = {"Origin": "https://app.example"}
    async with signaling(tmp_path) as stack:
        answers = [
            await place(stack.client, headers=origin),
            await stack.client.post("/whip", content=OFFER, headers={**SDP, **origin}),
            await stack.client.post(CALLS, content=OFFER, headers={**SDP, **origin, "Authorization": ""}),
            await stack.client.get("/nothing", headers=origin),
        ]
    assert [answer.status_code for answer in answers] == [201, 201, 401, 404]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "*"
        assert {"Location", "ETag", "Link"} <= set(answer.headers["access-control-expose-headers"].split(", "))


async def test_named_origins_are_allowed_one_by_one(tmp_path: Path) -> None:
    async with signaling(tmp_path, cors_origins=("https://app.example", "https://two.example/")) as stack:
        for origin, allowed in (
            ("https://app.example", "https://app.example"),
            ("https://two.example", "https://two.example"),
            ("https://evil.example", None),
            ("https://app.example.evil.example", None),
        ):
            response = await place(stack.client, headers={"Origin": origin})
            assert response.headers.get("access-control-allow-origin") == allowed
            assert "Origin" in response.headers["vary"]


async def test_pages_and_answers_carry_the_security_headers(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        for path in ("/", "/assets/app.css", "/nothing"):
            headers = (await stack.client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
        assert (await stack.client.get("/")).headers["content-type"].startswith("text/html")


async def test_the_page_needs_nothing_that_the_policy_forbids(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        page = (await stack.client.get("/")).text
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", page)
        for asset in re.findall(r'(?:src|href)="(assets/[^"]+)"', page):
            assert (await stack.client.get(f"/{asset}")).status_code == 200


async def test_without_the_demo_there_is_no_page(tmp_path: Path) -> None:
    async with signaling(tmp_path, demo=False) as stack:
        assert_error(await stack.client.get("/"), 404, "not_found")
        assert (await place(stack.client)).status_code == 201


async def test_a_transceiver_that_stops_telling_its_load_is_dead_after_a_while(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake, load_interval=0.02, load_life=0.2) as stack:

        async def takes_calls() -> bool:
            return bool((await stack.client.get("/readyz")).json()["can_place"])

        async def takes_none() -> bool:
            return not await takes_calls()

        await until(takes_calls)
        fake.dead = True
        await until(takes_none)
        fake.dead = False
        await until(takes_calls)


async def test_metrics_count_by_route_template_and_status_and_by_outcome(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        url = (await place(stack.client)).headers["location"]
        await stack.client.get(url)
        await stack.client.get("/nothing/at/all")
        await stack.client.get("/assets/app.css")
        await stack.client.get("/assets/nothing.js")
        await place(stack.client, headers={"Authorization": ""})
        stack.fleet.transceivers[0].max_sessions = 0
        await place(stack.client)
        text = (await stack.client.get("/metrics", headers={"Authorization": ""})).text
    for line in (
        'usher_signaling_requests_total{route="/v1/realtime/calls",status="201"} 1.0',
        'usher_signaling_requests_total{route="/v1/realtime/calls",status="401"} 1.0',
        'usher_signaling_requests_total{route="/v1/realtime/calls",status="503"} 1.0',
        'usher_signaling_requests_total{route="/v1/realtime/calls/{call_id}",status="200"} 1.0',
        'usher_signaling_requests_total{route="/assets",status="200"} 1.0',
        'usher_signaling_requests_total{route="/assets",status="404"} 1.0',
        'usher_signaling_requests_total{route="unmatched",status="404"} 1.0',
        'usher_signaling_placements_total{outcome="placed"} 1.0',
        'usher_signaling_placements_total{outcome="refused"} 1.0',
        'usher_signaling_placements_total{outcome="nobody"} 1.0',
        'usher_signaling_auth_failures_total{code="invalid_api_key"} 1.0',
        "usher_signaling_transceivers_live 1.0",
    ):
        assert line in text
    assert url not in text
    assert API_KEY not in text


async def test_more_requests_than_may_be_under_way_get_503_but_probes_are_answered(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake, max_requests=2, attempt_timeout=30, answer_deadline=30) as stack:
        fake.answer_delay = 0.3
        slow = [asyncio.create_task(place(stack.client)) for _ in range(2)]

        async def both_under_way() -> bool:
            return len(fake.created) == 2

        await until(both_under_way)
        refused = await place(stack.client)
        assert_error(refused, 503, "too_many_requests")
        assert "retry-after" in refused.headers
        assert (await stack.client.get("/livez")).status_code == 200
        assert [response.status_code for response in await asyncio.gather(*slow)] == [201, 201]
        assert (await place(stack.client)).status_code == 201
