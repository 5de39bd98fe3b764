"""Calls between the signaling of several regions, end to end through the HTTP API, against pretended transceivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.signaling_fakes import API_KEY, OFFER, OTHER_KEY, assert_error, place, place_whip, until
from tests.signaling_regions import FROM_EU, REGION_TOKEN, Region, World, place_from_eu, world, write_own_seal_key
from usher_signaling.calls import Calls
from usher_signaling.routes import peer_requests

FRAGMENT = "application/trickle-ice-sdpfrag"
CREDENTIALS = "a=ice-ufrag:nEwU\r\na=ice-pwd:VOkJxbRl1RmTxUk/WvJxBt00\r\n"
OTHER = {"Authorization": f"Bearer {OTHER_KEY}"}
FROM_A_PEER = {"Usher-Region-Token": REGION_TOKEN, "Usher-Region": "eu"}


async def test_a_call_is_placed_in_its_clients_region_with_the_ingress_near_the_client(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        answer = await place_from_eu(both)
        assert answer.status_code == 201
        assert answer.headers["content-type"].startswith("application/sdp")
        assert both.created() == {"eu": 1}
        assert [one.listener for one in both.fakes["eu"].created[0].advertise] == [2]
        assert both.forwards("us", "eu", "offer", "answered") == 1
        assert both.regions["us"].came == [], "what was handed on is not handed back"


async def test_a_call_of_our_own_region_is_served_here(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        assert (await place(both["us"])).status_code == 201
        assert both.created() == {"us": 1}
        assert both.regions["eu"].came == []


async def test_a_call_whose_transceiver_is_elsewhere_enters_near_its_client(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        both.fakes["us"].max_sessions = 0
        assert (await place(both["us"])).status_code == 201
    assert both.created() == {"us": 1, "eu": 1}
    assert [one.listener for one in both.fakes["eu"].created[0].advertise] == [1]


async def test_later_requests_reach_a_call_from_every_region(tmp_path: Path) -> None:
    async with world(tmp_path, ("us", "eu", "asia")) as all_three:
        for name in ("us", "eu", "asia"):
            location = (await place_from_eu(all_three)).headers["location"]
            told = (await all_three[name].get(location)).json()
            assert (told["id"], told["path"]["region"]) == (location.rpartition("/")[2], "eu")
            assert (await all_three[name].post(f"{location}/hangup")).status_code == 200
            assert_error(await all_three[name].post(f"{location}/hangup"), 404, "call_not_found")
        assert all_three.live() == 0


async def test_whip_works_from_another_region(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        answer = await both["us"].post("/whip", content=OFFER, headers={"Content-Type": "application/sdp", **FROM_EU})
        assert (answer.status_code, answer.headers["accept-patch"]) == (201, FRAGMENT)
        where, headers = answer.headers["location"], {"Content-Type": FRAGMENT}
        restart = await both["us"].patch(where, content=CREDENTIALS, headers={**headers, "If-Match": "*"})
        assert restart.status_code == 200
        assert restart.headers["content-type"] == FRAGMENT
        assert restart.headers["etag"] != answer.headers["etag"]
        assert both.fakes["eu"].restarts[0].ufrag == "nEwU"
        trickle = await both["us"].patch(
            where, content=CREDENTIALS, headers={**headers, "If-Match": restart.headers["etag"]}
        )
        assert (trickle.status_code, trickle.content) == (204, b"")
        stale = await both["us"].patch(where, content=CREDENTIALS, headers={**headers, "If-Match": '"old"'})
        assert_error(stale, 412, "precondition_failed")
        assert_error(await both["us"].patch(where, content=CREDENTIALS, headers=headers), 428, "precondition_required")
        assert (await both["us"].delete(where)).status_code == 200
        assert both.live() == 0


async def test_another_tenant_gets_404_and_no_other_region_is_asked(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        location = (await place_from_eu(both)).headers["location"]
        asked = len(both.regions["eu"].came)
        assert_error(await both["us"].get(location, headers=OTHER), 404, "call_not_found")
        assert_error(
            await both["us"].delete(location.replace("/v1/realtime/calls", "/whip"), headers=OTHER),
            404,
            "call_not_found",
        )
        assert_error(await both["us"].get(location[:-2] + "AA"), 404, "call_not_found")
        assert len(both.regions["eu"].came) == asked


async def test_an_ephemeral_key_works_in_every_region_with_its_session(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        made = await both["us"].post("/v1/realtime/client_secrets", json={"session": {"instructions": "rhyme"}})
        key = {"Authorization": f"Bearer {made.json()['value']}"}
        placed = await place_from_eu(both, **key)
        assert both.fakes["eu"].created[0].session == {"instructions": "rhyme"}
        for stack in both.stacks.values():
            stack.clock.now += 10_000
        assert_error(await place_from_eu(both, **key), 401, "client_secret_expired")
        ended = await both["us"].post(f"{placed.headers['location']}/hangup", headers=key)
        assert ended.status_code == 200, "a call outlives its key in every region"


async def test_regions_with_seal_keys_of_their_own_open_each_others_texts(tmp_path: Path) -> None:
    def own_key(folder: Path, name: str) -> dict[str, Any]:
        write_own_seal_key(folder, name)
        return {"region_keys_file": [str(tmp_path / other / "keys.json") for other in ("us", "eu") if other != name]}

    async with world(tmp_path, prepare=own_key) as both:
        refresh = both.stacks["us"].app.state.services._refresh_files
        location = (await place_from_eu(both)).headers["location"]
        assert_error(await both["us"].get(location), 404, "call_not_found")
        await refresh()
        assert (await both["us"].get(location)).status_code == 200
        assert_error(await both["us"].get(location, headers=OTHER), 404, "call_not_found")
        made = (await both["us"].post("/v1/realtime/client_secrets", json={})).json()["value"]
        assert (await place_from_eu(both, Authorization=f"Bearer {made}")).status_code == 201
        assert both.created() == {"eu": 2}
        (tmp_path / "eu" / "keys.json").write_text("{")
        await refresh()
        assert (await both["us"].get(location)).status_code == 200, "the last good keys count"


async def test_only_what_is_named_is_handed_on(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        spoofed = {"Cookie": "a=b", "X-Forwarded-For": "10.0.0.1", "Usher-Region": "asia", "traceparent": trace}
        await place(both["us"], headers={**FROM_EU, **spoofed}, params={"model": "m 1", "other": "x"})
        came = both.regions["eu"].came[0]
        assert came.headers["authorization"] == f"Bearer {API_KEY}"
        assert came.headers["traceparent"] == trace
        assert (came.headers["usher-region"], came.url.params) == ("eu", httpx.QueryParams(model="m 1"))
        assert not {"cookie", "x-forwarded-for", "x-region"} & set(came.headers)
        assert both.fakes["eu"].created[0].session == {"model": "m 1"}


def reply(region: Region, status: int, body: bytes = b"", **headers: str) -> None:
    """Let something else answer in the place of a region's signaling."""
    region.answer = lambda _request: httpx.Response(
        status,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        stream=httpx.ByteStream(body),
    )


