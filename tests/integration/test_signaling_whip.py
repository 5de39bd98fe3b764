"""WHIP as RFC 9725 wants it; each test names the section it is about. docs/whip.md has all requirements."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from tests.pages import ROOT, codes, rows
from tests.signaling_fakes import ANSWER, OFFER, OTHER_KEY, PASSWORD, assert_error, place_whip, signaling, until
from usher_core.sdpfrag import parse_fragment
from usher_signaling.settings import SignalingSettings

SDPFRAG = "application/trickle-ice-sdpfrag"
CANDIDATE = "1387637174 1 udp 2122260223 192.0.2.1 61764 typ host"
TRICKLE = f"a=ice-ufrag:EsAw\r\na=ice-pwd:{PASSWORD}\r\nm=audio 9 RTP/AVP 0\r\na=mid:0\r\na=candidate:{CANDIDATE}\r\n"
RESTART = f"a=ice-ufrag:ysXw\r\na=ice-pwd:{PASSWORD}\r\n"


async def patch(
    client: httpx.AsyncClient, call: httpx.Response, fragment: str, if_match: str | None, kind: str = SDPFRAG
) -> httpx.Response:
    headers = {"Content-Type": kind, **({} if if_match is None else {"If-Match": if_match})}
    return await client.patch(call.headers["location"], content=fragment, headers=headers)


async def test_4_2_a_post_creates_a_session_with_answer_location_and_strong_tag(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
    assert call.text == ANSWER
    assert call.headers["content-type"] == "application/sdp"
    assert call.headers["location"].startswith("/whip/rtc_")
    tag = call.headers["etag"]
    assert tag.startswith('"')
    assert tag.endswith('"')
    assert stack.fleet.transceivers[0].created[0].offer == OFFER


async def test_4_2_a_post_of_another_type_is_415_and_says_what_is_taken(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        for kind in ("application/json", "text/plain", "multipart/form-data; boundary=B"):
            response = await stack.client.post("/whip", content=OFFER, headers={"Content-Type": kind})
            assert_error(response, 415, "unsupported_media_type")
            assert response.headers["accept-post"] == "application/sdp"


async def test_4_2_a_malformed_offer_is_400_and_an_unsupported_one_422(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        fake = stack.fleet.transceivers[0]
        fake.bad_offer = "SDP line 4: expected m="
        headers = {"Content-Type": "application/sdp"}
        error = assert_error(await stack.client.post("/whip", content=OFFER, headers=headers), 400, "bad_sdp")
        assert error["message"] == "SDP line 4: expected m="
        fake.bad_status = 422
        assert_error(await stack.client.post("/whip", content=OFFER, headers=headers), 422, "bad_sdp")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE"])
async def test_4_2_other_methods_on_the_endpoint_are_405(tmp_path: Path, method: str) -> None:
    async with signaling(tmp_path) as stack:
        response = await stack.client.request(method, "/whip", headers={"Authorization": ""})
    assert response.status_code == 405
    assert response.headers["allow"] == "OPTIONS, POST"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST"])
async def test_4_2_other_methods_on_a_session_are_405(tmp_path: Path, method: str) -> None:
    async with signaling(tmp_path) as stack:
        response = await stack.client.request(method, "/whip/rtc_any", headers={"Authorization": ""})
    assert response.status_code == 405
    assert response.headers["allow"] == "DELETE, OPTIONS, PATCH"


async def test_4_2_options_needs_no_key_and_says_what_is_taken(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        stack.client.headers.pop("authorization")
        endpoint = await stack.client.options("/whip")
        session = await stack.client.options("/whip/rtc_any")
    assert (endpoint.status_code, endpoint.headers["accept-post"]) == (200, "application/sdp")
    assert (session.status_code, session.headers["accept-patch"]) == (200, SDPFRAG)


async def test_4_2_delete_ends_the_session_whatever_tag_is_sent(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        for headers in ({}, {"If-Match": '"old"'}):
            call = await place_whip(stack.client)
            assert (await stack.client.delete(call.headers["location"], headers=headers)).status_code == 200
            assert stack.fleet.session_count == 0
            assert_error(await stack.client.delete(call.headers["location"]), 404, "call_not_found")


async def test_4_3_2_a_trickle_with_the_ufrag_of_another_section_of_the_offer_is_no_restart(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        response = await patch(stack.client, call, TRICKLE.replace("EsAw", "2nd0"), call.headers["etag"])
        assert response.status_code == 204
        again = await patch(stack.client, call, TRICKLE, call.headers["etag"])
    assert again.status_code == 204, "the tag is still the same"


async def test_4_3_1_a_patch_of_another_type_is_415_and_a_malformed_one_400(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        tag = call.headers["etag"]
        response = await patch(stack.client, call, TRICKLE, tag, "application/sdp")
        assert_error(response, 415, "unsupported_media_type")
        assert response.headers["accept-patch"] == SDPFRAG
        for fragment in ("nonsense", "a=ice-ufrag:EsAw\r\n", "a=ice-ufrag:\r\na=ice-pwd:x\r\n", "a=mid:0\x00"):
            assert_error(await patch(stack.client, call, fragment, tag), 400, "bad_sdp")
    assert stack.fleet.transceivers[0].trickled == []


async def test_4_3_2_candidates_with_the_current_tag_are_204_without_body_and_tag(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        response = await patch(stack.client, call, TRICKLE, call.headers["etag"])
    assert (response.status_code, response.content) == (204, b"")
    assert "etag" not in response.headers
    sent = stack.fleet.transceivers[0].trickled[0]
    assert (sent.ufrag, sent.candidates, sent.end_of_candidates) == ("EsAw", (CANDIDATE,), False)


async def test_4_3_2_a_fragment_may_be_empty_end_only_or_without_credentials(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        for fragment in ("", "a=end-of-candidates\r\n", f"m=audio 9 RTP/AVP 0\na=mid:0\na=candidate:{CANDIDATE}\n"):
            assert (await patch(stack.client, call, fragment, call.headers["etag"])).status_code == 204
    assert [sent.end_of_candidates for sent in stack.fleet.transceivers[0].trickled] == [False, True, False]


async def test_4_3_2_candidates_that_nobody_can_use_are_taken_silently(tmp_path: Path) -> None:
    many = f"m=audio 9 RTP/AVP 0\r\na=mid:0\r\n{'a=candidate:x tcp nowhere.local' + chr(13) + chr(10)}" * 1
    many += "".join(f"a=candidate:{number} 1 tcp 1 host.local 9 typ host tcptype active\r\n" for number in range(200))
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        assert (await patch(stack.client, call, many, call.headers["etag"])).status_code == 204
    assert len(stack.fleet.transceivers[0].trickled[0].candidates) == 64


async def test_4_3_2_without_if_match_428_and_with_an_old_tag_412(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        assert_error(await patch(stack.client, call, TRICKLE, None), 428, "precondition_required")
        for tag in ('"old"', f"W/{call.headers['etag']}", '"a", "b"'):
            assert_error(await patch(stack.client, call, TRICKLE, tag), 412, "precondition_failed")
        assert_error(await patch(stack.client, call, TRICKLE, "unquoted"), 400, "bad_if_match")
        listed = await patch(stack.client, call, TRICKLE, f'"old", {call.headers["etag"]}')
        assert listed.status_code == 204
    assert len(stack.fleet.transceivers[0].trickled) == 1


@pytest.mark.parametrize("star", ["*", '"*"'])
async def test_4_3_3_a_restart_answers_with_new_credentials_and_a_new_tag(tmp_path: Path, star: str) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        response = await patch(stack.client, call, RESTART, star)
        assert response.status_code == 200
        assert response.headers["content-type"] == SDPFRAG
        new_tag = response.headers["etag"]
        assert new_tag != call.headers["etag"]
        answer = parse_fragment(response.text)
        assert answer.ice_lite
        assert answer.ufrag is not None
        assert answer.ufrag.startswith("B")
        assert answer.pwd == "p" * 32
        assert answer.sections[0].candidates
        # The old tag names an ICE session that is over, the new one counts.
        assert_error(await patch(stack.client, call, TRICKLE, call.headers["etag"]), 412, "precondition_failed")
        trickled = TRICKLE.replace("EsAw", "ysXw")
        assert (await patch(stack.client, call, trickled, new_tag)).status_code == 204
    assert stack.fleet.transceivers[0].restarts[0].ufrag == "ysXw"


async def test_4_3_3_a_restart_may_be_repeated_when_its_answer_was_lost(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        tags = {(await patch(stack.client, call, RESTART, "*")).headers["etag"] for _ in range(3)}
    assert len(tags) == 3


async def test_new_credentials_with_the_current_tag_are_a_restart_too(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        response = await patch(stack.client, call, RESTART, call.headers["etag"])
        assert response.status_code == 200
        again = await patch(stack.client, call, RESTART, call.headers["etag"])
        assert_error(again, 412, "precondition_failed")


async def test_4_3_3_a_restart_without_credentials_is_422_and_the_session_goes_on(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        assert_error(await patch(stack.client, call, "a=end-of-candidates\r\n", "*"), 422, "missing_credentials")
        assert (await patch(stack.client, call, TRICKLE, call.headers["etag"])).status_code == 204
        assert stack.fleet.session_count == 1


async def test_a_session_that_has_ended_is_not_found(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        next(iter(stack.fleet.transceivers[0].sessions.values())).state = "ended"
        assert_error(await patch(stack.client, call, RESTART, "*"), 404, "call_not_found")


async def test_4_5_with_nobody_free_503_and_retry_after(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        stack.fleet.transceivers[0].max_sessions = 0
        response = await stack.client.post("/whip", content=OFFER, headers={"Content-Type": "application/sdp"})
        assert_error(response, 503, "no_transceiver")
        assert int(response.headers["retry-after"]) >= 1


async def test_4_7_a_bearer_token_is_asked_for_on_endpoint_and_session(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        stack.client.headers.pop("authorization")
        refused = [
            await stack.client.post("/whip", content=OFFER, headers={"Content-Type": "application/sdp"}),
            await patch(stack.client, call, RESTART, "*"),
            await stack.client.delete(call.headers["location"]),
        ]
        for response in refused:
            assert_error(response, 401, "invalid_api_key")
            assert response.headers["www-authenticate"].startswith("Bearer")
    assert stack.fleet.session_count == 1


@pytest.mark.parametrize(
    ("path", "method"), [("/whip", "POST"), ("/whip/rtc_any", "PATCH"), ("/whip/rtc_any", "DELETE")]
)
async def test_4_2_a_preflight_from_a_page_is_allowed_on_endpoint_and_session(
    tmp_path: Path, path: str, method: str
) -> None:
    async with signaling(tmp_path) as stack:
        asked = {
            "Origin": "https://encoder.example",
            "Access-Control-Request-Method": method,
            "Access-Control-Request-Headers": "authorization, content-type, if-match",
            "Authorization": "",
        }
        response = await stack.client.options(path, headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "*"
    assert method in response.headers["access-control-allow-methods"]
    assert {"Authorization", "Content-Type", "If-Match"} <= set(
        response.headers["access-control-allow-headers"].split(", ")
    )


async def test_4_3_1_the_tag_is_strong_and_another_one_for_each_ice_session(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        calls = [await place_whip(stack.client) for _ in range(5)]
        tags = [call.headers["etag"] for call in calls]
        tags += [(await patch(stack.client, call, RESTART, "*")).headers["etag"] for call in calls]
    assert len(set(tags)) == 10
    assert all(tag.startswith('"') and tag.endswith('"') and len(tag) > 12 for tag in tags)


async def test_4_5_nothing_is_redirected(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        for method in ("GET", "POST", "PATCH", "DELETE", "OPTIONS"):
            for path in ("/whip", "/whip/", "//whip", "/whip/rtc_any", "/whip/rtc_any/", "/WHIP"):
                response = await stack.client.request(method, path)
                assert not 300 <= response.status_code < 400, (method, path)
                assert "location" not in response.headers


async def test_4_6_no_answer_names_an_ice_server(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = await place_whip(stack.client)
        preflight = await stack.client.options("/whip", headers={"Access-Control-Request-Method": "POST"})
    assert "link" not in call.headers
    assert "link" not in preflight.headers


def test_5_the_server_listens_on_loopback_unless_told_otherwise() -> None:
    assert SignalingSettings.model_fields["http"].default.startswith("127.0.0.1:")


async def test_5_urls_of_sessions_are_random_and_forged_ones_are_404(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        locations = [(await place_whip(stack.client)).headers["location"] for _ in range(20)]
        assert len({location[: len("/whip/rtc_") + 18] for location in locations}) == 20
        for place_in_id in range(len("/whip/rtc_"), len(locations[0]), 7):
            other = "A" if locations[0][place_in_id] != "A" else "B"
            forged = locations[0][:place_in_id] + other + locations[0][place_in_id + 1 :]
            assert_error(await stack.client.delete(forged), 404, "call_not_found")
        keys = {"Authorization": f"Bearer {OTHER_KEY}"}
        assert_error(await stack.client.delete(locations[0], headers=keys), 404, "call_not_found")
        assert stack.fleet.session_count == 20


async def test_5_more_requests_than_may_be_under_way_get_503(tmp_path: Path) -> None:
    async with signaling(tmp_path, max_requests=2) as stack:
        call = await place_whip(stack.client)
        stack.fleet.transceivers[0].answer_delay = 0.5
        slow = [asyncio.create_task(place_whip(stack.client)) for _ in range(2)]

        async def both_under_way() -> bool:
            return len(stack.fleet.transceivers[0].created) == 3

        await until(both_under_way)
        refused = [
            await stack.client.post("/whip", content=OFFER, headers={"Content-Type": "application/sdp"}),
            await patch(stack.client, call, TRICKLE, call.headers["etag"]),
            await stack.client.delete(call.headers["location"]),
        ]
        for response in refused:
            assert_error(response, 503, "too_many_requests")
            assert response.headers["retry-after"]
        await asyncio.gather(*slow)
        assert (await stack.client.delete(call.headers["location"])).status_code == 200


def test_the_page_numbers_every_requirement_and_names_a_test_that_exists() -> None:
    requirements = [row.cells for row in rows(ROOT / "docs" / "whip.md")]
    assert [cells[0] for cells in requirements] == [f"W{number}" for number in range(1, len(requirements) + 1)]
    tests = {
        name
        for path in (ROOT / "tests").glob("*/test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    for number, section, level, asked, met, shown in requirements:
        assert re.fullmatch(r"[45](\.\d){0,2}", section), number
        assert level in {"MUST", "SHALL", "SHOULD", "RECOMMENDED", "MAY"}, number
        assert asked, number
        assert re.match(r"yes|no: \w|in part: \S|by ", met), number
        assert codes(shown), number
        assert set(codes(shown)) <= tests, number
    unmet = [cells[0] for cells in requirements if cells[4].startswith("no")]
    page = " ".join((ROOT / "docs" / "whip.md").read_text().split())
    assert f"{len(unmet)} of {len(requirements)} are not met, for reasons of voice: {', '.join(unmet)};" in page
