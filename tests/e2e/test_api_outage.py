"""The API server stands still for 30 s: calls and new calls go on, and afterwards everything takes up its work.

`USHER_E2E_API_SERVER`: the process id of the API server on this machine; the test stops it (SIGSTOP) and lets it go on.
Tests beside this one would suffer.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import RELAY_PODS, SIGNALING_PODS, TRANSCEIVER_PODS, TRANSCEIVERS, Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(400)]

OUTAGE_S = 30.0


@pytest.fixture
def api_server() -> int:
    process = os.environ.get("USHER_E2E_API_SERVER")
    if not process:
        pytest.skip("the API server is out of reach. To enable this test: set USHER_E2E_API_SERVER to its process id")
    return int(process)


@contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def restarts(fleet: Fleet) -> Counter[str]:
    """How often each container of pods with calls was started again."""
    return Counter(
        {
            pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"]
            for selector in (RELAY_PODS, SIGNALING_PODS, TRANSCEIVER_PODS)
            for pod in fleet.pods(selector)
        }
    )


def test_calls_and_new_calls_go_on_without_the_api_server(fleet: Fleet, api_server: int, figure: Figure) -> None:
    before = restarts(fleet)
    placed = lost = 0
    slowest = 0.0
    with fleet.calls(6, light=True) as calls:
        calls.until_up()
        began = time.monotonic()
        with stopped(api_server):
            while time.monotonic() - began < OUTAGE_S:
                outcome = fleet.call(seconds=1, count=2)
                placed, lost = placed + outcome.count, lost + outcome.lost
                slowest = max(slowest, outcome.summary["offer_answer_ms"]["max"] if outcome.count else 0)
        back = time.monotonic()
        outcome = calls.end()
    figure("calls placed meanwhile", f"{placed}, {lost} lost, slowest answer {slowest:.0f} ms")
    figure("calls during all of it", outcome)
    assert placed >= 6
    assert lost == 0
    assert outcome.is_unbroken
    fleet.namespace.kubectl("scale", TRANSCEIVERS, "--replicas=3")
    fleet.until_ready()
    figure("a third transceiver was ready after", f"{time.monotonic() - back:.1f} s from the API server's return")
    assert not restarts(fleet) - before
