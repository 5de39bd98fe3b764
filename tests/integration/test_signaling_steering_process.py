"""Regions over real connections: the peer address decides whether a header is believed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.signaling_fakes import FakeTransceiver, place, until, write_files
from tests.signaling_program import HEADERS, program, serving, write_route

STEERING = ("--region=us", "--region-header=X-Region", "--debug-path", "--advertise=2=127.0.0.2:3478@eu")


@pytest.mark.parametrize(("proxies", "expected"), [("127.0.0.0/8", "eu"), ("10.0.0.0/8", "us")])
async def test_the_header_of_a_proxy_steers_and_that_of_a_stranger_does_not(
    tmp_path: Path, proxies: str, expected: str
) -> None:
    eu, us = FakeTransceiver(pod=1, region="eu"), FakeTransceiver(pod=2, region="us")
    write_files(tmp_path, [])
    flags = (*STEERING, f"--trusted-proxies={proxies}", "--load-interval=0.05")
    async with serving(eu) as eu_url, serving(us) as us_url:
        write_route(tmp_path, {eu_url: eu, us_url: us})
        async with (
            program(tmp_path, *flags) as running,
            httpx.AsyncClient(base_url=running.url, headers=HEADERS) as client,
        ):

            async def both_live() -> bool:
                return bool((await client.get("/readyz")).json()["transceivers_live"] == 2)

            await until(both_live)
            # Neither does what the client says of itself in the headers that proxies use for addresses.
            call = await place(client, headers={"X-Region": "eu", "X-Forwarded-For": "10.0.0.1"})
            assert call.status_code == 201
            told = (await client.get(call.headers["location"])).json()
    assert told["path"]["region"] == expected
    assert f"client-region={expected}; " in call.headers["usher-path"]
    assert ("127.0.0.2:3478" in call.headers["usher-path"]) == (expected == "eu")
