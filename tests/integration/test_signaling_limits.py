"""Limits of tenants on requests and calls, keys that place one call, JWTs: over HTTP, without Redis."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

from tests.signaling_fakes import (
    API_KEY,
    OFFER,
    OTHER_KEY,
    FakeTransceiver,
    Stack,
    assert_error,
    place,
    place_whip,
    signaling,
    until,
    write_files,
)
from usher_core.errors import LocalError
from usher_signaling.api_keys import hashed_line, new_api_key

SECRETS = "/v1/realtime/client_secrets"
FRAGMENT = {"If-Match": "*", "Content-Type": "application/trickle-ice-sdpfrag"}
JWT: dict[str, Any] = {"jwt_issuer": "https://id.example.org/", "jwt_audience": "usher"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def secret(stack: Stack, **body: Any) -> dict[str, Any]:
    response = await stack.client.post(SECRETS, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


# Requests


async def test_requests_beyond_the_rate_are_429_until_retry_after(tmp_path: Path) -> None:
    now = 100.0
    async with signaling(tmp_path, rate_limit=0.5, rate_burst=2) as stack:
        stack.app.state.services.limits._now = lambda: now
        assert [(await place(stack.client)).status_code for _ in range(3)] == [201, 201, 429]
        refused = await place(stack.client)
        error = assert_error(refused, 429, "rate_limit_exceeded")
        assert refused.headers["retry-after"] == "2"
        assert API_KEY not in error["message"]
        now += 2
        assert (await place(stack.client)).status_code == 201
        assert (await place(stack.client, headers=bearer(OTHER_KEY))).status_code == 201
        metrics = (await stack.client.get("/metrics")).text
        assert 'usher_signaling_limited_total{limit="rate"} 2.0' in metrics
        assert "usher_signaling_rate_tenants 2.0" in metrics


async def test_every_request_but_those_that_a_running_call_needs_counts(tmp_path: Path) -> None:
    async with signaling(tmp_path, rate_limit=0.001, rate_burst=2) as stack:
        call, whip = await place(stack.client), await place_whip(stack.client)
        url = call.headers["location"]
        sdp = {"Content-Type": "application/sdp"}
        for response in (
            await place(stack.client),
            await stack.client.post("/whip", content=OFFER, headers=sdp),
            await stack.client.get(url),
            await stack.client.post(SECRETS),
        ):
            assert_error(response, 429, "rate_limit_exceeded")
            assert int(response.headers["retry-after"]) > 900
        fragment = "a=ice-ufrag:ysXw\r\na=ice-pwd:vw5LmwG4y/e6dPP/zAP9Gp5k\r\n"
        for _ in range(5):
            assert (await stack.client.patch(whip.headers["location"], content=fragment, headers=FRAGMENT)).is_success
        assert (await stack.client.delete(whip.headers["location"])).status_code == 200
        assert (await stack.client.post(f"{url}/hangup")).status_code == 200


async def test_a_wrong_key_takes_nothing_from_anybody(tmp_path: Path) -> None:
    async with signaling(tmp_path, rate_limit=0.001, rate_burst=1) as stack:
        for _ in range(10):
            assert_error(await place(stack.client, headers=bearer("wrong")), 401, "invalid_api_key")
        assert (await place(stack.client)).status_code == 201


async def test_limits_beside_a_key_go_before_and_change_without_a_restart(tmp_path: Path) -> None:
    key = new_api_key()
    async with signaling(tmp_path, load_interval=0.02, load_life=600, call_limit=1) as stack:
        line = hashed_line("acme", key)
        (tmp_path / "api-keys").write_text(f"{line} calls=3\nother:{OTHER_KEY}\n")

        async def is_known() -> bool:
            response = await stack.client.post(SECRETS, headers=bearer(key))
            return response.status_code == 200

        await until(is_known)
        answers = [(await place(stack.client, headers=bearer(key))).status_code for _ in range(4)]
        assert answers == [201, 201, 201, 429]
        answers = [(await place(stack.client, headers=bearer(OTHER_KEY))).status_code for _ in range(2)]
        assert answers == [201, 429]
        (tmp_path / "api-keys").write_text(f"{line} calls=none\n")

        async def is_free() -> bool:
            return (await place(stack.client, headers=bearer(key))).status_code == 201

        await until(is_free)


# Calls


async def test_a_burst_gets_as_many_calls_as_the_tenant_may_have(tmp_path: Path) -> None:
    fakes = [FakeTransceiver(pod=pod, answer_delay=0.01) for pod in (1, 2, 3)]
    async with signaling(tmp_path, *fakes, call_limit=7) as stack:
        responses = await asyncio.gather(*(place(stack.client) for _ in range(40)))
        assert sorted(response.status_code for response in responses) == [201] * 7 + [429] * 33
        assert stack.fleet.session_count == 7
        refused = await place(stack.client)
        assert_error(refused, 429, "call_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await place(stack.client, headers=bearer(OTHER_KEY))).status_code == 201


async def test_a_hang_up_makes_room_at_once(tmp_path: Path) -> None:
    async with signaling(tmp_path, call_limit=1) as stack:
        for _ in range(5):
            call = await place(stack.client)
            assert call.status_code == 201
            assert_error(await place(stack.client), 429, "call_limit_exceeded")
            assert (await stack.client.post(f"{call.headers['location']}/hangup")).status_code == 200
        whip = await place_whip(stack.client)
        assert (await stack.client.delete(whip.headers["location"])).status_code == 200
        assert (await place(stack.client)).status_code == 201


async def test_a_call_that_ended_by_itself_makes_room_with_the_next_report(tmp_path: Path) -> None:
    async with signaling(tmp_path, call_limit=2, load_interval=0.02) as stack:
        fake = stack.fleet.transceivers[0]
        assert [(await place(stack.client)).status_code for _ in range(3)] == [201, 201, 429]
        fake.sessions.clear()

        async def has_room() -> bool:
            return (await place(stack.client)).status_code == 201

        await until(has_room)


async def test_calls_of_other_replicas_and_of_draining_transceivers_count(tmp_path: Path) -> None:
    fakes = [FakeTransceiver(pod=1), FakeTransceiver(pod=2)]
    async with (
        signaling(tmp_path, *fakes, call_limit=2) as one,
        signaling(tmp_path, fleet=one.fleet, call_limit=2) as two,
    ):
        assert [(await place(one.client)).status_code for _ in range(2)] == [201, 201]
        for fake in fakes:
            fake.draining = bool(fake.sessions)
        await two.app.state.services.directory.refresh()
        assert_error(await place(two.client), 429, "call_limit_exceeded")


async def test_a_call_that_could_not_be_placed_takes_no_room(tmp_path: Path) -> None:
    async with signaling(tmp_path, call_limit=1) as stack:
        fake = stack.fleet.transceivers[0]
        fake.bad_offer = "line 3"
        for _ in range(3):
            assert_error(await place(stack.client), 400, "bad_sdp")
        fake.bad_offer = ""
        assert (await place(stack.client)).status_code == 201


# Ephemeral keys


async def test_an_ephemeral_key_carries_metadata_to_the_backend(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        metadata = {"customer": "42", "note": "ü" * 512}
        made = await secret(stack, metadata=metadata, session={"model": "m"})
        assert made["metadata"] == metadata
        own = {"sdp": OFFER, "session": {}, "metadata": {"customer": "43"}}
        assert (
            await stack.client.post("/v1/realtime/calls", json=own, headers=bearer(made["value"]))
        ).status_code == 201
        assert (await place(stack.client)).status_code == 201
        assert "metadata" not in await secret(stack)
    assert [asked.metadata for asked in stack.fleet.transceivers[0].created] == [metadata, {}]


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        "text",
        {"a": 1},
        {"a": None},
        {"a": "x" * 513},
        {"a" * 65: "x"},
        {str(number): "x" for number in range(17)},
    ],
)
async def test_wrong_metadata_is_400(tmp_path: Path, metadata: Any) -> None:
    async with signaling(tmp_path) as stack:
        response = await stack.client.post(SECRETS, json={"metadata": metadata})
        assert assert_error(response, 400, "invalid_metadata")["param"] == "metadata"


async def test_a_key_that_places_one_call_may_still_end_it(tmp_path: Path) -> None:
    async with signaling(tmp_path, secrets_once=True) as stack:
        key = bearer((await secret(stack))["value"])
        calls = await asyncio.gather(*(place(stack.client, headers=key) for _ in range(10)))
        assert sorted(call.status_code for call in calls) == [201] + [401] * 9
        assert_error(await place(stack.client, headers=key), 401, "client_secret_used")
        call = next(call for call in calls if call.status_code == 201)
        assert (await stack.client.post(f"{call.headers['location']}/hangup", headers=key)).status_code == 200
        assert_error(await place(stack.client, headers=key), 401, "client_secret_used")
        # API keys are for any number of calls.
        assert [(await place(stack.client)).status_code for _ in range(3)] == [201] * 3
        metrics = (await stack.client.get("/metrics")).text
        assert "usher_signaling_used_secrets 1.0" in metrics
        assert 'usher_signaling_auth_failures_total{code="client_secret_used"} 11.0' in metrics
        stack.clock.now += 700
        assert_error(await place(stack.client, headers=key), 401, "client_secret_expired")


async def test_a_key_whose_offer_was_bad_may_try_again(tmp_path: Path) -> None:
    async with signaling(tmp_path, secrets_once=True) as stack:
        key = bearer((await secret(stack))["value"])
        stack.fleet.transceivers[0].bad_offer = "line 3"
        assert_error(await place(stack.client, headers=key), 400, "bad_sdp")
        stack.fleet.transceivers[0].bad_offer = ""
        assert (await place(stack.client, headers=key)).status_code == 201


async def test_by_default_an_ephemeral_key_places_any_number_of_calls(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        key = bearer((await secret(stack))["value"])
        assert [(await place(stack.client, headers=key)).status_code for _ in range(3)] == [201] * 3


# JWT


class Issuer:
    """An identity provider whose key is in the JWKS file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "jwks.json"
        self.rotate("one")

    def rotate(self, key_id: str) -> None:
        self.key, self.key_id = ec.generate_private_key(ec.SECP256R1()), key_id
        public = jwt.get_algorithm_by_name("ES256").to_jwk(self.key.public_key(), as_dict=True)
        self.file.write_text(json.dumps({"keys": [{**public, "kid": key_id}]}))

    def token(self, now: float, **claims: Any) -> dict[str, str]:
        said = {"iss": JWT["jwt_issuer"], "aud": JWT["jwt_audience"], "exp": now + 60, "sub": "acme", **claims}
        return bearer(jwt.encode(said, self.key, "ES256", {"kid": self.key_id}))


