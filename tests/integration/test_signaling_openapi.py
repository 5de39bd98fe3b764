"""The OpenAPI description: complete, and schemathesis finds no request by which the server breaks it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import NonFatalError, ScenarioFinished

from tests.pages import ROOT, rows
from tests.signaling_fakes import API_KEY, FakeTransceiver, signaling
from usher_signaling.bodies import FRAGMENT, SDP
from usher_signaling.openapi import ERRORS, PATH, public_routes

CONFIG = {
    "headers": {"Authorization": f"Bearer {API_KEY}"},
    "generation": {"max-examples": 5, "deterministic": True, "database": "none"},
    "phases": {"stateful": {"enabled": False}},  # it takes a minute and knows no hang-up
    "checks": {
        # Text that is well-formed by the schema can still be no fragment, a tag an old one, and a limit one of bytes.
        "positive_data_acceptance": {"expected-statuses": ["2xx", "400", "404", "412", "413", "422", "429"]},
        "negative_data_rejection": {"expected-statuses": ["4xx"]},
        "missing_required_header": {"expected-statuses": ["401", "428"]},
    },
}


@schemathesis.serializer(SDP, FRAGMENT)
def plain_text(_context: Any, value: Any) -> bytes:
    """What is no text is sent as bytes that are none."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b"\xff"


def run_schemathesis(app: FastAPI) -> tuple[list[str], int]:
    """What it finds, and how many requests it sent."""
    schema = schemathesis.openapi.from_asgi(PATH, app, config=SchemathesisConfig.from_dict(CONFIG))
    faults, sent = [], 0
    for event in from_schema(schema).execute():
        if isinstance(event, NonFatalError):
            faults.append(f"{event.label}: {event.value}")
        if isinstance(event, ScenarioFinished):
            sent += len(event.recorder.cases)
            failures = [check.failure_info for checks in event.recorder.checks.values() for check in checks]
            faults += [f"{event.label}: {found.failure}\n{found.code_sample[:2000]}" for found in failures if found]
    return faults, sent


@pytest.mark.timeout(120)
async def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1, max_sessions=1_000_000)
    async with signaling(tmp_path, fake) as stack:
        faults, sent = await asyncio.to_thread(run_schemathesis, stack.app)
    assert faults == []
    assert sent > 100


async def test_every_route_is_described_and_needs_no_key_to_be_read(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        response = await stack.client.get(PATH, headers={"Authorization": ""})
        assert response.headers["content-type"] == "application/json"
        document = response.json()
        routes = set(public_routes(stack.app))
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert {entry for entry in described if entry[0] != "PARAMETERS"} == routes
    assert {"api_key", "ephemeral_key", "jwt"} == set(document["components"]["securitySchemes"])
    assert {} not in document["security"]


async def test_without_keys_the_description_says_so(tmp_path: Path) -> None:
    async with signaling(tmp_path, api_keys_file=None) as stack:
        assert {} in (await stack.client.get(PATH)).json()["security"]


def test_every_error_status_that_the_page_lists_is_described() -> None:
    listed = {int(row.cells[0]) for row in rows(ROOT / "docs" / "http-api.md") if row.cells[0].isdigit()}
    assert listed <= {*ERRORS, 405}
