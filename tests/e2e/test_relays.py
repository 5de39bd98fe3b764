"""Relays go while calls run: told to end they hand their flows over, killed they leave them to the clients' checks."""

from __future__ import annotations

import re
import time

import pytest

from tests.e2e.calls import HEARD_S
from tests.e2e.conftest import Figure
from tests.e2e.fleet import RELAY_PODS, SMALL_RELAYS, Fleet, is_ready
from tests.e2e.kube import Json, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(400)]

ADMIN_PORT = 9478
MAX_MOVE_MS = 5_000
"""docs/wire.md §6: a flow that moves to another relay waits for the client's next check at most, and its answer."""
GRACE_S = int(SMALL_RELAYS["drain"]["gracePeriod"].removesuffix("s"))


def flows(fleet: Fleet, relay: Json) -> int:
    """Client addresses that a relay forwards for."""
    metrics = fleet.metrics(relay, ADMIN_PORT)
    found = re.search(r'^usher_relay_flows\{state="confirmed"\} ([0-9.e+]+)$', metrics, re.MULTILINE)
    return int(float(found[1])) if found else 0


def busiest(fleet: Fleet) -> Json:
    relays = [pod for pod in fleet.pods(RELAY_PODS) if is_ready(pod)]
    chosen = max(relays, key=lambda relay: flows(fleet, relay))
    assert flows(fleet, chosen) > 0, "no call goes by this relay"
    return chosen


def test_a_relay_that_is_deleted_forwards_until_its_flows_have_moved(fleet: Fleet, figure: Figure) -> None:
    with fleet.calls(8, light=True) as calls:
        calls.until_up()
        victim = busiest(fleet)
        figure("flows of the relay that goes", flows(fleet, victim))
        name = victim["metadata"]["name"]
        fleet.namespace.kubectl("delete", "pod", name, "--wait=false")
        told = time.monotonic()
        wait_for("the relay is gone", lambda: name not in names(fleet), GRACE_S + 20)
        figure("it was gone after", f"{time.monotonic() - told:.1f} s")
        outcome = calls.end()
    figure("calls during all of it", outcome)
    assert outcome.lost == 0
    assert outcome.longest_gap_ms <= MAX_MOVE_MS


def test_calls_of_a_killed_relay_are_back_with_the_next_check(fleet: Fleet, figure: Figure) -> None:
    with fleet.calls(8, light=True) as calls:
        calls.until_up()
        victim = busiest(fleet)
        figure("flows of the killed relay", flows(fleet, victim))
        fleet.kill(victim)
        outcome = calls.end(2 * HEARD_S)
    figure("calls during all of it", outcome)
    assert outcome.lost == 0
    assert outcome.longest_gap_ms <= MAX_MOVE_MS


def names(fleet: Fleet) -> set[str]:
    return {str(pod["metadata"]["name"]) for pod in fleet.pods(RELAY_PODS)}
