"""Regions end to end through the HTTP API, and the choice of a backend, against pretended transceivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.signaling_fakes import OFFER, FakeTransceiver, Stack, assert_error, place, place_whip, signaling

ADVERTISE = ("1=192.0.2.1:3478@eu", "2=192.0.2.2:3478@us", "3=192.0.2.3:3478")
BEHIND_A_PROXY: dict[str, Any] = {"region": "us", "region_header": "X-Region", "trusted_proxies": ("127.0.0.0/8",)}
FROM_EU = {"X-Region": "eu"}


def two_regions() -> tuple[FakeTransceiver, FakeTransceiver]:
    return FakeTransceiver(pod=1, region="eu"), FakeTransceiver(pod=2, region="us")


def away(stack: Stack) -> float:
    value: float = stack.app.state.services.metrics.away._value.get()
    return value


async def test_a_call_goes_to_the_region_that_the_proxy_names_and_gets_its_relay_addresses(tmp_path: Path) -> None:
    eu, us = two_regions()
    async with signaling(tmp_path, eu, us, advertise=ADVERTISE, **BEHIND_A_PROXY) as stack:
        for _ in range(5):
            await place(stack.client, headers=FROM_EU)
        await place(stack.client)
        await stack.client.post("/whip", content=OFFER, headers={"Content-Type": "application/sdp", **FROM_EU})
        assert away(stack) == 0
    assert (len(eu.created), len(us.created)) == (6, 1)
    assert {tuple(one.listener for one in asked.advertise) for asked in eu.created} == {(1, 3)}
    assert [one.listener for one in us.created[0].advertise] == [2, 3]


async def test_a_header_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    eu, us = two_regions()
    settings: dict[str, Any] = {**BEHIND_A_PROXY, "trusted_proxies": ("10.0.0.0/8",)}
    async with signaling(tmp_path, eu, us, **settings) as stack:
        await place(stack.client, headers=FROM_EU)
    assert (len(eu.created), len(us.created)) == (0, 1)


async def test_two_headers_are_not_believed(tmp_path: Path) -> None:
    eu, us = two_regions()
    async with signaling(tmp_path, eu, us, **BEHIND_A_PROXY) as stack:
        headers = [("Content-Type", "application/sdp"), ("X-Region", "eu"), ("X-Region", "eu")]
        await stack.client.post("/v1/realtime/calls", content=OFFER, headers=headers)
    assert (len(eu.created), len(us.created)) == (0, 1)


@pytest.mark.parametrize("fault", ["full", "draining", "dead"])
async def test_a_call_goes_elsewhere_within_the_request_when_its_region_has_no_room(tmp_path: Path, fault: str) -> None:
    eu, us = two_regions()
    async with signaling(tmp_path, eu, us, region="eu") as stack:
        eu.max_sessions, eu.draining, eu.dead = {
            "full": (0, False, False),
            "draining": (100, True, False),
            "dead": (100, False, True),
        }[fault]
        assert (await place(stack.client)).status_code == 201
        assert away(stack) == 1
    assert len(us.created) == 1


async def test_a_region_that_is_out_as_a_whole_does_not_use_up_the_tries(tmp_path: Path) -> None:
    dead = [FakeTransceiver(pod=pod, region="eu") for pod in range(1, 11)]
    us = FakeTransceiver(pod=99, region="us")
    async with signaling(tmp_path, *dead, us, region="eu", max_attempts=3) as stack:
        for fake in dead:
            fake.dead = True
        assert (await place(stack.client)).status_code == 201


async def test_without_the_star_a_call_stays_in_the_regions_that_are_named(tmp_path: Path) -> None:
    eu, us = two_regions()
    async with signaling(tmp_path, eu, us, region="eu", region_fallback=()) as stack:
        assert (await stack.client.get("/readyz")).json()["can_place"]
        eu.draining = True
        assert_error(await place(stack.client), 503, "no_transceiver")
        await stack.app.state.services.directory.refresh()
        assert not (await stack.client.get("/readyz")).json()["can_place"]
    assert us.created == []


async def test_without_an_address_for_the_region_there_is_no_answer(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"advertise": ADVERTISE[1:2], "region": "eu", "region_fallback": ()}
    async with signaling(tmp_path, *two_regions(), **changes) as stack:
        assert_error(await place(stack.client), 503, "no_address")
        assert not (await stack.client.get("/readyz")).json()["can_place"]


async def test_support_sees_the_path_and_clients_do_not(tmp_path: Path) -> None:
    async with signaling(tmp_path, *two_regions(), advertise=ADVERTISE, region="eu") as stack:
        answer = await place(stack.client)
        told = (await stack.client.get(answer.headers["location"])).json()
    assert "usher-path" not in answer.headers
    assert told["path"] == {
        "relay": "192.0.2.1:3478",
        "relay_region": "eu",
        "cluster": 1,
        "transceiver": "1/1/0",
        "region": "eu",
    }


async def test_with_debug_on_clients_see_the_path_too(tmp_path: Path) -> None:
    fakes = FakeTransceiver(pod=1, region="eu"), FakeTransceiver(pod=2, region="Über; see")
    async with signaling(tmp_path, *fakes, advertise=ADVERTISE, region="eu", debug_path=True) as stack:
        page = {"Origin": "https://voice.example"}
        answer = await place(stack.client, headers=page)
        assert answer.headers["usher-path"] == (
            "client-region=eu; transceiver=1/1/0; region=eu; relays=192.0.2.1:3478,192.0.2.3:3478"
        )
        assert "Usher-Path" in answer.headers["access-control-expose-headers"]
        assert (await place_whip(stack.client)).headers["usher-path"] == answer.headers["usher-path"]
        fakes[0].draining = True
        assert "; region=%C3%9Cber%3B%20see; " in (await place(stack.client)).headers["usher-path"]


async def backend_of(client: httpx.AsyncClient, fake: FakeTransceiver, **arguments: Any) -> str | None:
    response = await client.post("/v1/realtime/calls", **arguments)
    assert response.status_code == 201, response.text
    return fake.created[-1].backend


async def test_a_caller_chooses_among_the_allowed_backends_by_the_model(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake, backends=("echo", "parrot")) as stack:
        sdp: dict[str, Any] = {"content": OFFER, "headers": {"Content-Type": "application/sdp"}}
        assert await backend_of(stack.client, fake, **sdp) is None
        assert await backend_of(stack.client, fake, params={"model": "parrot"}, **sdp) == "parrot"
        assert await backend_of(stack.client, fake, json={"sdp": OFFER, "session": {"model": "echo"}}) == "echo"
        # The name of somebody else's model stays in the session and chooses nothing.
        assert await backend_of(stack.client, fake, params={"model": "gpt-realtime"}, **sdp) is None
        assert fake.created[-1].session == {"model": "gpt-realtime"}
        response = await stack.client.post("/whip", params={"model": "parrot"}, **sdp)
        assert (response.status_code, fake.created[-1].backend) == (201, "parrot")


async def test_the_model_in_an_ephemeral_key_decides(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake, backends=("echo", "parrot")) as stack:
        made = await stack.client.post("/v1/realtime/client_secrets", json={"session": {"model": "parrot"}})
        await place(stack.client, params={"model": "echo"}, headers={"Authorization": f"Bearer {made.json()['value']}"})
    assert fake.created[-1].backend == "parrot"


async def test_a_backend_that_is_not_allowed_is_not_chosen(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake, backend="echo") as stack:
        await place(stack.client, params={"model": "parrot"})
    assert fake.created[-1].backend == "echo"


async def test_a_transceiver_without_the_backend_is_passed_over_and_stays_alive(tmp_path: Path) -> None:
    lacking, having = FakeTransceiver(pod=1, backends=()), FakeTransceiver(pod=2, backends=("parrot",))
    async with signaling(tmp_path, lacking, having, backends=("parrot",)) as stack:
        for _ in range(6):
            assert (await place(stack.client, params={"model": "parrot"})).status_code == 201
        assert stack.app.state.services.directory.live_count() == 2
    assert len(having.sessions) == 6


async def test_a_backend_that_no_transceiver_has_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with signaling(tmp_path, FakeTransceiver(pod=1, backends=()), backends=("parrot",)) as stack:
        error = assert_error(await place(stack.client, params={"model": "parrot"}), 503, "no_backend")
        assert "'parrot'" in error["message"]
        assert (await place(stack.client)).status_code == 201