def broken(region: Region) -> None:
    reply(region, 200, b"<html>")


def no_location(region: Region) -> None:
    reply(region, 201, b"v=0", content_type="application/sdp")


def huge(region: Region) -> None:
    reply(region, 201, bytes(10_000_000), content_type="application/sdp", location="/whip/rtc_x")


def compressed(region: Region) -> None:
    reply(region, 201, b"", content_type="application/sdp", location="/whip/rtc_x", content_encoding="gzip")


def redirecting(region: Region) -> None:
    reply(region, 307, location="http://10.0.0.1/steal")


def proxy_error(region: Region) -> None:
    reply(region, 413, b"Request Entity Too Large")


def dead(region: Region) -> None:
    region.dead = True


def hanging(region: Region) -> None:
    region.hangs = True


@pytest.mark.parametrize("fault", [dead, hanging, broken, no_location, huge, compressed, redirecting, proxy_error])
async def test_a_region_that_fails_costs_no_call_and_only_a_few_of_them_time(
    tmp_path: Path, fault: Callable[[Region], None]
) -> None:
    async with world(tmp_path) as both:
        fault(both.regions["eu"])
        for _ in range(20):
            assert (await place_from_eu(both)).status_code == 201
        assert both.created() == {"us": 20}
        assert [one.listener for one in both.fakes["us"].created[0].advertise] == [2], "near the client all the same"
        assert 1 <= both.regions["eu"].offers < 10, "pauses double"
        assert both.stacks["us"].app.state.services.peers.away_count() == 1
        assert both.forwards("us", "eu", "offer", "skipped") > 10


