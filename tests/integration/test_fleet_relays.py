"""Relays come and go beside others on one port while calls run, with both engines (docs/wire.md section 6)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet import Fleet, calling, running_fleet, wait_until
from tests.relay_network import RelayProcess

pytestmark = [pytest.mark.timed, pytest.mark.timeout(120)]

CALLS = 20
GAP_LIMIT_MS = 100
"""The kernel gives some flows to another relay, which has to ask whose they are; a packet or two are late for it."""
PLANNED_GAP_LIMIT_MS = 60


ENGINES = ["python", pytest.param("native", marks=pytest.mark.needs("native engine"))]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The flag that chooses the relays' engine."""
    return f"--engine={request.param}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), "--transceivers=2", engine) as fleet:
        yield fleet


@contextmanager
def relay_beside(fleet: Fleet, folder: Path, *flags: str) -> Iterator[RelayProcess]:
    """One more relay at the fleet's public port, not yet waited for."""
    keys = Path(fleet.state()["keys"])
    (folder / "keys.json").symlink_to(keys / "relay.json")
    (folder / "routes.json").symlink_to(keys / "routes.json")
    host, port = fleet.udp
    relay = RelayProcess(folder, *flags, listen=f"1={host}:{port}")
    try:
        yield relay
    finally:
        relay.close()


def flows(relay: RelayProcess) -> float:
    return relay.metrics().get('usher_relay_flows{state="confirmed"}', 0)


def check(result: dict[str, Any], seconds: float, limit_ms: float) -> None:
    """Every call lasted, and no gap was longer than the limit and what this machine's load did to the caller itself."""
    gaps = sorted(call["longest_gap_ms"] for call in result["calls"])
    late = max(call["late_ms"] for call in result["calls"])
    print(f"\nlongest gap of each of {len(gaps)} calls, ms: {gaps}; callers were late by {late} ms")
    for call in result["calls"]:
        assert call["seconds"] >= seconds - 0.1, call
        assert call["longest_gap_ms"] <= limit_ms + call["late_ms"], call


def test_a_relay_that_is_added_costs_a_speaking_caller_no_audible_gap(
    fleet: Fleet, engine: str, tmp_path: Path
) -> None:
    seconds = 6
    with calling(fleet.url, f"--count={CALLS}", f"--seconds={seconds}") as caller:
        caller.wait_until_connected(CALLS)
        with relay_beside(fleet, tmp_path, engine) as added:
            added.wait_until_ready()
            wait_until(lambda: flows(added) > 0, 5, "flows have come to the new relay")
            result = caller.result()
    check(result, seconds, GAP_LIMIT_MS)


def test_a_relay_that_is_told_to_end_costs_a_speaking_caller_no_audible_gap(
    fleet: Fleet, engine: str, tmp_path: Path
) -> None:
    seconds = 8
    with relay_beside(fleet, tmp_path, engine, "--grace=4") as leaving:
        leaving.wait_until_ready()
        with calling(fleet.url, f"--count={CALLS}", f"--seconds={seconds}") as caller:
            caller.wait_until_connected(CALLS)
            wait_until(lambda: flows(leaving) > 0, 5, "calls go by the relay that will end")
            time.sleep(1)  # so that every call has sound; a gap is measured from there
            leaving.signal(signal.SIGTERM)
            assert leaving.wait(10) == 0
            result = caller.result()
    check(result, seconds, PLANNED_GAP_LIMIT_MS)
