"""API keys, ephemeral keys, and no keys at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.signaling_fakes import (
    API_KEY,
    OFFER,
    OTHER_KEY,
    assert_error,
    make_settings,
    place,
    place_whip,
    signaling,
    until,
    write_files,
)
from usher_core.errors import LocalError
from usher_signaling.app import create_app

SECRETS = "/v1/realtime/client_secrets"
KEYLESS = {"api_keys_file": None}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def make_secret(client: httpx.AsyncClient, body: Any = None) -> dict[str, Any]:
    response = await client.post(SECRETS, json=body if body is not None else {})
    assert response.status_code == 200, response.text
    secret: dict[str, Any] = response.json()
    return secret


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {API_KEY}", API_KEY, f"Bearer {API_KEY}x", "Bearer ek_forged"],
)
async def test_without_a_known_key_401_in_the_shape_of_the_realtime_api(tmp_path: Path, authorization: str) -> None:
    async with signaling(tmp_path) as stack:
        response = await place(stack.client, headers={"Authorization": authorization})
        error = assert_error(response, 401, "invalid_api_key")
        assert error["type"] == "invalid_request_error"
        assert error["param"] is None
        assert API_KEY not in response.text
    assert stack.fleet.transceivers[0].created == []


async def test_the_scheme_has_any_case_and_the_key_belongs_to_its_tenant(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        for header in (f"bearer {API_KEY}", f"BEARER   {OTHER_KEY} "):
            assert (await place(stack.client, headers={"Authorization": header})).status_code == 201
    assert [asked.tenant for asked in stack.fleet.transceivers[0].created] == ["acme", "other"]


async def test_a_key_is_known_from_when_the_file_has_it_until_it_has_not(tmp_path: Path) -> None:
    async with signaling(tmp_path, load_interval=0.02) as stack:
        (tmp_path / "api-keys").write_text("acme:a-new-key-0123456789\n")

        async def is_known() -> bool:
            return (await place(stack.client, headers=bearer("a-new-key-0123456789"))).status_code == 201

        await until(is_known)
        assert_error(await place(stack.client), 401, "invalid_api_key")


async def test_one_key_of_the_environment_is_enough(tmp_path: Path) -> None:
    async with signaling(tmp_path, api_keys_file=None, api_key="only-key", http="0.0.0.0:80") as stack:
        assert (await place(stack.client, headers=bearer("only-key"))).status_code == 201
        assert_error(await place(stack.client, headers=bearer(API_KEY)), 401, "invalid_api_key")
    assert stack.fleet.transceivers[0].created[0].tenant == "default"


async def test_a_key_file_that_was_emptied_is_wrong_and_the_last_good_one_counts(tmp_path: Path) -> None:
    async with signaling(tmp_path, load_interval=0.02) as stack:
        (tmp_path / "api-keys").write_text("# none\n")

        async def is_noticed() -> bool:
            return "usher_signaling_files_wrong 1.0" in (await stack.client.get("/metrics")).text

        await until(is_noticed)
        assert (await place(stack.client)).status_code == 201


async def test_an_ephemeral_key_places_calls_with_its_session_until_it_expires(tmp_path: Path) -> None:
    session = {"type": "realtime", "model": "m1", "audio": {"output": {"voice": "v1"}}}
    asked_for = {"expires_after": {"anchor": "created_at", "seconds": 30}, "session": session}
    async with signaling(tmp_path) as stack:
        secret = await make_secret(stack.client, asked_for)
        assert secret == {"value": secret["value"], "expires_at": int(stack.clock.now) + 30, "session": session}
        assert secret["value"].startswith("ek_")
        key = bearer(secret["value"])
        assert (await place(stack.client, headers=key, params={"model": "cheaper"})).status_code == 201
        own = {"model": "m2", "instructions": "be nice", "audio": {"output": {"voice": "v2", "speed": 2}}}
        body = {"sdp": OFFER, "session": own}
        assert (await stack.client.post("/v1/realtime/calls", json=body, headers=key)).status_code == 201
        stack.clock.now += 29.9
        assert (await place(stack.client, headers=key)).status_code == 201
        stack.clock.now += 0.1
        response = await place(stack.client, headers=key)
        assert_error(response, 401, "client_secret_expired")
    first, second, _ = stack.fleet.transceivers[0].created
    assert (first.tenant, first.session) == ("acme", session)
    # What the key has fixed stays; what it left open the page may choose.
    assert second.session == {
        "type": "realtime",
        "model": "m1",
        "instructions": "be nice",
        "audio": {"output": {"voice": "v1", "speed": 2}},
    }


async def test_an_ephemeral_key_works_for_whip_and_may_end_its_call_after_it_expired(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        key = bearer((await make_secret(stack.client))["value"])
        stack.client.headers.update(key)
        call, whip = await place(stack.client), await place_whip(stack.client)
        stack.clock.now += 10_000
        assert (await stack.client.post(f"{call.headers['location']}/hangup")).status_code == 200
        headers = {"If-Match": "*", "Content-Type": "application/trickle-ice-sdpfrag"}
        fragment = "a=ice-ufrag:ysXw\r\na=ice-pwd:vw5LmwG4y/e6dPP/zAP9Gp5k\r\n"
        restarted = await stack.client.patch(whip.headers["location"], content=fragment, headers=headers)
        assert restarted.status_code == 200
        assert (await stack.client.delete(whip.headers["location"])).status_code == 200


async def test_an_ephemeral_key_of_another_tenant_does_not_reach_a_call(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        url = (await place(stack.client)).headers["location"]
        response = await stack.client.post(SECRETS, headers=bearer(OTHER_KEY))
        other = bearer(response.json()["value"])
        assert_error(await stack.client.post(f"{url}/hangup", headers=other), 404, "call_not_found")


async def test_an_ephemeral_key_may_neither_look_at_calls_nor_make_keys(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        key = bearer((await make_secret(stack.client))["value"])
        url = (await place(stack.client, headers=key)).headers["location"]
        assert_error(await stack.client.get(url, headers=key), 403, "api_key_required")
        assert_error(await stack.client.post(SECRETS, headers=key), 403, "api_key_required")


async def test_any_replica_knows_an_ephemeral_key(tmp_path: Path) -> None:
    async with signaling(tmp_path) as one, signaling(tmp_path, fleet=one.fleet) as two:
        key = bearer((await make_secret(one.client))["value"])
        assert (await place(two.client, headers=key)).status_code == 201


async def test_a_secret_without_a_body_lives_as_long_as_the_settings_say(tmp_path: Path) -> None:
    async with signaling(tmp_path, secret_seconds=77) as stack:
        for content in (b"", b"{}", b'{"expires_after": null, "session": null}', b'{"expires_after": {}}'):
            response = await stack.client.post(SECRETS, content=content, headers={"Content-Type": "application/json"})
            assert response.json()["expires_at"] == int(stack.clock.now) + 77


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"expires_after": {"seconds": 9}}, "invalid_expires_after"),
        ({"expires_after": {"seconds": 7201}}, "invalid_expires_after"),
        ({"expires_after": {"seconds": "60"}}, "invalid_expires_after"),
        ({"expires_after": {"seconds": 60.5}}, "invalid_expires_after"),
        ({"expires_after": {"seconds": True}}, "invalid_expires_after"),
        ({"expires_after": {"anchor": "now", "seconds": 60}}, "invalid_expires_after"),
        ({"expires_after": 60}, "invalid_expires_after"),
        ({"session": []}, "bad_json"),
        ([], "bad_json"),
        ({"session": {"a": [[i, str(i * 7919)] for i in range(9000)]}}, "session_too_large"),
    ],
)
async def test_a_wrong_request_for_a_secret_is_400(tmp_path: Path, body: Any, code: str) -> None:
    async with signaling(tmp_path) as stack:
        response = await stack.client.post(
            SECRETS, content=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        assert_error(response, 400, code)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert_error(await stack.client.post(SECRETS, content=b"a=b", headers=form), 415, "unsupported_media_type")


async def test_a_large_session_of_plain_words_fits_into_a_header(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        secret = await make_secret(stack.client, {"session": {"instructions": "Be kind and brief. " * 1500}})
        assert len(secret["value"]) < 8192
        assert (await place(stack.client, headers=bearer(secret["value"]))).status_code == 201


async def test_no_key_secret_or_token_gets_into_the_log(tmp_path: Path) -> None:
    with capture_logs() as entries:
        async with signaling(tmp_path) as stack:
            secret = (await make_secret(stack.client))["value"]
            call = await place(stack.client, headers=bearer(secret))
            await place(stack.client, headers=bearer("wrong-key-of-somebody"))
            await stack.client.post(f"{call.headers['location']}/hangup")
            stack.fleet.transceivers[0].dead = True
            await place(stack.client)
    written = str(entries)
    assert "call placed" in written
    for value in (API_KEY, secret, "wrong-key", "internal-token", call.headers["location"].rpartition("/")[2]):
        assert value not in written


async def test_keyless_serves_the_page_and_its_call(tmp_path: Path) -> None:
    async with signaling(tmp_path, **KEYLESS) as stack:
        page = {"Origin": "http://127.0.0.1:8080"}
        assert (await stack.client.get("/")).status_code == 200
        call = await place(stack.client, headers=page)
        assert call.status_code == 201
        assert call.headers["access-control-allow-origin"] == "http://127.0.0.1:8080"
        assert (await stack.client.get(call.headers["location"], headers=page)).json()["state"] == "new"
        assert (await stack.client.post(f"{call.headers['location']}/hangup", headers=page)).status_code == 200
    assert stack.fleet.transceivers[0].created[0].tenant == "local"


async def test_keyless_uses_the_session_of_an_ephemeral_key_and_ignores_other_keys(tmp_path: Path) -> None:
    async with signaling(tmp_path, **KEYLESS) as stack:
        secret = await make_secret(stack.client, {"session": {"model": "m1"}})
        assert (await place(stack.client, headers=bearer(secret["value"]))).status_code == 201
        assert (await place(stack.client, headers=bearer("ek_dummy"))).status_code == 201
    assert [asked.session for asked in stack.fleet.transceivers[0].created] == [{"model": "m1"}, {}]


@pytest.mark.parametrize("path", ["/", "/assets/app.css", "/readyz", "/metrics", "/v1/realtime/calls", "/nothing"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8080"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
async def test_keyless_refuses_other_hosts_and_origins(tmp_path: Path, path: str, headers: dict[str, str]) -> None:
    async with signaling(tmp_path, **KEYLESS) as stack:
        for method in ("GET", "POST", "OPTIONS"):
            preflight = {"Access-Control-Request-Method": "POST"} if method == "OPTIONS" else {}
            response = await stack.client.request(method, path, headers={**headers, **preflight})
            assert_error(response, 403, "loopback_only")
            assert "access-control-allow-origin" not in response.headers
    assert stack.fleet.transceivers[0].created == []


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("keys.json", '{"version": 1}', "no active seal key"),
        ("keys.json", "{", "no JSON"),
        ("token", " \n", "internal token"),
        ("api-keys", "#\n", "no key in it"),
    ],
)
def test_a_wrong_file_keeps_the_program_from_starting(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    write_files(tmp_path, [])
    (tmp_path / name).write_text(content)
    with pytest.raises(LocalError, match=complaint):
        create_app(make_settings(tmp_path))
