"""The access log: one line of JSON per request, with the call's session, and with nothing secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.signaling_fakes import API_KEY, OFFER, place, signaling
from usher_core import logs


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The log as a program in a cluster writes it."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    text = io.StringIO()
    monkeypatch.setattr("sys.stderr", text)
    logs.configure("json", "info")
    yield text
    root.handlers[:], _ = before[0], root.setLevel(before[1])
    structlog.reset_defaults()


def requests(written: io.StringIO) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    return [line for line in lines if line["event"] == "request"]


async def test_each_request_is_a_line_with_route_status_time_and_session(tmp_path: Path, written: io.StringIO) -> None:
    async with signaling(tmp_path) as stack:
        call = await place(stack.client)
        await stack.client.get(call.headers["location"])
        await stack.client.get("/v1/realtime/calls/rtc_forged")
        await stack.client.get("/livez")
        (session,) = stack.fleet.transceivers[0].sessions
    placed, described, forged = requests(written)
    assert (
        placed.items()
        >= {
            "method": "POST",
            "route": "/v1/realtime/calls",
            "status": 201,
            "session": session,
            "level": "info",
        }.items()
    )
    assert placed["ms"] >= 0
    assert placed["timestamp"].endswith("Z")
    assert (described["session"], described["route"]) == (session, "/v1/realtime/calls/{call_id}")
    assert forged["status"] == 404
    assert "session" not in forged


async def test_neither_key_nor_sdp_nor_call_id_is_logged(tmp_path: Path, written: io.StringIO) -> None:
    async with signaling(tmp_path) as stack:
        secret = (await stack.client.post("/v1/realtime/client_secrets")).json()["value"]
        call = await place(stack.client, headers={"Authorization": f"Bearer {secret}"})
        call_id = call.headers["location"].rpartition("/")[2]
        await stack.client.get(f"/v1/realtime/calls/{call_id}?key={API_KEY}")
        stack.fleet.transceivers[0].broken = True
        await place(stack.client)
        await stack.client.delete(f"/whip/{call_id}")
    text = written.getvalue()
    assert len(requests(written)) == 5
    for hidden in (API_KEY, secret, call_id, "a=ice-ufrag", OFFER.splitlines()[1]):
        assert hidden not in text
