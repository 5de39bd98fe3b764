"""Policies of events: of API keys, ephemeral keys and JWTs, as they reach the transceiver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from tests.signaling_fakes import API_KEY, OFFER, FakeTransceiver, assert_error, make_settings, place, signaling
from usher_core.event_policy import BROWSER, OPEN, EventPolicy

SECRETS = "/v1/realtime/client_secrets"
PAGE_KEY = "key-of-page-0123456789"
SESSION = {"type": "realtime", "model": "m", "instructions": "Swear.", "audio": {"output": {"voice": "v"}}}


def write_key(folder: Path, options: str) -> None:
    """The page's key, of the same tenant as API_KEY, with a policy of its own."""
    path = folder / "api-keys"
    path.write_text(f"{path.read_text()}\nacme:{PAGE_KEY} {options}\n")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def make_secret(client: httpx.AsyncClient, policy: Any, key: str = API_KEY, **more: Any) -> dict[str, Any]:
    made = await client.post(SECRETS, json={"event_policy": policy, **more}, headers=bearer(key))
    assert made.status_code == 200, made.text
    secret: dict[str, Any] = made.json()
    return secret


async def place_with(client: httpx.AsyncClient, key: str, session: dict[str, Any] | None = None) -> None:
    form = {"sdp": (None, OFFER), "session": (None, json.dumps(session or {}))}
    placed = await client.post("/v1/realtime/calls", files=form, headers=bearer(key))
    assert placed.status_code == 201, placed.text


async def test_an_ephemeral_key_carries_its_policy_to_the_transceiver_of_each_call(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake) as stack:
        lists = {"allow": ["response.*", "acme.form"], "deny": ["response.create"], "private": ["tools"]}
        own = await make_secret(stack.client, lists)
        browser = await make_secret(stack.client, "browser")
        free = await make_secret(stack.client, None)
        for secret in (own, browser, free):
            await place_with(stack.client, secret["value"])
        await place(stack.client)
    assert own["event_policy"] == lists
    assert browser["event_policy"] == BROWSER.as_json()
    assert "event_policy" not in free
    expected = [EventPolicy.model_validate(lists), BROWSER, OPEN, OPEN]
    assert [request.event_policy for request in fake.created] == expected


async def test_an_ephemeral_key_narrows_the_policy_of_its_api_key_and_never_widens_it(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake) as stack:
        write_key(tmp_path, "allow=response.*,session.update private=tools")
        await _see_keys(stack)
        wider = await make_secret(stack.client, {"allow": ["session.*", "conversation.item.create"]}, PAGE_KEY)
        none = await make_secret(stack.client, None, PAGE_KEY)
        for key in (wider["value"], none["value"], PAGE_KEY):
            await place_with(stack.client, key)
    assert wider["event_policy"] == {"allow": ["session.update"], "private": ["tools"]}
    of_key = EventPolicy(allow=("response.*", "session.update"), private=("tools",))
    assert [request.event_policy for request in fake.created] == [
        EventPolicy(allow=("session.update",), private=("tools",)),
        of_key,
        of_key,
    ]


async def test_the_policy_of_the_settings_binds_ephemeral_keys_and_leaves_api_keys_alone(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake, client_policy="browser deny=response.create") as stack:
        secret = await make_secret(stack.client, {"private": ["model"]})
        await place_with(stack.client, secret["value"])
        await place_with(stack.client, API_KEY)
    bound, free = (request.event_policy for request in fake.created)
    assert not bound.allows("session.update")
    assert not bound.allows("response.create")
    assert bound.allows("response.cancel")
    assert set(bound.private) == {*BROWSER.private, "model"}
    assert free == OPEN


async def test_an_older_key_is_bound_once_the_settings_ask_for_it(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake) as stack:
        secret = await make_secret(stack.client, None)
    async with signaling(tmp_path, fake, client_policy="browser") as stack:
        await place_with(stack.client, secret["value"])
    assert fake.created[0].event_policy == BROWSER


async def test_what_a_page_may_not_update_it_may_not_begin_with_either(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake) as stack:
        write_key(tmp_path, "policy=browser")
        await _see_keys(stack)
        fixed = {"instructions": "Be kind."}
        strict = await make_secret(stack.client, "browser", session=fixed)
        voice_only = await make_secret(stack.client, {"private": ["instructions", "model"]}, session=fixed)
        free = await make_secret(stack.client, None)
        for key in (strict["value"], voice_only["value"], free["value"], PAGE_KEY):
            await place_with(stack.client, key, SESSION)
    audio = SESSION["audio"]
    assert [request.session for request in fake.created] == [
        {"type": "realtime", "model": "m", "instructions": "Be kind."},
        {"type": "realtime", "audio": audio, "instructions": "Be kind."},
        SESSION,
        # Whoever has an API key is a server, which hands over the session that it wants.
        SESSION,
    ]


@pytest.mark.parametrize(
    "policy", ["firefox", 7, {"deny": ["sesion.update"]}, {"private": ["secrets"]}, {"allow": ["a"] * 33}, {"x": []}]
)
async def test_a_wrong_policy_makes_no_key(tmp_path: Path, policy: Any) -> None:
    async with signaling(tmp_path) as stack:
        answer = await stack.client.post(SECRETS, json={"event_policy": policy})
    error = assert_error(answer, 400, "invalid_event_policy")
    assert error["param"] == "event_policy"


def test_a_wrong_policy_in_the_settings_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="would deny nothing"):
        make_settings(tmp_path, client_policy="deny=sesion.update")


async def _see_keys(stack: Any) -> None:
    for file in stack.app.state.services.files:
        file.look()
