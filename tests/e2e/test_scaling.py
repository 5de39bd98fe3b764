"""`kubectl scale tpool` under live calls: pods go when their calls have gone, and new calls land on those that stay."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.e2e.calls import Outcome
from tests.e2e.conftest import Figure
from tests.e2e.fleet import TRANSCEIVER_PODS, TRANSCEIVERS, Fleet, pod_id
from tests.e2e.kube import Json, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(400)]


def scale(fleet: Fleet, replicas: int) -> None:
    fleet.namespace.kubectl("scale", TRANSCEIVERS, f"--replicas={replicas}")


def states(fleet: Fleet) -> Counter[str]:
    """How many pods are in which state; those that are ending stand under `ending`."""
    return Counter(
        "ending" if "deletionTimestamp" in pod["metadata"] else pod["metadata"]["labels"]["usher.fleet/state"]
        for pod in fleet.pods(TRANSCEIVER_PODS)
    )


def ids(outcome: Outcome) -> set[int]:
    """The pod ids of the transceivers that the full calls were placed on."""
    return {int(name.split("/")[1]) for name in outcome.transceivers}


def stays(pod: Json) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["labels"]["usher.fleet/state"] == "active"


def test_no_call_is_lost_when_the_pool_grows_and_shrinks(fleet: Fleet, figure: Figure) -> None:
    with fleet.calls(10, light=True) as calls:
        calls.until_up()
        began = time.monotonic()
        scale(fleet, 3)
        fleet.until_ready()
        figure("a third pod was ready after", f"{time.monotonic() - began:.1f} s")
        scale(fleet, 1)
        wait_for("one pod alone takes new calls", lambda: sum(map(stays, fleet.pods(TRANSCEIVER_PODS))) == 1)
        survivors = {pod_id(pod) for pod in fleet.pods(TRANSCEIVER_PODS) if stays(pod)}
        burst = fleet.call(seconds=2, count=4)
        left = states(fleet)
        outcome = calls.end()
    began = time.monotonic()
    figure("calls during all of it", outcome)
    figure("burst during the scale-down", burst)
    assert outcome.is_unbroken
    assert burst.lost == 0
    assert ids(burst) == survivors
    assert left["active"] == 1
    assert left["active"] < left.total(), "a pod with calls has to wait for them"
    wait_for("only the survivor is left", lambda: states(fleet) == Counter(active=1), 60)
    figure("the last drained pod was gone after its calls by", f"{time.monotonic() - began:.1f} s")


def test_a_scale_down_that_is_called_off_under_way_cuts_no_call(fleet: Fleet, figure: Figure) -> None:
    """A pod that was told to end can't be told to stay: its calls go on to their end, and a new pod takes its place."""
    with fleet.calls(6, light=True) as calls:
        calls.until_up()
        scale(fleet, 1)
        wait_for("one pod is on its way out", lambda: states(fleet) == Counter(active=1, ending=1))
        scale(fleet, 2)
        began = time.monotonic()
        fleet.until_ready()
        figure("two pods took calls again after", f"{time.monotonic() - began:.1f} s")
        assert states(fleet) == Counter(active=2, ending=1)
        takers = {pod_id(pod) for pod in fleet.pods(TRANSCEIVER_PODS) if stays(pod)}
        new = fleet.call(seconds=1, count=4)
        outcome = calls.end()
    figure("calls meanwhile", outcome)
    figure("new calls", new)
    assert outcome.is_unbroken
    assert new.lost == 0
    assert ids(new) <= takers


def test_a_pod_that_is_told_to_end_while_it_starts_ends_at_once(fleet: Fleet, figure: Figure) -> None:
    """And not at the end of its grace: a signal must not be lost before the program has its handler."""
    scale(fleet, 3)
    wait_for("a third container that starts", lambda: any(map(is_starting, fleet.pods(TRANSCEIVER_PODS))))
    scale(fleet, 2)
    wait_for("a pod on its way out", lambda: states(fleet)["ending"] == 1)
    began = time.monotonic()
    wait_for("two pods", lambda: states(fleet) == Counter(active=2), 40)
    figure("it was gone after", f"{time.monotonic() - began:.1f} s")


def is_starting(pod: Json) -> bool:
    containers = pod["status"].get("containerStatuses", ())
    return any("running" in each["state"] and not each["ready"] for each in containers)
