"""Events: what goes well is told at once, what is wrong once it has lasted, and nothing twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.operator_relays import DEFAULTS as RELAY_DEFAULTS
from tests.operator_relays import NOTHING, relay_pool, running, with_ingress
from tests.transceiver_pools import NOW, make_plan, make_pod, make_pool
from usher_operator.actions import Tell
from usher_operator.api.common import Condition
from usher_operator.plan.events import SETTLE_S, Trouble, tell_changes
from usher_operator.plan.relay_pool import plan_relay_pool
from usher_operator.times import timestamp


def condition(reason: str, status: str = "False", kind: str = "Ready", since: float = NOW) -> dict[str, Any]:
    times = {"lastTransitionTime": timestamp(since), "observedGeneration": 1}
    return {"type": kind, "status": status, "reason": reason, "message": f"It is {reason}.", **times}


GOOD = condition("Ready", "True")


class Watcher:
    """Looks at conditions as a reconciler does, and collects what is told."""

    def __init__(self, *before: Mapping[str, Any], remembers: bool = True) -> None:
        self.before: Sequence[Mapping[str, Any]] = before
        self.troubles: Mapping[str, Trouble] | None = {} if remembers else None
        self.told: list[tuple[str, str]] = []
        self.look_again: float | None = None

    def look(self, at: float, *conditions: Mapping[str, Any]) -> list[tuple[str, str]]:
        previous = [Condition.model_validate(each) for each in self.before]
        news = tell_changes(conditions, previous, self.troubles, NOW + at)
        self.before, self.troubles, self.look_again = conditions, news.troubles, news.look_again
        told: list[tuple[str, str]] = [(event.type, event.reason) for event in news.events]
        self.told += told
        return told


def test_a_normal_install_warns_of_nothing() -> None:
    watcher = Watcher(condition("Pending", "Unknown"))
    pool = make_pool({"replicas": 1})
    gone = [
        make_plan(pool, leases=(), deployment=None, children={}),
        make_plan(pool, keys_fault="Secret usher-keys is being made"),
        make_plan(pool, make_pod(gated=True)),
        make_plan(pool, make_pod(phase="Pending", ready=False, node="", ip="")),
        make_plan(pool, make_pod(ready=False)),
    ]
    for at, plan in enumerate(gone):
        watcher.look(at * 3, *plan.status["conditions"])
    watcher.look(30, *make_plan(pool, make_pod()).status["conditions"])
    watcher.look(300, *make_plan(pool, make_pod()).status["conditions"])
    assert {kind for kind, _ in watcher.told} == {"Normal"}
    assert ("Normal", "Ready") in watcher.told


def test_a_load_balancer_may_take_minutes() -> None:
    pool, watcher = relay_pool(), Watcher(condition("Pending", "Unknown"))
    for at, seen in ((0, NOTHING), (5, running(pool)), (240, running(pool)), (299, running(pool))):
        watcher.look(at, *plan_relay_pool(pool, seen, NOW, RELAY_DEFAULTS).status["conditions"])
    assert [told for told in watcher.told if told[0] == "Warning"] == []
    seen = with_ingress(pool, {"ip": "203.0.113.10"})
    watcher.look(300, *plan_relay_pool(pool, seen, NOW, RELAY_DEFAULTS).status["conditions"])
    assert ("Normal", "Exposed") in watcher.told


def test_what_is_wrong_is_told_once_after_it_has_lasted() -> None:
    watcher = Watcher(GOOD)
    assert watcher.look(0, condition("CrashLoop")) == []
    assert watcher.look_again == SETTLE_S
    assert watcher.look(SETTLE_S - 1, condition("CrashLoop")) == []
    assert watcher.look_again == 1
    assert watcher.look(SETTLE_S, condition("CrashLoop")) == [("Warning", "CrashLoop")]
    assert watcher.look_again is None
    for at in range(int(SETTLE_S) + 30, 3600, 30):
        assert watcher.look(at, condition("CrashLoop")) == []
    assert watcher.look(3600, GOOD) == [("Normal", "Ready")]


def test_what_comes_and_goes_is_told_like_what_lasts() -> None:
    """A pod in a crash loop is up for a moment now and then."""
    watcher = Watcher(GOOD)
    for at in range(0, 600, 20):
        watcher.look(at, condition("NotReady" if at % 40 else "CrashLoop"))
    assert watcher.told == [("Warning", "CrashLoop")]


def test_what_was_away_for_long_is_told_anew() -> None:
    watcher = Watcher(GOOD)
    for at in (0, SETTLE_S):
        watcher.look(at, condition("CrashLoop"))
    watcher.look(SETTLE_S + 1, GOOD)
    watcher.look(3 * SETTLE_S, GOOD)
    assert watcher.troubles == {}
    for at in (4 * SETTLE_S, 5 * SETTLE_S):
        watcher.look(at, condition("CrashLoop"))
    assert watcher.told == [("Warning", "CrashLoop"), ("Normal", "Ready"), ("Warning", "CrashLoop")]


def test_one_reason_in_several_conditions_is_one_event() -> None:
    watcher = Watcher()
    both = (condition("NoImage", kind="Accepted"), condition("NoImage"))
    watcher.look(0, *both)
    assert watcher.look(SETTLE_S, *both) == [("Warning", "NoImage")]


@pytest.mark.parametrize(
    ("age", "told"),
    [
        pytest.param(3600, [], id="the one before has told it"),
        pytest.param(20, [("Warning", "CrashLoop")], id="the one before had not yet"),
    ],
)
def test_a_new_leader_tells_what_the_one_before_has_not(age: float, told: list[tuple[str, str]]) -> None:
    crash = condition("CrashLoop", since=NOW - age)
    watcher = Watcher(crash, remembers=False)
    for at in (0, SETTLE_S - 20, SETTLE_S, 2 * SETTLE_S):
        watcher.look(at, crash)
    assert watcher.told == told


def test_an_event_has_the_words_of_its_condition() -> None:
    previous = [Condition.model_validate(condition("Scaling"))]
    assert tell_changes([GOOD], previous, {}, NOW).events == (Tell("Normal", "Ready", "It is Ready."),)
