"""`helm upgrade` under calls, and `helm uninstall`, which waits for calls and leaves nothing but the CRDs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import (
    CHART,
    OPERATOR_PODS,
    RELAY_PODS,
    RELEASE,
    SIGNALING_PODS,
    TRANSCEIVER_PODS,
    Fleet,
    is_ready,
    values,
)
from tests.e2e.images import Images
from tests.e2e.inventory import CRDS, OF_EVERY_NAMESPACE, of_cluster, of_namespace
from tests.e2e.kube import Namespace, kubectl, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(500)]

PROGRAMS = {
    "operator": OPERATOR_PODS,
    "signaling": SIGNALING_PODS,
    "relay": RELAY_PODS,
    "transceiver": TRANSCEIVER_PODS,
}
OF_THE_USER = {"secret/usher-api-keys"}


def is_new(fleet: Fleet, program: str, images: Images) -> bool:
    """Whether all pods of a program that stay are ready and of these images."""
    staying = [pod for pod in fleet.pods(PROGRAMS[program]) if "deletionTimestamp" not in pod["metadata"]]
    found = {pod["spec"]["containers"][0]["image"] for pod in staying}
    return len(staying) == 2 and found == {images.name(program)} and all(map(is_ready, staying))


def test_an_upgrade_of_all_programs_at_once_loses_no_call(fleet: Fleet, second_images: Images, figure: Figure) -> None:
    upgraded = values(fleet.namespace.name, second_images)
    upgraded["signaling"]["settings"]["linger"] += 1
    try:
        with fleet.calls(6, light=True) as calls:
            calls.until_up()
            began = time.monotonic()
            fleet.helm("upgrade", RELEASE, CHART, given=upgraded)
            for program in PROGRAMS:
                wait_for(f"new pods of {program}", lambda program=program: is_new(fleet, program, second_images), 150)  # type: ignore[misc]
                figure(f"{program} was new after", f"{time.monotonic() - began:.1f} s")
            late = fleet.call(seconds=2, count=4)
            outcome = calls.end()
    finally:
        fleet.helm("upgrade", RELEASE, CHART, given=values(fleet.namespace.name, fleet.images))
    figure("calls during all of it", outcome)
    figure("calls placed after it", late)
    assert outcome.lost == late.lost == 0


@pytest.fixture
def other(provided: Images) -> Iterator[Fleet]:
    """An install of its own, since this one has to go."""
    fleet = Fleet(Namespace(f"usher-e2e-{uuid.uuid4().hex[:6]}"), provided)
    yield fleet
    if fleet.namespace.list("tpool,rpool"):
        fleet.remove()
    kubectl("delete", "namespace", fleet.namespace.name, "--ignore-not-found", "--wait=false")


def test_uninstalling_waits_for_calls_and_leaves_only_crds(other: Fleet, figure: Figure) -> None:
    fleet, name = other, other.namespace.name
    before = of_cluster()
    fleet.install()
    installed = of_namespace(name)
    with fleet.calls(4, seconds=25) as calls:
        calls.until_up()
        began = time.monotonic()
        fleet.helm("uninstall", RELEASE, "--timeout=200s")
        figure("helm uninstall took", f"{time.monotonic() - began:.1f} s under calls of 25 s")
        outcome = calls.until_ended()
    figure("calls during it", outcome)
    assert outcome.is_unbroken
    own = OF_EVERY_NAMESPACE | OF_THE_USER
    wait_for("what belonged to others is collected", lambda: len(of_namespace(name)) <= len(own), 60)
    assert of_namespace(name) == own
    assert installed > own
    assert of_cluster() - before - CRDS == set()
    assert of_cluster() >= CRDS
    figure("objects left", "the CRDs, the Secret of API keys that the user made")
