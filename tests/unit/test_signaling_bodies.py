"""The three forms of an offer, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.datastructures import Headers

from usher_core.internal_api import MAX_SDP
from usher_signaling.bodies import MAX_DEPTH, OfferRequest, parse_offer_request
from usher_signaling.errors import ApiError

OFFER = "v=0\r\ns=grüße\r\n"


def headers(content_type: str) -> Headers:
    return Headers({"content-type": content_type})


def form(*parts: bytes) -> bytes:
    return b"".join(b"--B\r\n" + part + b"\r\n" for part in parts) + b"--B--\r\n"


SDP_PART = b'Content-Disposition: form-data; name="sdp"\r\nContent-Type: application/sdp\r\n\r\n' + OFFER.encode()
SDP_FILE = b'Content-Disposition: form-data; name="sdp"; filename="offer.sdp"\r\n\r\n' + OFFER.encode()
SESSION = b'Content-Disposition: form-data; name="session"\r\n\r\n'
FORM = "multipart/form-data; boundary=B"


async def refused(content_type: str, body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await parse_offer_request(headers(content_type), body)
    return caught.value


@pytest.mark.parametrize("part", [SDP_PART, SDP_FILE])
async def test_a_part_is_read_as_text_and_as_file(part: bytes) -> None:
    assert await parse_offer_request(headers(FORM), form(part, SESSION + b'{"a": 1}')) == OfferRequest(OFFER, {"a": 1})
    assert await parse_offer_request(headers(FORM), form(part)) == OfferRequest(OFFER, {})
    assert await parse_offer_request(headers(FORM), form(part, SESSION)) == OfferRequest(OFFER, {})


async def test_the_order_of_parts_and_unknown_parts_do_not_matter() -> None:
    other = b'Content-Disposition: form-data; name="other"\r\n\r\nx'
    assert await parse_offer_request(headers(FORM), form(SESSION + b"{}", other, SDP_PART)) == OfferRequest(OFFER, {})


@pytest.mark.parametrize(
    ("content_type", "body", "status", "code"),
    [
        ("", b"v=0", 415, "unsupported_media_type"),
        ("text/plain", b"v=0", 415, "unsupported_media_type"),
        ("application/sdp", b"", 400, "bad_sdp"),
        ("application/sdp", b" \r\n", 400, "bad_sdp"),
        ("application/sdp", b"v=0\xff", 400, "bad_sdp"),
        ("application/sdp", b"v" * (MAX_SDP + 1), 413, "body_too_large"),
        ("multipart/form-data", form(SDP_PART), 400, "bad_form"),
        (FORM, b"", 400, "missing_sdp"),
        (FORM, b"garbage", 400, "bad_form"),
        (FORM, form(b"no disposition\r\n\r\nx"), 400, "bad_form"),
        (FORM, form(SESSION + b"{}"), 400, "missing_sdp"),
        (FORM, form(SDP_PART, SESSION + b"{"), 400, "bad_json"),
        (FORM, form(SDP_PART, SESSION + b"[]"), 400, "bad_json"),
        (FORM, form(*[SDP_PART] * 50), 400, "bad_form"),
        ("application/json", b"", 400, "bad_json"),
        ("application/json", b"\xff", 400, "bad_json"),
        ("application/json", b"[" * 100_000, 400, "bad_json"),
        ("application/json", b"{}", 400, "missing_sdp"),
        ("application/json", b'{"sdp": 1}', 400, "missing_sdp"),
        ("application/json", b'{"sdp": "v=0", "session": []}', 400, "bad_json"),
        ("application/json", b'{"sdp": "v=0", "session": {"a": NaN}}', 400, "bad_json"),
        ("application/json", b'{"sdp": "v=0", "session": {"a": 1e999}}', 400, "bad_json"),
        ("application/json", b'{"sdp": "v=0", "session": {"a": "\\ud800"}}', 400, "bad_json"),
        ("application/json", b'{"sdp": "v=0\\ud800"}', 400, "bad_json"),
        ("application/json", b'{"sdp": ""}', 400, "bad_sdp"),
        ("application/json", json.dumps({"sdp": "v" * (MAX_SDP + 1)}).encode(), 413, "body_too_large"),
        ("application/json", json.dumps({"sdp": "v", "session": {"a": "x" * 300_000}}).encode(), 413, "body_too_large"),
    ],
)
async def test_what_can_not_be_read_is_refused(content_type: str, body: bytes, status: int, code: str) -> None:
    error = await refused(content_type, body)
    assert (error.status, error.code) == (status, code)


async def test_deep_nesting_is_refused_before_it_reaches_anybody() -> None:
    def nested(depth: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(depth - 1):
            value = {"a": value}
        return value

    fine = json.dumps({"sdp": "v=0", "session": nested(MAX_DEPTH - 2)}).encode()
    assert (await parse_offer_request(headers("application/json"), fine)).sdp == "v=0"
    deep = json.dumps({"sdp": "v=0", "session": nested(MAX_DEPTH + 2)}).encode()
    assert (await refused("application/json", deep)).code == "bad_json"
