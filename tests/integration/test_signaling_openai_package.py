"""The unmodified `openai` Python package as a client: its types and its errors fit what we answer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai.types.realtime import RealtimeSessionCreateRequestParam

from tests.signaling_fakes import ANSWER, API_KEY, OFFER, FakeTransceiver, Fleet, make_settings, write_files
from usher_shell.http_server import HttpServer
from usher_signaling.app import create_app


@contextlib.asynccontextmanager
async def package(folder: Path, fake: FakeTransceiver) -> AsyncIterator[openai.AsyncOpenAI]:
    """The package against a server on a real port: it brings an HTTP client of its own."""
    write_files(folder, [fake])
    settings = make_settings(folder, http="127.0.0.1:0")
    server = HttpServer(
        create_app(settings, transport=Fleet([fake])), settings.http, "--http", lifespan="on", ws="none"
    )
    serving = await server.start()
    try:
        async with openai.AsyncOpenAI(api_key=API_KEY, base_url=f"{server.url}/v1", max_retries=0) as client:
            yield client
    finally:
        await server.stop(at_once=True)
        await serving


def call_id_of(location: str) -> str:
    return location.rpartition("/")[2]


async def test_a_call_is_placed_and_hung_up(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with package(tmp_path, fake) as client:
        session: RealtimeSessionCreateRequestParam = {
            "type": "realtime",
            "model": "gpt-realtime",
            "instructions": "Be brief.",
            "tools": [],
        }
        answer = await client.realtime.calls.with_raw_response.create(sdp=OFFER, session=session)
        assert answer.status_code == 201
        assert answer.text == ANSWER
        call_id = call_id_of(answer.headers["location"])
        assert fake.created[0].session == session
        assert fake.created[0].offer == OFFER
        await client.realtime.calls.hangup(call_id)
        assert fake.sessions == {}
        with pytest.raises(openai.NotFoundError) as gone:
            await client.realtime.calls.hangup(call_id)
        assert (gone.value.code, gone.value.type) == ("call_not_found", "invalid_request_error")


async def test_without_a_session_the_answer_is_the_sdp(tmp_path: Path) -> None:
    async with package(tmp_path, FakeTransceiver(pod=1)) as client:
        answer = await client.realtime.calls.create(sdp=OFFER)
        assert answer.text == ANSWER


async def test_a_client_secret_has_the_packages_type_and_places_a_call(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with package(tmp_path, fake) as client:
        secret = await client.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60},
            session={"type": "realtime", "model": "gpt-realtime", "audio": {"output": {"voice": "marin"}}},
        )
        assert secret.value.startswith("ek_")
        assert isinstance(secret.expires_at, int)
        assert secret.session.type == "realtime"
        assert secret.session.to_dict()["audio"] == {"output": {"voice": "marin"}}
        page = client.with_options(api_key=secret.value)
        await page.realtime.calls.create(sdp=OFFER)
        assert fake.created[0].session["model"] == "gpt-realtime"
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await page.realtime.client_secrets.create()
        assert refused.value.code == "api_key_required"


async def test_errors_arrive_as_the_packages_exceptions(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    async with package(tmp_path, fake) as client:
        with pytest.raises(openai.AuthenticationError) as unknown:
            await client.with_options(api_key="sk-unknown-0123456789").realtime.calls.create(sdp=OFFER)
        assert unknown.value.code == "invalid_api_key"
        fake.bad_offer = "SDP line 4: expected m="
        with pytest.raises(openai.BadRequestError) as bad:
            await client.realtime.calls.create(sdp=OFFER)
        assert (bad.value.code, bad.value.param) == ("bad_sdp", None)
        assert "SDP line 4" in str(bad.value)
        fake.bad_offer, fake.max_sessions = "", 0
        with pytest.raises(openai.InternalServerError) as full:
            await client.realtime.calls.create(sdp=OFFER)
        assert (full.value.code, full.value.type) == ("no_transceiver", "server_error")


async def test_models_are_listed(tmp_path: Path) -> None:
    async with package(tmp_path, FakeTransceiver(pod=1)) as client:
        assert [model.object async for model in client.models.list()] in ([], ["model"], ["model", "model"])