async def test_a_jwt_places_and_ends_calls_of_its_tenant_also_after_it_expired(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    async with signaling(tmp_path, jwks_file=issuer.file, **JWT) as stack:
        key = issuer.token(stack.clock.now)
        stack.client.headers.update(key)
        whip, call = await place_whip(stack.client), await place(stack.client)
        assert call.status_code == 201
        url = call.headers["location"]
        assert (await stack.client.get(url, headers=bearer(API_KEY))).json()["state"] == "new"
        stranger = issuer.token(stack.clock.now, sub="stranger")
        assert_error(await stack.client.post(f"{url}/hangup", headers=stranger), 404, "call_not_found")
        stack.clock.now += 10_000
        assert_error(await place(stack.client), 401, "token_expired")
        assert (await stack.client.post(f"{url}/hangup")).status_code == 200
        assert (await stack.client.delete(whip.headers["location"])).status_code == 200
    assert [asked.tenant for asked in stack.fleet.transceivers[0].created] == ["acme", "acme"]


async def test_a_jwt_may_neither_look_at_calls_nor_make_keys(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    async with signaling(tmp_path, jwks_file=issuer.file, **JWT) as stack:
        key = issuer.token(stack.clock.now)
        url = (await place(stack.client, headers=key)).headers["location"]
        assert_error(await stack.client.get(url, headers=key), 403, "api_key_required")
        assert_error(await stack.client.post(SECRETS, headers=key), 403, "api_key_required")


async def test_new_keys_of_the_issuer_are_read_without_a_restart(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    async with signaling(tmp_path, jwks_file=issuer.file, load_interval=0.02, **JWT) as stack:
        old = issuer.token(stack.clock.now)
        assert (await place(stack.client, headers=old)).status_code == 201
        issuer.rotate("two")

        async def is_known() -> bool:
            return (await place(stack.client, headers=issuer.token(stack.clock.now))).status_code == 201

        await until(is_known)
        assert_error(await place(stack.client, headers=old), 401, "invalid_token")


async def test_jwts_alone_are_enough_and_then_nothing_else_opens(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    changes: dict[str, Any] = {"api_keys_file": None, "http": "0.0.0.0:80", "jwks_file": issuer.file, **JWT}
    async with signaling(tmp_path, **changes) as stack:
        assert (await place(stack.client, headers=issuer.token(stack.clock.now))).status_code == 201
        assert_error(await place(stack.client, headers=bearer(API_KEY)), 401, "invalid_api_key")
        stack.client.headers.pop("Authorization")
        assert_error(await place(stack.client), 401, "invalid_api_key")


async def test_the_limits_of_a_tenant_count_for_its_jwts(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    async with signaling(tmp_path, jwks_file=issuer.file, call_limit=1, **JWT) as stack:
        assert (await place(stack.client, headers=issuer.token(stack.clock.now))).status_code == 201
        assert_error(await place(stack.client), 429, "call_limit_exceeded")


async def test_no_jwt_gets_into_the_log_or_an_answer(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    with capture_logs() as entries:
        async with signaling(tmp_path, jwks_file=issuer.file, **JWT) as stack:
            tokens = [issuer.token(stack.clock.now), issuer.token(stack.clock.now, iss="x"), issuer.token(0.0)]
            answers = [await place(stack.client, headers=key) for key in tokens]
    for key in tokens:
        signature = key["Authorization"].rpartition(".")[2]
        assert signature not in str(entries)
        assert all(signature not in answer.text for answer in answers)


def test_a_wrong_jwks_file_keeps_the_program_from_starting(tmp_path: Path) -> None:
    from tests.signaling_fakes import make_settings
    from usher_signaling.app import create_app

    write_files(tmp_path, [])
    (tmp_path / "jwks.json").write_text('{"keys": [{"kty": "oct", "k": "AAAA"}]}')
    with pytest.raises(LocalError, match="secret or private"):
        create_app(make_settings(tmp_path, jwks_file=tmp_path / "jwks.json", **JWT))
