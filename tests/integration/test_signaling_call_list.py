"""The list of a tenant's calls, against pretended transceivers."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.signaling_fakes import (
    API_KEY,
    OTHER_KEY,
    FakeTransceiver,
    Fleet,
    assert_error,
    place,
    signaling,
)

CALLS = "/v1/realtime/calls"


async def page(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    response = await client.get(CALLS, params=query)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    found: dict[str, Any] = response.json()
    return found


async def test_a_list_without_calls_is_empty_and_whole(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        assert await page(stack.client) == {
            "object": "list",
            "data": [],
            "has_more": False,
            "last_id": None,
            "partial": False,
            "transceivers_unanswered": 0,
        }


async def test_pages_of_any_replica_show_each_call_of_the_tenant_once_and_as_it_describes_itself(
    tmp_path: Path,
) -> None:
    fleet = Fleet(FakeTransceiver(pod=number) for number in range(3))
    async with signaling(tmp_path, fleet=fleet) as one, signaling(tmp_path, fleet=fleet) as two:
        placed = [await place(one.client) for _ in range(11)]
        await place(one.client, headers={"Authorization": f"Bearer {OTHER_KEY}"})
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": 4}
        for stack in (one, two, one):
            answer = await page(stack.client, **query)
            found += answer["data"]
            assert answer["last_id"] == answer["data"][-1]["id"]
            query["after"] = answer["last_id"]
        assert answer["has_more"] is False
        assert [call["id"] for call in found[:4]] == [call["id"] for call in (await page(two.client, limit=4))["data"]]
        # A call has one id, whoever writes it.
        wanted = {call.headers["location"].rpartition("/")[2] for call in placed}
        assert len(found) == 11
        assert {call["id"] for call in found} == wanted
        for call in found:
            assert (await two.client.get(f"{CALLS}/{call['id']}")).json() == call


async def test_a_page_goes_on_after_a_call_that_has_ended(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        for _ in range(3):
            await place(stack.client)
        first = await page(stack.client, limit=1)
        assert first["has_more"]
        assert (await stack.client.post(f"{CALLS}/{first['last_id']}/hangup")).status_code == 200
        rest = await page(stack.client, after=first["last_id"])
        assert len(rest["data"]) == 2
        assert not rest["has_more"]


async def test_a_dead_transceiver_makes_the_page_partial_and_it_says_so(tmp_path: Path) -> None:
    good, dead, mad = (FakeTransceiver(pod=number) for number in range(3))
    async with signaling(tmp_path, good, dead, mad) as stack:
        for _ in range(9):
            await place(stack.client)
        dead.dead = True
        mad.refuses_token = True
        answer = await page(stack.client)
        assert {call["path"]["transceiver"] for call in answer["data"]} <= {"1/0/0"}
        assert len(answer["data"]) == len(good.sessions)
        assert (answer["partial"], answer["transceivers_unanswered"]) == (True, 2)


async def test_transceivers_that_hang_cost_the_page_its_deadline_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("usher_signaling.call_list.QUESTION_S", 0.2)
    monkeypatch.setattr("usher_signaling.call_list.LIST_S", 0.5)
    fakes = [FakeTransceiver(pod=number) for number in range(200)]
    async with signaling(tmp_path, *fakes) as stack:
        await place(stack.client)
        for fake in fakes:
            if not fake.sessions:
                fake.answer_delay = 30
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await page(stack.client)
        assert loop.time() - began < 5
        assert answer["partial"]
        # More lists than are made at once wait for their turn, or are told to come again.
        answers = await asyncio.gather(*(stack.client.get(CALLS) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200, 503}
        assert all(answer.headers.get("retry-after") for answer in answers if answer.status_code == 503)


async def test_draining_transceivers_list_their_calls(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake) as stack:
        await place(stack.client)
        fake.draining = True
        await stack.app.state.services.directory.refresh()
        assert len((await page(stack.client))["data"]) == 1


async def test_a_list_needs_an_api_key(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        secret = (await stack.client.post("/v1/realtime/client_secrets")).json()["value"]
        for key, status, code in ((secret, 403, "api_key_required"), ("wrong", 401, "invalid_api_key")):
            answer = await stack.client.get(CALLS, headers={"Authorization": f"Bearer {key}"})
            assert_error(answer, status, code)


@pytest.mark.parametrize(
    "query,code",
    [
        ("limit=0", "invalid_limit"),
        ("limit=101", "invalid_limit"),
        ("limit=x", "invalid_limit"),
        ("limit=-1", "invalid_limit"),
        ("limit=", "invalid_limit"),
        ("limit=%D9%A1", "invalid_limit"),
        ("after=rtc_forged", "invalid_after"),
    ],
)
async def test_a_malformed_page_is_refused(tmp_path: Path, query: str, code: str) -> None:
    async with signaling(tmp_path) as stack:
        assert_error(await stack.client.get(f"{CALLS}?{query}"), 400, code)


async def test_another_tenants_call_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        call = (await place(stack.client)).headers["location"].rpartition("/")[2]
        other = {"Authorization": f"Bearer {OTHER_KEY}"}
        assert_error(await stack.client.get(f"{CALLS}?after={call}", headers=other), 400, "invalid_after")
        assert (
            await stack.client.get(f"{CALLS}?after={call}", headers={"Authorization": f"Bearer {API_KEY}"})
        ).is_success
