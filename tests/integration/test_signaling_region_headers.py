"""Headers that go from a caller to another region and back: none of them can be made to look like a fault of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
from structlog.testing import capture_logs

from tests.signaling_fakes import API_KEY, OFFER, assert_error, place
from tests.signaling_regions import FROM_EU, Region, place_from_eu, world, write_own_seal_key


def answer_as(region: Region, headers: dict[bytes, bytes]) -> None:
    """Let something else answer offers in the place of a region's signaling."""
    region.answer = lambda _request: httpx.Response(201, headers=headers, stream=httpx.ByteStream(b"v=0"))


ODD_VALUES = (["00, "], ["a", ""], ["", "a"], ["a", "a"], [b"\xe9"], [b"a\x01b"], ["a" * 20_000], [" ", " "], [","])


@pytest.mark.parametrize("name", ["traceparent", "If-Match", "Authorization", "Content-Type", "X-Region"])
async def test_no_header_of_a_caller_makes_a_region_look_broken(tmp_path: Path, name: str) -> None:
    async with world(tmp_path) as both:
        location = (await place_from_eu(both)).headers["location"]
        good = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/sdp", **FROM_EU}
        whip = f"/whip/{location.rpartition('/')[2]}"
        for values in ODD_VALUES:
            # The first one counts here, so these come behind the caller's own.
            sent: Any = [*good.items(), *((name, value) for value in values)]
            for method, path in (("POST", "/v1/realtime/calls"), ("GET", location), ("PATCH", whip)):
                request = httpx.Request(method, f"http://us.test{path}", content=OFFER, headers=sent)
                assert (await both["us"].send(request)).status_code < 500
        assert len(both.regions["eu"].came) > 2 * len(ODD_VALUES)
        for came in both.regions["eu"].came:
            # What the network of these tests does not do: raises LocalProtocolError for what HTTP can't carry.
            h11.Request(method=came.method, target=came.url.raw_path, headers=came.headers.raw)
            assert sum(len(value) for _, value in came.headers.raw) < 16_000
        assert both.stacks["us"].app.state.services.peers.away_count() == 0


FORM = b'--b c\r\nContent-Disposition: form-data; name="sdp"\r\n\r\n%s\r\n--b c--\r\n' % OFFER.encode()


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/sdp; x=é".encode(), OFFER, 201),
        (b"application/sdp; x=" + b"y" * 2000, OFFER, 201),
        (b"Application/SDP;;", OFFER, 201),
        ('multipart/form-data; x=é; boundary="b c"'.encode(), FORM, 201),
        (b'multipart/form-data; boundary="b c"; x=' + b"y" * 2000, FORM, 201),
        (b"multipart/form-data; boundary=" + b"y" * 2000, FORM, 400),
        ("multipart/form-data; boundary=é".encode(), FORM, 400),
        (b"multipart/form-data", FORM, 400),
        (b"text/plain; x=application/sdp", OFFER, 415),
        ("é/sdp".encode(), OFFER, 415),
    ],
)
async def test_a_content_type_counts_in_another_region_for_what_it_counts_here(
    tmp_path: Path, content_type: bytes, body: str | bytes, status: int
) -> None:
    async with world(tmp_path) as both:
        headers: Any = {"Authorization": f"Bearer {API_KEY}", "Content-Type": content_type}
        for region in ("us", "eu"):
            request = httpx.Request(
                "POST", "http://us.test/v1/realtime/calls", content=body, headers={**headers, "X-Region": region}
            )
            assert (await both["us"].send(request)).status_code == status, region
        assert both.created() == ({"us": 1, "eu": 1} if status == 201 else {})


@pytest.mark.parametrize("fault", [httpx.LocalProtocolError("illegal header value"), httpx.InvalidURL("bad")])
async def test_what_cannot_be_sent_is_the_callers_fault_and_not_the_regions(tmp_path: Path, fault: Exception) -> None:
    def refuse(_request: httpx.Request) -> httpx.Response:
        raise fault

    async with world(tmp_path) as both:
        location = (await place_from_eu(both)).headers["location"]
        both.regions["eu"].answer = refuse
        assert_error(await place_from_eu(both), 400, "invalid_request")
        assert_error(await both["us"].get(location), 400, "invalid_request")
        both.regions["eu"].answer = None
        assert (await place_from_eu(both)).status_code == 201
        assert both.created() == {"eu": 2}


@pytest.mark.parametrize(
    "location",
    [
        "https://evil.test/v1/realtime/calls/rtc_a",
        "//evil.test/rtc_a",
        "/whip/rtc_a",
        "/v1/realtime/calls/rtc_a?b",
        "/v1/realtime/calls/rtc_a/..",
        "/v1/realtime/calls/x",
        f"/v1/realtime/calls/rtc_{'a' * 500}",
    ],
)
async def test_a_place_that_is_no_call_of_ours_is_told_to_nobody(tmp_path: Path, location: str) -> None:
    async with world(tmp_path) as both:
        answer_as(both.regions["eu"], {b"Content-Type": b"application/sdp", b"Location": location.encode()})
        assert (await place_from_eu(both)).status_code == 201
        assert both.created() == {"us": 1}


async def test_headers_of_another_region_come_back_only_as_they_can_be_sent(tmp_path: Path) -> None:
    async with world(tmp_path) as both:
        location = "/v1/realtime/calls/rtc_a"
        headers = {b"Content-Type": b"application/sdp", b"Location": location.encode()}
        answer_as(both.regions["eu"], {**headers, b"Accept-Post": b"a" * 2000, b"ETag": b"\xe9"})
        placed = await place_from_eu(both)
        assert (placed.status_code, placed.headers["location"]) == (201, location)
        assert not {"etag", "accept-post"} & set(placed.headers)


async def test_call_ids_that_no_key_here_opens_are_told_to_the_log_once(tmp_path: Path) -> None:
    def own_key(folder: Path, name: str) -> dict[str, Any]:
        write_own_seal_key(folder, name)
        return {}

    for prepare, expected in ((own_key, 1), (None, 0)):
        folder = tmp_path / str(expected)
        folder.mkdir()
        async with world(folder, prepare=prepare) as both:
            with capture_logs() as entries:
                for _ in range(3):
                    assert (await place_from_eu(both)).status_code == 201
        told = [entry for entry in entries if "sealed a call id" in entry["event"]]
        assert [(entry["log_level"], entry["region"]) for entry in told] == [("warning", "eu")] * expected


async def test_that_no_transceiver_takes_a_call_is_a_warning_only_where_no_other_region_takes_it(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as both:
        both.fakes["us"].dead = True
        with capture_logs() as entries:
            assert (await place(both["us"])).status_code == 201
        told = {entry["event"]: entry["log_level"] for entry in entries}
        assert told["no transceiver here took the call"] == "info"
        assert "nobody took the call" not in told
        both.fakes["eu"].dead = True
        with capture_logs() as entries:
            message = assert_error(await place(both["us"]), 503, "no_transceiver")["message"]
        assert ("nobody took the call", "warning") in {(entry["event"], entry["log_level"]) for entry in entries}
        assert "route file" not in message
