"""HPAs of the chart on a TransceiverPool and on signaling: up under load, down after it, and no call lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import CHART, RELEASE, SIGNALING_PODS, TRANSCEIVER_PODS, Fleet, is_ready, values
from tests.e2e.kube import Json, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(500)]

MIN, MAX = 2, 3
LIMIT_S = 150


def hpa(target: int) -> Json:
    """Values of an HPA that answers within a test. `target`: percent of the CPU request."""
    one = [{"type": "Pods", "value": 1, "periodSeconds": 15}]
    return {
        "enabled": True,
        "minReplicas": MIN,
        "maxReplicas": MAX,
        "targetCPUUtilizationPercentage": target,
        "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 0, "policies": one},
            "scaleDown": {"stabilizationWindowSeconds": 10, "policies": one},
        },
    }


@pytest.fixture
def autoscaled(fleet: Fleet) -> Iterator[Fleet]:
    """HPAs for both, whose first reading of the idle pods has come."""
    given = values(fleet.namespace.name, fleet.images)
    given["signaling"]["autoscaling"] = hpa(35)
    given["transceiver"]["autoscaling"] = hpa(20)  # 30m: a few calls
    before = {pod["metadata"]["uid"] for pod in fleet.pods(SIGNALING_PODS)}
    fleet.helm("upgrade", RELEASE, CHART, given=given)
    try:
        wait_for("both HPAs know the load", lambda: len(known_loads(fleet)) == 2, LIMIT_S)
        wait_for("both at their least", lambda: set(known_loads(fleet).values()) == {MIN}, LIMIT_S)
        assert {pod["metadata"]["uid"] for pod in fleet.pods(SIGNALING_PODS)} == before, "an HPA costs no pod"
        yield fleet
    finally:
        fleet.helm("upgrade", RELEASE, CHART, given=values(fleet.namespace.name, fleet.images))


def known_loads(fleet: Fleet) -> dict[str, int]:
    """Wanted replicas by name of the HPAs that have read the CPU of their pods."""
    return {
        hpa["metadata"]["name"]: hpa["status"]["desiredReplicas"]
        for hpa in fleet.namespace.list("hpa")
        if any("current" in each.get("resource", {}) for each in hpa["status"].get("currentMetrics") or ())
    }


def ready(fleet: Fleet, selector: str) -> int:
    return sum(map(is_ready, fleet.pods(selector)))


def test_transceivers_follow_the_load_of_their_calls(autoscaled: Fleet, figure: Figure) -> None:
    fleet = autoscaled
    with fleet.calls(12, light=True) as calls:
        began = time.monotonic()
        calls.until_up()
        wait_for("a third transceiver", lambda: ready(fleet, TRANSCEIVER_PODS) == MAX, LIMIT_S)
        figure("scaled up after", f"{time.monotonic() - began:.1f} s under 12 calls")
        outcome = calls.end()
    ended = time.monotonic()
    figure("calls during it", outcome)
    wait_for("two transceivers again", lambda: len(fleet.pods(TRANSCEIVER_PODS)) == MIN, LIMIT_S)
    figure("scaled down after", f"{time.monotonic() - ended:.1f} s without calls")
    assert outcome.lost == 0


def test_signaling_follows_the_rate_of_new_calls(autoscaled: Fleet, figure: Figure) -> None:
    fleet = autoscaled
    placed = lost = 0
    began = time.monotonic()
    while ready(fleet, SIGNALING_PODS) < MAX:
        assert time.monotonic() - began < LIMIT_S, "signaling was not scaled up"
        outcome = fleet.call(seconds=0.5, count=12)
        placed, lost = placed + outcome.count, lost + outcome.lost
    rate = placed / (time.monotonic() - began)
    figure("scaled up after", f"{time.monotonic() - began:.1f} s of {rate:.1f} new calls a second, {lost} lost")
    ended = time.monotonic()
    wait_for("two pods of signaling again", lambda: len(fleet.pods(SIGNALING_PODS)) == MIN, LIMIT_S)
    figure("scaled down after", f"{time.monotonic() - ended:.1f} s without calls")
    assert lost == 0