async def test_a_region_that_is_back_gets_calls_again(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        both.regions["eu"].dead = True
        await place_from_eu(both)
        both.regions["eu"].dead = False

        async def is_back() -> bool:
            assert (await place_from_eu(both)).status_code == 201
            return "eu" in both.created()

        await until(is_back)


@pytest.mark.parametrize("fault", ["max_sessions", "draining"])
async def test_a_region_without_room_is_passed_over(tmp_path: Path, fault: str) -> None:
    async with world(tmp_path) as both:
        setattr(both.fakes["eu"], fault, 0 if fault == "max_sessions" else True)
        for _ in range(3):
            assert (await place_from_eu(both)).status_code == 201
        assert len(both.fakes["us"].sessions) == 3
        assert both.forwards("us", "eu", "offer", "refused") >= 1
        assert [both.nobody(name) for name in ("us", "eu")] == [0, 0], "somebody took it"
        assert both.stacks["us"].app.state.services.peers.away_count() == 0


async def test_nobody_hands_a_call_on_that_was_handed_on(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        for fake in both.fakes.values():
            fake.max_sessions = 0
        assert_error(await place_from_eu(both), 503, "no_transceiver")
        assert (both.regions["us"].offers, both.regions["eu"].offers) == (0, 1)
        assert [both.nobody(name) for name in ("us", "eu")] == [1, 0], "a refused call is counted where it came in"


async def test_regions_are_tried_in_order_within_the_deadline_of_one_offer(tmp_path: Path) -> None:
    names = ("us", "eu", "asia")
    async with world(tmp_path, names, region_fallback=("eu", "asia"), answer_deadline=1.0, region_timeout=5.0) as three:
        three.fakes["us"].draining = True
        three.regions["eu"].hangs = True
        assert (await place(three["us"])).status_code == 201
        assert len(three.fakes["asia"].sessions) == 1
        three.regions["asia"].hangs = True
        began = time.monotonic()
        assert_error(await place(three["us"]), 503, "no_transceiver")
        assert time.monotonic() - began < 3
        assert three.regions["asia"].offers == 2
        assert three.regions["eu"].offers <= 2


async def test_without_the_star_a_call_goes_to_no_region_that_is_not_named(tmp_path: Path) -> None:
    async with world(tmp_path, region_fallback=()) as both:
        both.fakes["us"].draining = True
        assert_error(await place(both["us"]), 503, "no_transceiver")
        both.regions["eu"].dead = True
        assert_error(await place_from_eu(both), 503, "no_transceiver")
        assert "eu" not in both.created()


async def test_here_first_serves_clients_of_other_regions_while_there_is_room(tmp_path: Path) -> None:
    async with world(tmp_path, region_here_first=True) as both:
        assert (await place_from_eu(both)).status_code == 201
        assert both.created() == {"us": 1}
        assert [one.listener for one in both.fakes["us"].created[0].advertise] == [2]
        both.fakes["us"].draining = True
        assert (await place_from_eu(both)).status_code == 201
        assert len(both.fakes["eu"].sessions) == 1


async def test_an_offer_that_was_answered_too_late_leaves_no_call(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        # Longer than we wait for the region, and than it may take; its transceiver makes the session all the same.
        both.fakes["eu"].answer_delay = 1.0
        assert (await place_from_eu(both)).status_code == 201
        asked = both.fakes["eu"].created[0].request_id
        assert both.fakes["eu"].created[0].deadline_ms <= 240

        async def closed() -> bool:
            return asked in both.fakes["eu"].closed_requests

        await until(closed)
        await asyncio.sleep(0)
        assert both.forwards("us", "eu", "offer", "answered") == 0


class LosesAnswers(httpx.AsyncBaseTransport):
    """Hands offers on and keeps what comes back."""

    def __init__(self, way: httpx.AsyncBaseTransport | None) -> None:
        assert way is not None
        self._way = way

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._way.handle_async_request(request)
        if request.method == "POST":
            await answer.aread()
            await asyncio.sleep(60)
        return answer


async def test_an_answer_that_got_lost_leaves_no_call(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        region = both.regions["eu"]
        region.transport = LosesAnswers(region.transport)
        assert (await place_from_eu(both)).status_code == 201
        assert both.created() == {"us": 1, "eu": 1}

        async def only_one() -> bool:
            return both.live() == 1

        await until(only_one)
        assert len(both.fakes["us"].sessions) == 1


async def test_an_answer_that_makes_no_sense_is_closed_where_it_came_from(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        no_location(both.regions["eu"])
        assert (await place_from_eu(both)).status_code == 201

        async def closed() -> bool:
            return any(request.method == "DELETE" for request in both.regions["eu"].came)

        await until(closed)
        offer, close = both.regions["eu"].came
        assert close.url.path == f"/v1/regions/requests/{offer.headers['usher-request-id']}"
        assert "authorization" not in close.headers
        assert both.live() == 1


async def test_what_is_the_callers_fault_is_told_as_it_is_and_asked_nowhere_else(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        both.fakes["eu"].bad_offer = "line 3 is wrong"
        error = assert_error(await place_from_eu(both), 400, "bad_sdp")
        assert error["message"] == "line 3 is wrong"
        both.fakes["eu"].bad_offer, both.fakes["eu"].backend_fails = "", "the model hung up"
        assert_error(await place_from_eu(both), 502, "backend_failed")
        assert both.created() == {"eu": 2}
        assert both.stacks["us"].app.state.services.peers.away_count() == 0


async def test_a_malformed_or_huge_offer_is_not_handed_on(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        headers = {"Content-Type": "application/sdp", **FROM_EU}
        for body, status in ((b"", 400), (b"x" * 70_000, 413), (b"x" * 2_000_000, 413)):
            answer = await both["us"].post("/v1/realtime/calls", content=body, headers=headers)
            assert answer.status_code == status
        assert (await both["us"].post("/v1/realtime/calls", content=OFFER, headers=FROM_EU)).status_code == 415
        location = (await place_whip(both["eu"])).headers["location"]
        patch = {"Content-Type": FRAGMENT, "If-Match": "*"}
        assert_error(await both["us"].patch(location, content=b"x" * 70_000, headers=patch), 413, "body_too_large")
        assert both.regions["eu"].came == []


async def test_headers_of_peers_mean_nothing_without_the_token_and_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        spoofed = {"Usher-Region": "eu", "Usher-Request-Id": "request-of-mine", "Usher-Deadline-Ms": "1"}
        await place(both["us"], headers=spoofed)
        made = both.fakes["us"].created[0]
        assert [one.listener for one in made.advertise] == [1]
        assert made.request_id != "request-of-mine"
        for token in ("", "x", REGION_TOKEN[:-1], REGION_TOKEN + "x", "\u00e9" * 36):
            forged = {**spoofed, "Usher-Region-Token": token.encode("latin-1")}
            assert_error(await place(both["us"], headers=forged), 403, "wrong_region_token")
        twice = [("Usher-Region-Token", REGION_TOKEN), ("Usher-Region-Token", REGION_TOKEN)]
        headers = [("Content-Type", "application/sdp"), ("Usher-Region", "eu"), *twice]
        assert_error(
            await both["us"].post("/v1/realtime/calls", content=OFFER, headers=headers), 403, "wrong_region_token"
        )
        assert len(both.fakes["us"].created) == 1


async def test_the_token_alone_opens_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        answer = await place(both["us"], headers={**FROM_A_PEER, "Authorization": "Bearer wrong"})
        assert_error(answer, 401, "invalid_api_key")
        location = (await place(both["us"])).headers["location"]
        assert_error(await both["us"].get(location, headers={**FROM_A_PEER, **OTHER}), 404, "call_not_found")


@pytest.mark.parametrize(
    "wrong",
    [
        {"Usher-Region": ""},
        {"Usher-Region": "a b"},
        {"Usher-Request-Id": "../../load"},
        {"Usher-Deadline-Ms": "-1"},
        {"Usher-Deadline-Ms": "1e9"},
        {"Usher-Deadline-Ms": "999999"},
    ],
)
async def test_what_a_peer_never_writes_is_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    async with world(tmp_path) as both:
        assert_error(await place(both["us"], headers={**FROM_A_PEER, **wrong}), 400, "invalid_forward")
        assert both.created() == {}


async def test_regions_with_other_tokens_serve_their_calls_themselves(tmp_path: Path) -> None:
    async with world(tmp_path, tokens={"eu": "another-token-of-another-region-0123"}) as both:
        assert (await place_from_eu(both)).status_code == 201
        assert both.created() == {"us": 1}
        assert both.stacks["us"].app.state.services.peers.away_count() == 1
        # Whose a call is its own key says, so what ends it works all the same.
        location = (await place(both["eu"])).headers["location"]
        assert (await both["us"].post(f"{location}/hangup")).status_code == 200


async def test_a_token_is_replaced_without_a_gap(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        new = "the-next-region-token-0123456789-abc"

        async def write(name: str, *tokens: str) -> None:
            (tmp_path / name / "region-token").write_text("\n".join(tokens))
            await both.stacks[name].app.state.services._refresh_files()

        for name, tokens in (
            ("us", (REGION_TOKEN, new)),
            ("eu", (REGION_TOKEN, new)),
            ("us", (new, REGION_TOKEN)),
            ("eu", (new, REGION_TOKEN)),
            ("eu", (new,)),
            ("us", (new,)),
        ):
            await write(name, *tokens)
            assert (await place_from_eu(both)).status_code == 201
        assert both.created() == {"eu": 6}


async def test_regions_that_each_think_a_call_the_others_end_in_one_step(tmp_path: Path) -> None:
    async with world(tmp_path, clusters={"eu": {"us": 2, "eu": 9}}) as both:
        location = (await place(both["eu"], headers=FROM_EU)).headers["location"]
        error = assert_error(await both["us"].get(location), 502, "region_loop")
        assert "cluster 2" in error["message"]
        assert (len(both.regions["us"].came), len(both.regions["eu"].came)) == (0, 1)


@pytest.mark.parametrize("fault", [dead, proxy_error, redirecting, huge])
async def test_who_asks_for_a_call_hears_that_its_region_fails(tmp_path: Path, fault: Callable[[Region], None]) -> None:
    async with world(tmp_path) as both:
        location = (await place_from_eu(both)).headers["location"]
        fault(both.regions["eu"])
        assert_error(await both["us"].get(location), 502, "region_failed")


async def test_an_offer_is_closed_for_peers_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        offered = {**FROM_A_PEER, "Usher-Request-Id": "request-of-a-peer"}
        assert (await place(both["us"], headers=offered)).status_code == 201
        path = "/v1/regions/requests/request-of-a-peer"
        assert_error(await both["us"].delete(path), 404, "not_found")
        forged = {"Usher-Region-Token": "x" * 36, "Usher-Region": "eu"}
        assert_error(await both["us"].delete(path, headers=forged), 403, "wrong_region_token")
        assert_error(await both["us"].delete("/v1/regions/requests/a%20b", headers=FROM_A_PEER), 404, "not_found")
        assert both.live() == 1
        assert (await both["us"].delete(path, headers=FROM_A_PEER)).status_code == 204
        assert both.live() == 0


class HeldCloses:
    """Holds up what closes offers until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = asyncio.Event()
        self.under_way = self.most = self.done = 0
        monkeypatch.setattr(Calls, "close_request", self._close)

    async def _close(self, _request_id: str) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.go.wait()
        self.under_way -= 1
        self.done += 1

    async def is_full(self) -> bool:
        return self.under_way == peer_requests.MAX_CLOSING


async def close_many(world: World, count: int) -> list[int]:
    paths = [f"/v1/regions/requests/request-{number}" for number in range(count)]
    answers = await asyncio.gather(*(world["us"].delete(path, headers=FROM_A_PEER) for path in paths))
    return sorted(answer.status_code for answer in answers)


async def test_offers_that_timed_out_together_are_all_closed_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_requests, "WAIT_S", 60.0)
    closes = HeldCloses(monkeypatch)
    async with world(tmp_path, ("us",)) as only:
        many = asyncio.create_task(close_many(only, 100))
        await until(closes.is_full)
        closes.go.set()
        assert await many == [204] * 100
        assert (closes.most, closes.done) == (peer_requests.MAX_CLOSING, 100)


async def test_a_close_that_gets_no_place_in_time_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_requests, "WAIT_S", 0.05)
    closes = HeldCloses(monkeypatch)
    async with world(tmp_path, ("us",)) as only:
        held = asyncio.create_task(close_many(only, peer_requests.MAX_CLOSING))
        await until(closes.is_full)
        late = await only["us"].delete("/v1/regions/requests/request-late", headers=FROM_A_PEER)
        assert_error(late, 503, "too_many_requests")
        assert "retry-after" in late.headers
        closes.go.set()
        assert await held == [204] * peer_requests.MAX_CLOSING
        again = await only["us"].delete("/v1/regions/requests/request-late", headers=FROM_A_PEER)
        assert again.status_code == 204, "places are given back"


async def test_limits_and_single_use_keys_hold_where_calls_are_handed_on(tmp_path: Path) -> None:
    async with world(tmp_path, secrets_once=True, rate_limit=0.01, rate_burst=4) as both:
        made = await both["us"].post("/v1/realtime/client_secrets", json={})
        key = {"Authorization": f"Bearer {made.json()['value']}"}
        assert (await place_from_eu(both, **key)).status_code == 201
        for at in ("us", "eu"):
            assert_error(await place_from_eu(both, at, **key), 401, "client_secret_used")
        await place_from_eu(both)
        assert_error(await place_from_eu(both), 429, "rate_limit_exceeded")
        assert both.created() == {"eu": 2}


async def test_of_a_query_about_a_call_only_the_trace_is_handed_on(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        location = (await place_from_eu(both)).headers["location"]
        for asked, handed in (({"trace": "1", "x": "y"}, {"trace": "1"}), ({"x": "y"}, {})):
            assert (await both["us"].get(location, params=asked)).status_code == 200
            assert dict(both.regions["eu"].came[-1].url.params) == handed


async def test_debug_paths_of_another_region_are_shown_where_this_one_shows_its_own(tmp_path: Path) -> None:
    async with world(tmp_path, debug_path=True) as both:
        answer = await place_from_eu(both)
        assert answer.headers["usher-path"].startswith("client-region=eu; transceiver=2/1/0; region=eu")
        both.stacks["us"].app.state.services.settings.__dict__["debug_path"] = False
        assert "usher-path" not in (await place_from_eu(both)).headers
