"""The operator is not in the path of calls: it may be killed, or not be there at all."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import TRANSCEIVER_PODS, TRANSCEIVERS, Fleet, is_ready, pod_id
from tests.e2e.kube import Json, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(400)]

LEASE_S = 15
GATES_LIMIT_S = 2.0


def is_waiting(pod: Json) -> bool:
    """Whether the pod waits for a pod id."""
    return any(gate["name"] == "usher.fleet/pod-id" for gate in pod["spec"].get("schedulingGates", ()))


def ids(fleet: Fleet) -> set[int]:
    """The pod ids of all transceivers that are ready; each has its own."""
    found = [given for pod in fleet.pods(TRANSCEIVER_PODS) if is_ready(pod) and (given := pod_id(pod))]
    assert len(set(found)) == len(found)
    return set(found)


@pytest.fixture
def operators(fleet: Fleet) -> Iterator[Fleet]:
    """Two operators, of which one leads; and again two afterwards."""
    wait_for("a leader", fleet.leader, LEASE_S + 30)
    yield fleet
    fleet.scale_operator(2)
    wait_for("a leader", fleet.leader, LEASE_S + 60)


def test_calls_and_new_calls_go_on_without_an_operator_and_pods_that_waited_start_once_one_is_back(
    operators: Fleet, figure: Figure
) -> None:
    fleet = operators
    known = ids(fleet)
    with fleet.calls(4, light=True) as calls:
        calls.until_up()
        fleet.scale_operator(0)
        victim = fleet.pods(TRANSCEIVER_PODS)[0]["metadata"]["name"]
        fleet.namespace.kubectl("delete", "pod", victim, "--wait=false")
        wait_for("a new pod waits for its id", lambda: any(map(is_waiting, fleet.pods(TRANSCEIVER_PODS))))
        meanwhile = fleet.call(seconds=3, count=3)
        fleet.namespace.kubectl("scale", "deployment/usher-operator", "--replicas=2")
        asked = time.monotonic()
        wait_for("a leader", fleet.leader, LEASE_S + 60)
        back = time.monotonic()
        wait_for("no pod waits", lambda: not any(map(is_waiting, fleet.pods(TRANSCEIVER_PODS))))
        freed = time.monotonic()
        fleet.until_ready()
        ready = time.monotonic()
        outcome = calls.end()
    figure("an operator led after", f"{back - asked:.1f} s")
    figure(
        "pods that waited had their id after", f"{freed - back:.2f} s more, and were ready after {ready - back:.1f} s"
    )
    figure("calls meanwhile", outcome)
    figure("new calls without an operator", meanwhile)
    assert outcome.is_unbroken
    assert meanwhile.lost == 0
    assert freed - back <= GATES_LIMIT_S
    given = ids(fleet)
    assert len(given) == 2
    assert max(given) > max(known), "an id is never given twice"


def test_another_operator_goes_on_where_a_killed_leader_left(operators: Fleet, figure: Figure) -> None:
    """It is the second pod, or the next process of the first: whoever asks first once the Lease has run out."""
    fleet = operators
    known = ids(fleet)
    leader, holder = fleet.leader(), fleet.lease_holder()
    body = fleet.namespace.get(f"pod/{leader}")
    with fleet.calls(4, light=True) as calls:
        calls.until_up()
        fleet.namespace.kubectl("scale", TRANSCEIVERS, "--replicas=4")
        fleet.kill(body)
        killed = time.monotonic()
        wait_for("another leader", lambda: fleet.lease_holder() not in ("", holder), 2 * LEASE_S + 10)
        led = time.monotonic()
        fleet.until_ready()
        ready = time.monotonic()
        outcome = calls.end()
    figure("the other one led after", f"{led - killed:.1f} s")
    figure("four transceivers were ready after", f"{ready - killed:.1f} s")
    figure("calls meanwhile", outcome)
    assert outcome.is_unbroken
    now = ids(fleet)
    assert len(now) == 4
    assert known < now
    assert min(now - known) > max(known)


def test_a_leader_that_is_told_to_end_hands_over_at_once(operators: Fleet, figure: Figure) -> None:
    fleet = operators
    leader = fleet.leader()
    fleet.namespace.kubectl("delete", "pod", str(leader), "--wait=false")
    told = time.monotonic()
    wait_for("another leader", lambda: fleet.leader() not in (None, leader), LEASE_S)
    figure("the other one led after", f"{time.monotonic() - told:.1f} s")
