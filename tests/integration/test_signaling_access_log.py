"""The access log: one line of JSON per request, with the call's session, and with nothing secret."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from tests.signaling_fakes import API_KEY, OFFER, FakeTransceiver, place, until, write_files
from tests.signaling_program import HEADERS, program, serving, write_route


@contextlib.asynccontextmanager
async def logging_server(folder: Path, fake: FakeTransceiver) -> AsyncIterator[httpx.AsyncClient]:
    write_files(folder, [])
    async with serving(fake) as url:
        write_route(folder, {url: fake})
        async with (
            program(folder, "--log-format", "json") as running,
            httpx.AsyncClient(base_url=running.url, headers=HEADERS) as client,
        ):
            yield client


async def requests(folder: Path, count: int) -> list[dict[str, Any]]:
    """The lines of the access log, once there are `count`."""
    found: list[dict[str, Any]] = []

    async def all_there() -> bool:
        lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
        found[:] = [line for line in lines if line["event"] == "request"]
        return len(found) >= count

    await until(all_there)
    assert len(found) == count
    return found


async def test_each_request_is_a_line_with_route_status_time_and_session(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with logging_server(tmp_path, fake) as client:
        call = await place(client)
        await client.get(call.headers["location"])
        await client.get("/livez")
        await client.get("/v1/realtime/calls/rtc_forged")
        (session,) = fake.sessions
        placed, described, forged = await requests(tmp_path, 3)
    told = {"method": "POST", "route": "/v1/realtime/calls", "status": 201, "session": session, "level": "info"}
    assert placed.items() >= told.items()
    assert placed["ms"] >= 0
    assert placed["timestamp"].endswith("Z")
    assert (described["session"], described["route"]) == (session, "/v1/realtime/calls/{call_id}")
    assert forged["status"] == 404
    assert "session" not in forged


async def test_neither_key_nor_sdp_nor_call_id_is_logged(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with logging_server(tmp_path, fake) as client:
        secret = (await client.post("/v1/realtime/client_secrets", headers={"Content-Type": "application/json"})).json()
        key = secret["value"]
        call = await place(client, headers={"Authorization": f"Bearer {key}"})
        call_id = call.headers["location"].rpartition("/")[2]
        await client.get(f"/v1/realtime/calls/{call_id}?key={API_KEY}")
        fake.broken = True
        await place(client)
        await client.delete(f"/whip/{call_id}")
        await requests(tmp_path, 5)
    text = (tmp_path / "log").read_text()
    for hidden in (API_KEY, key, call_id, "a=ice-ufrag", OFFER.splitlines()[1]):
        assert hidden not in text
