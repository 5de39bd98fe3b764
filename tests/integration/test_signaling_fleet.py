"""GET /v1/fleet and GET /v1/models, against pretended transceivers and relays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from tests.signaling_fakes import FakeRelay, FakeTransceiver, Fleet, assert_error, place, signaling
from usher_signaling.metrics import Metrics
from usher_signaling.relay_pages import MAX_PAGE, MAX_UNDER_WAY, RelayPages

METRICS = """\
# HELP usher_relay_flows client addresses
# TYPE usher_relay_flows gauge
usher_relay_flows{state="confirmed"} 12.0
usher_relay_flows{state="probation"} 2.0
# TYPE usher_relay_packets_total counter
usher_relay_packets_total{direction="uplink"} 1000.0
usher_relay_packets_total{direction="downlink"} 900.0
# TYPE usher_relay_drops_total counter
usher_relay_drops_total{reason="protocol"} 5.0
usher_relay_drops_total{reason="hop_mac"} 1.0
"""


async def read(*relays: FakeRelay, within: float = 2.0) -> list[dict[str, Any]]:
    pages = RelayPages([relay.admin for relay in relays], Metrics(), Fleet([], relays), within)
    try:
        return [{name: getattr(state, name) for name in state.__slots__} for state in await pages.read()]
    finally:
        await pages.close()


async def test_the_fleet_lists_relays_and_transceivers(tmp_path: Path) -> None:
    relay = FakeRelay(1)
    relay.metrics = METRICS
    busy, full = FakeTransceiver(pod=1, region="eu"), FakeTransceiver(pod=2, max_sessions=0)
    leaving = FakeTransceiver(pod=3, draining=True)
    fleet = Fleet([busy, full, leaving], [relay])
    async with signaling(tmp_path, fleet=fleet, relay_admin=(relay.admin,)) as stack:
        await place(stack.client)
        response = await stack.client.get("/v1/fleet")
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    told = response.json()
    assert told["object"] == "fleet"
    assert told["relays"] == [
        {
            "address": "relay-1.test:9478",
            "ready": True,
            "reason": "",
            "flows": 12,
            "probation": 2,
            "packets": 1900,
            "drops": 6,
        }
    ]
    ages = [entry.pop("reported_s") for entry in told["transceivers"]]
    assert all(0 <= age < 60 for age in ages)
    common = {"placeable": True, "live": True, "draining": False, "max_sessions": 100}
    assert told["transceivers"] == [
        {"route": "1/1/0", "region": "eu", "sessions": 1, **common},
        {"route": "1/2/0", "region": "", "sessions": 0, **common, "max_sessions": 0},
        {"route": "1/3/0", "region": "", "sessions": 0, **common, "live": False, "draining": True},
    ]


async def test_what_never_reported_or_died_is_told_as_such(tmp_path: Path) -> None:
    silent, died = FakeTransceiver(pod=1, dead=True), FakeTransceiver(pod=2)
    async with signaling(tmp_path, silent, died) as stack:
        died.dead = True
        assert_error(await place(stack.client), 503, "no_transceiver")
        never, dead = (await stack.client.get("/v1/fleet")).json()["transceivers"]
    assert (never["live"], never["sessions"], never["max_sessions"], never["reported_s"]) == (False, None, None, None)
    assert (dead["live"], dead["sessions"], dead["reported_s"]) == (False, 0, None)


async def test_an_ephemeral_key_does_not_see_the_fleet(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        made = await stack.client.post("/v1/realtime/client_secrets", json={})
        ephemeral = {"Authorization": f"Bearer {made.json()['value']}"}
        assert_error(await stack.client.get("/v1/fleet", headers=ephemeral), 403, "api_key_required")
        assert_error(await stack.client.get("/v1/fleet", headers={"Authorization": ""}), 401, "invalid_api_key")
        assert (await stack.client.get("/v1/models", headers=ephemeral)).status_code == 200


async def test_without_keys_this_machine_sees_the_fleet(tmp_path: Path) -> None:
    async with signaling(tmp_path, api_keys_file=None) as stack:
        told = (await stack.client.get("/v1/fleet")).json()
    assert (told["relays"], len(told["transceivers"])) == ([], 1)


async def test_a_relay_that_leaves_says_why_it_is_not_ready() -> None:
    relay = FakeRelay(1)
    relay.ready = (503, "leaving: flows shall move to other relays\n")
    (told,) = await read(relay)
    assert (told["ready"], told["reason"], told["flows"]) == (False, "leaving: flows shall move to other relays", 3)


async def test_dead_and_slow_relays_cost_neither_the_others_nor_much_time() -> None:
    good, dead, slow = FakeRelay(1), FakeRelay(2), FakeRelay(3)
    dead.dead, slow.delay = True, 30.0
    async with asyncio.timeout(5):
        told = await read(good, dead, slow, within=0.2)
    assert [entry["ready"] for entry in told] == [True, False, False]
    assert [entry["reason"] for entry in told] == [
        "",
        "ConnectError: connection refused",
        "did not answer within 0.2 s",
    ]
    assert told[2]["flows"] is None


class CountedRelay(FakeRelay):
    under_way = most = 0

    async def answer(self, request: httpx.Request) -> httpx.Response:
        CountedRelay.under_way += 1
        CountedRelay.most = max(CountedRelay.most, CountedRelay.under_way)
        try:
            return await super().answer(request)
        finally:
            CountedRelay.under_way -= 1


async def test_many_slow_relays_are_asked_a_few_at_a_time_and_take_no_longer_than_one() -> None:
    relays = [CountedRelay(number) for number in range(MAX_UNDER_WAY * 3)]
    for relay in relays:
        relay.delay = 30.0
    async with asyncio.timeout(5):
        told = await read(*relays, within=0.2)
    assert not any(entry["ready"] for entry in told)
    assert CountedRelay.most == MAX_UNDER_WAY


async def test_a_page_that_is_no_relays_is_told_without_numbers() -> None:
    for text in ("<html>{", "usher_relay_flows{state=", 'usher_relay_flows{state="confirmed"} NaN\n', "\xff\x00"):
        relay = FakeRelay(1)
        relay.metrics = text
        (told,) = await read(relay)
        assert (told["ready"], told["flows"], told["packets"]) == (True, None, None), text


async def test_an_endless_page_is_given_up() -> None:
    relay = FakeRelay(1)
    relay.metrics = "#" * (MAX_PAGE + 1)
    (told,) = await read(relay)
    assert not told["ready"]
    assert "more than" in told["reason"]


async def test_no_relay_gets_the_internal_token_or_a_callers_key(tmp_path: Path) -> None:
    relay = FakeRelay(1)
    async with signaling(
        tmp_path, fleet=Fleet([FakeTransceiver(pod=1)], [relay]), relay_admin=(relay.admin + "/",)
    ) as stack:
        await stack.client.get("/v1/fleet")
    assert [request.url.path for request in relay.asked] == ["/readyz", "/metrics"]
    assert all("authorization" not in request.headers for request in relay.asked)


async def test_models_are_the_backends_that_a_caller_may_choose(tmp_path: Path) -> None:
    async with signaling(tmp_path, backends=("echo", "parrot"), backend="echo") as stack:
        told = (await stack.client.get("/v1/models")).json()
    assert told["object"] == "list"
    assert [(model["id"], model["object"]) for model in told["data"]] == [("echo", "model"), ("parrot", "model")]


async def test_without_a_choice_there_is_no_model_to_name(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        assert (await stack.client.get("/v1/models")).json() == {"object": "list", "data": []}
        assert_error(await stack.client.get("/v1/models", headers={"Authorization": ""}), 401, "invalid_api_key")


async def test_readers_of_the_official_package_find_its_fields(tmp_path: Path) -> None:
    async with signaling(tmp_path, backends=("echo",)) as stack:
        response: httpx.Response = await stack.client.get("/v1/models")
    assert response.json()["data"] == [{"id": "echo", "object": "model", "created": 0, "owned_by": "usher"}]
