"""What somebody changed by hand is set right within ten minutes, though the revision on it still says it is ours."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests import operator_relays as relays
from tests import transceiver_pools as transceivers
from tests.operator_keys import NOW
from usher_operator.actions import Apply, Plan
from usher_operator.plan.relay_pool import plan_relay_pool
from usher_operator.resends import RESEND_S, Resends


def applied(plan: Plan) -> set[str]:
    return {action.manifest["kind"] for action in plan.actions if isinstance(action, Apply)}


def test_each_pool_is_due_once_in_ten_minutes_and_not_with_the_first_look_of_a_leader() -> None:
    now = [0.0]
    resends = Resends(lambda: now[0])
    assert not resends.is_due("a")
    due = []
    for at in range(30, 3600, 30):
        now[0] = at
        if resends.is_due("a"):
            due.append(at)
    assert len(due) in (5, 6)
    assert RESEND_S / 2 <= due[0] <= RESEND_S
    assert all(later - earlier == RESEND_S for earlier, later in itertools.pairwise(due))


def test_pools_that_are_gone_are_forgotten() -> None:
    now = [0.0]
    resends = Resends(lambda: now[0])
    for number in range(1000):
        now[0] += RESEND_S
        resends.is_due(f"gone-{number}")
        resends.is_due("stays")
    assert len(resends._due) < 5


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_all_children_of_a_relay_pool_are_sent_again(kind: str) -> None:
    pool = relays.relay_pool(workload=kind)
    seen = relays.running(pool)
    assert applied(plan_relay_pool(pool, seen, NOW, relays.DEFAULTS)) == set()
    again = plan_relay_pool(pool, replace(seen, resend=True), NOW, relays.DEFAULTS)
    first = plan_relay_pool(pool, relays.NOTHING, NOW, relays.DEFAULTS)
    assert applied(again) == applied(first)
    paused = relays.relay_pool(workload=kind, paused=True)
    assert applied(plan_relay_pool(paused, replace(seen, resend=True), NOW, relays.DEFAULTS)) == set()


def test_all_children_of_a_transceiver_pool_are_sent_again_and_its_size_is_kept() -> None:
    pool = transceivers.make_pool({"replicas": 1})
    pod = transceivers.make_pod()
    assert applied(transceivers.make_plan(pool, pod)) == set()
    again = transceivers.make_plan(pool, pod, resend=True)
    assert applied(again) == {"Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"}
    (deployment,) = (a for a in again.actions if isinstance(a, Apply) and a.manifest["kind"] == "Deployment")
    assert ("spec", "replicas") in deployment.keeps
