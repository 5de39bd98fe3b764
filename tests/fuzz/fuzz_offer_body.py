"""Invariant: parse or raise ApiError, nothing else. The session that came with an offer can be written again."""

import asyncio
import json
from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from starlette.datastructures import Headers

    from usher_core.internal_api import MAX_SDP, MAX_SESSION_JSON
    from usher_signaling.bodies import parse_offer_request
    from usher_signaling.errors import ApiError

KINDS = ["application/sdp", "multipart/form-data; boundary=b", "application/json", "multipart/form-data", "text/plain"]
LOOP = asyncio.new_event_loop()


def one_input(data: bytes) -> None:
    kind = KINDS[data[0] % len(KINDS)] if data else ""
    with suppress(ApiError):
        offer = LOOP.run_until_complete(parse_offer_request(Headers({"content-type": kind}), data[1:]))
        assert 0 < len(offer.sdp.encode()) <= MAX_SDP
        assert len(json.dumps(offer.session, allow_nan=False)) <= MAX_SESSION_JSON


def _form(**parts: str) -> bytes:
    return (
        b"".join(
            f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode()
            for name, text in parts.items()
        )
        + b"--b--\r\n"
    )


SEEDS = [
    b"\0v=0\r\n",
    b"\1" + _form(sdp="v=0", session='{"model":"echo"}'),
    b"\1" + _form(session="[]"),
    b'\2{"sdp":"v=0","session":{"a":[1e999]}}',
    b'\2{"sdp":"v=0","session":' + b'{"a":' * 500 + b"1" + b"}" * 501,
    b"\3" + _form(sdp="v=0"),
]

if __name__ == "__main__":
    main(one_input, SEEDS)
