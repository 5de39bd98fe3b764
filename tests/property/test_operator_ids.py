"""No pod id is ever on two pods, whatever crashes, runs twice, is deleted or put back to an older state.

A small API server with compare-and-swap; operators that carry out their plans action by action, with anything in
between.

Changed on purpose, the code fails in the scenarios at the end, which the state machine would have to find by chance:
no note on the pool, or one that is written last: `..._its_pod_is_gone_and_the_lease_is_put_back`. A note without
compare-and-swap: `..._who_stopped_before_the_note...`. No test of a pod's resourceVersion: `..._pod_that_changed...`.
Ids of pods that exist ignored: `..._a_burst...`.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.transceiver_pools import DEFAULTS, NOW, make_pod, make_seen
from usher_core.ids import MAX_POD
from usher_operator.actions import Action, Create, JsonPatch, Plan, Replace
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.identity.pod_ids import EPOCH
from usher_operator.names import CLUSTER_ID_LABEL, LAST_POD_ID_ANNOTATION, POD_ID_GATE, POD_ID_LABEL
from usher_operator.plan.transceiver_pool import plan_transceiver_pool
from usher_operator.seen import PodSeen

CLUSTER = 7
POOLS = ("a", "b")
OPERATORS = range(3)
STEPS = (0, 1, 2, 3, 20, 20)
"""Actions that an operator carries out at a stretch; 20 are a whole plan."""
EVENTS = (
    *("operator_looks",) * 5,
    *("operator_goes_on",) * 3,
    *("pods_are_made",) * 3,
    *("a_pod_goes",) * 2,
    "a_pod_changes",
    "lease_is_deleted",
    "lease_is_put_back",
    "pool_is_deleted",
    "pool_is_made_anew",
    "clock_moves",
)

Json = dict[str, Any]


class ConflictError(Exception):
    """409, or 422 of a JSON patch whose test failed."""


def patch(target: Json, operations: Sequence[Any]) -> None:
    """Carry out RFC 6902 operations, all or none."""
    draft = copy.deepcopy(target)
    for operation in operations:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].removeprefix("/").split("/")
        ]
        place: Any = draft
        try:
            for part in parents:
                place = place[int(part) if isinstance(place, list) else part]
            key: Any = int(last) if isinstance(place, list) else last
            match operation["op"]:
                case "test":
                    if place[key] != operation["value"]:
                        raise ConflictError
                case "remove":
                    del place[key]
                case "add" | "replace":
                    place[key] = operation["value"]
        except (KeyError, IndexError):
            raise ConflictError from None
    target.clear()
    target.update(draft)


@dataclasses.dataclass
class Doing:
    """What an operator still has to do: its plan's actions, then the status."""

    pool: str
    uid: str
    actions: list[Action]
    status: Json


class Ids(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.earliest = 0.0
        self.versions = itertools.count(1)
        self.lease: Json | None = None
        self.old_leases: list[Json] = []
        self.pools: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.doing: dict[int, Doing | None] = dict.fromkeys(OPERATORS)
        self.stale_pods: tuple[PodSeen, ...] = ()
        self.given: dict[int, str] = {}
        self.taken_out = 0
        self.fresh: set[str] = set()

    # The API server

    def write(self, target: Json) -> None:
        target["metadata"]["resourceVersion"] = str(next(self.versions))

    def carry_out(self, action: Action) -> None:
        match action:
            case Create(manifest) if manifest["kind"] == "Lease":
                if self.lease is not None:
                    raise ConflictError
                self.store_lease(manifest)
            case Replace(manifest):
                version = manifest["metadata"]["resourceVersion"]
                if self.lease is None or self.lease["metadata"]["resourceVersion"] != version:
                    raise ConflictError
                self.store_lease(manifest)
            case JsonPatch(target, operations) if target.kind == "Pod":
                self.change(self.pods.get(target.name), operations)
                self.note_ids()
            case JsonPatch(target, operations) if target.kind == "TransceiverPool":
                self.change(self.pools.get(target.name), operations)
            case _:
                pass  # Deployments and drains are no concern of ids.

    def store_lease(self, manifest: Any) -> None:
        self.lease = copy.deepcopy(dict(manifest))
        self.write(self.lease)
        self.old_leases = [*self.old_leases[-4:], copy.deepcopy(self.lease)]
        self.taken_out = max(self.taken_out, last_of(self.lease))

    def change(self, target: Json | None, operations: Sequence[Any]) -> None:
        if target is None:
            raise ConflictError
        patch(target, operations)
        self.write(target)

    def note_ids(self) -> None:
        for pod in self.pods.values():
            labels = pod["metadata"]["labels"]
            number = labels.get(POD_ID_LABEL)
            is_gated = any(gate["name"] == POD_ID_GATE for gate in pod["spec"]["schedulingGates"])
            if number is not None and not is_gated:
                assert labels[CLUSTER_ID_LABEL] == str(CLUSTER), f"id {number} is on a pod of another cluster id"
                owner = self.given.setdefault(int(number), pod["metadata"]["uid"])
                assert owner == pod["metadata"]["uid"], f"id {number} is on a second pod"

    # Operators

    def seen_pods(self) -> tuple[PodSeen, ...]:
        return tuple(
            make_pod(
                name,
                gated=bool(pod["spec"]["schedulingGates"]),
                uid=pod["metadata"]["uid"],
                resource_version=pod["metadata"]["resourceVersion"],
                labels={POD_ID_LABEL: None, "usher.fleet/pool": pod["pool"], **pod["metadata"]["labels"]},
                gates=tuple(gate["name"] for gate in pod["spec"]["schedulingGates"]),
            )
            for name, pod in self.pods.items()
        )

    def look(self, name: str, *, stale: bool) -> Plan:
        pods = self.stale_pods if stale else self.seen_pods()
        self.stale_pods = self.seen_pods()
        pool = TransceiverPool.model_validate(copy.deepcopy(self.pools[name]))
        mine = tuple(pod for pod in pods if pod.labels["usher.fleet/pool"] == name)
        numbers = tuple(int(pod.labels[POD_ID_LABEL]) for pod in pods if POD_ID_LABEL in pod.labels)
        seen = dataclasses.replace(
            make_seen(pool, *mine),
            cluster_pod_ids=numbers,
            deployment=None,
            leases=() if self.lease is None else (copy.deepcopy(self.lease),),
            holders=frozenset(
                f"fleet/{pool}"
                for pool in POOLS
                if pool in self.pools or any(p["pool"] == pool for p in self.pods.values())
            ),
        )
        return plan_transceiver_pool(pool, seen, self.now, DEFAULTS)

    def pass_lost_ids(self) -> None:
        """Let time pass as the docs ask: when all that knew the ids is lost, the clock is beyond them."""
        lease_knows = self.lease is not None and last_of(self.lease) >= self.taken_out
        pools_know = self.count == 1 and not self.fresh
        if not lease_knows and not pools_know:
            self.earliest = EPOCH + self.taken_out + 1.0
            self.now = max(self.now, self.earliest)

    # What may happen

    @initialize(count=st.integers(1, 2))
    def start(self, count: int) -> None:
        self.count = count
        for name in POOLS[:count]:
            self.make_pool(name)

    def make_pool(self, name: str) -> None:
        self.fresh.add(name)
        version = next(self.versions)
        self.pools[name] = {
            "metadata": {
                "name": name,
                "namespace": "fleet",
                "uid": f"{name}-{version}",
                "resourceVersion": str(version),
                "annotations": {},
            },
            "spec": {"clusterID": CLUSTER, "replicas": 100},
            "status": {},
        }

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """One rule for all events: Hypothesis leaves out whole rules in most runs, and each is needed in all."""
        getattr(self, data.draw(st.sampled_from(EVENTS)))(data)

    def operator_looks(self, data: st.DataObject) -> None:
        """It forgets what it had to do, as after a crash, and begins to carry out a new plan."""
        if self.pools:
            operator, name = data.draw(st.sampled_from(OPERATORS)), data.draw(st.sampled_from(sorted(self.pools)))
            stale = data.draw(st.sampled_from((False, False, False, True)))
            self.work(name, data.draw(st.sampled_from(STEPS)), operator, stale=stale)

    def work(self, pool: str, steps: int, operator: int = 0, *, stale: bool = False) -> None:
        plan = self.look(pool, stale=stale)
        identity: list[Action] = [action for action in plan.actions if isinstance(action, Create | Replace | JsonPatch)]
        self.doing[operator] = Doing(pool, self.pools[pool]["metadata"]["uid"], identity, dict(plan.status))
        self.go_on(operator, steps)

    def operator_goes_on(self, data: st.DataObject) -> None:
        self.go_on(data.draw(st.sampled_from(OPERATORS)), data.draw(st.sampled_from(STEPS)))

    def go_on(self, operator: int, steps: int) -> None:
        for _ in range(steps):
            doing = self.doing[operator]
            if doing is None:
                return
            if not doing.actions:
                self.write_status(doing)
                self.doing[operator] = None
                return
            action = doing.actions.pop(0)
            try:
                self.carry_out(action)
            except ConflictError:
                if not stands_alone(action):
                    self.doing[operator] = None

    def write_status(self, doing: Doing) -> None:
        pool = self.pools.get(doing.pool)
        if pool is not None and pool["metadata"]["uid"] == doing.uid:
            pool["status"] = doing.status
            self.fresh.discard(doing.pool)
            self.write(pool)

    def pods_are_made(self, data: st.DataObject) -> None:
        pool, label = data.draw(st.sampled_from(POOLS[: self.count])), data.draw(st.sampled_from((False, False, True)))
        for _ in range(data.draw(st.integers(1, 3)) if len(self.pods) < 10 else 0):
            self.add_pod(pool, {POD_ID_LABEL: str(max(self.given))} if label and self.given else {})

    def add_pod(self, pool: str, labels: dict[str, str]) -> None:
        version = next(self.versions)
        labels = {CLUSTER_ID_LABEL: str(CLUSTER), **labels}
        self.pods[f"pod-{version}"] = {
            "pool": pool,
            "metadata": {"uid": f"u{version}", "resourceVersion": str(version), "labels": labels, "annotations": {}},
            "spec": {"schedulingGates": [{"name": POD_ID_GATE}]},
        }

    def a_pod_goes(self, data: st.DataObject) -> None:
        if self.pods:
            del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]

    def a_pod_changes(self, data: st.DataObject) -> None:
        if self.pods:
            self.write(self.pods[data.draw(st.sampled_from(sorted(self.pods)))])

    def lease_is_deleted(self, _data: st.DataObject) -> None:
        self.lease = None
        self.pass_lost_ids()

    def lease_is_put_back(self, data: st.DataObject) -> None:
        if self.old_leases:
            self.lease = copy.deepcopy(data.draw(st.sampled_from(self.old_leases)))
            self.write(self.lease)
            self.pass_lost_ids()

    def pool_is_deleted(self, data: st.DataObject) -> None:
        self.pools.pop(data.draw(st.sampled_from(POOLS)), None)
        self.pass_lost_ids()

    def pool_is_made_anew(self, data: st.DataObject) -> None:
        self.make_pool(data.draw(st.sampled_from(POOLS[: self.count])))
        self.pass_lost_ids()

    def clock_moves(self, data: st.DataObject) -> None:
        self.now = max(self.now + data.draw(st.sampled_from((-1.0, 0.3, 1.0, 3.0))), self.earliest)

    @invariant()
    def ids_are_within_their_range(self) -> None:
        assert all(0 < number <= MAX_POD for number in self.given)

    def teardown(self) -> None:
        """An operator that is left alone gives every pod of the holder an id."""
        self.doing = dict.fromkeys(OPERATORS)
        for _ in range(6):
            for name in self.pools:
                plan = self.look(name, stale=False)
                doing = Doing(name, self.pools[name]["metadata"]["uid"], list(plan.actions), dict(plan.status))
                try:
                    while doing.actions:
                        self.carry_out(doing.actions.pop(0))
                except ConflictError:
                    continue
                self.write_status(doing)
        holder = self.lease["spec"]["holderIdentity"].removeprefix("fleet/") if self.lease else None
        if holder in self.pools:
            waiting = [pod for pod in self.pods.values() if pod["pool"] == holder and pod["spec"]["schedulingGates"]]
            assert waiting == []


def stands_alone(action: Action) -> bool:
    return isinstance(action, JsonPatch) and action.stands_alone


def last_of(lease: Json) -> int:
    last: str = lease["metadata"]["annotations"][LAST_POD_ID_ANNOTATION]
    return int(last)


TestIds = Ids.TestCase
TestIds.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_id_is_not_given_again_when_its_pod_is_gone_and_the_lease_is_put_back(steps: int) -> None:
    """The note on the pool is all that is left to know of it: no status was written, and the clock stands still.

    `steps`: actions after which the operator died: Lease, note, pod.
    """
    ids = Ids()
    ids.start(1)
    for lease in ("before", "deleted"):
        ids.work("a", steps=10)
        backup = copy.deepcopy(ids.lease)
        ids.add_pod("a", {})
        ids.work("a", steps)
        ids.pods.clear()
        ids.lease = backup if lease == "before" else None
        ids.add_pod("a", {})
        ids.work("a", steps=10)
        ids.pods.clear()
    assert len(ids.given) == (4 if steps == 3 else 2)


@pytest.mark.parametrize("has_note", [False, True])
def test_one_who_stopped_before_the_note_gives_nothing_when_another_one_noted_the_same_ids(has_note: bool) -> None:
    """The Lease was put back between, so both took the same ids out of it, for two pods."""
    ids = Ids()
    ids.start(1)
    ids.work("a", steps=10)
    if has_note:
        ids.add_pod("a", {})
        ids.work("a", steps=10)
        ids.pods.clear()
    backup = copy.deepcopy(ids.lease)
    ids.add_pod("a", {})
    slow, fast = 0, 1
    ids.work("a", 1, slow)
    first = ids.pods.copy()
    ids.lease = backup
    ids.pods.clear()
    ids.add_pod("a", {})
    ids.work("a", 10, fast)
    ids.pods |= first
    before = len(ids.given)
    ids.go_on(slow, 10)
    assert len(ids.given) == before


def test_a_pod_that_changed_its_cluster_id_meanwhile_gets_none_under_it() -> None:
    ids = Ids()
    ids.start(1)
    ids.add_pod("a", {})
    ids.work("a", steps=2)
    (pod,) = ids.pods.values()
    pod["metadata"]["labels"][CLUSTER_ID_LABEL] = str(CLUSTER + 1)
    ids.write(pod)
    ids.go_on(0, 10)
    assert not ids.given


def test_ids_of_a_burst_are_not_given_again_when_lease_and_pool_are_lost_together() -> None:
    """The pods have run ahead of the clock, and nothing but them still tells so."""
    ids = Ids()
    ids.start(1)
    for _ in range(20):
        ids.add_pod("a", {})
    ids.work("a", steps=30)
    ids.work("a", steps=30)
    assert len(ids.given) == 20
    ids.lease = None
    ids.make_pool("a")
    ids.now += 1
    ids.add_pod("a", {})
    for _ in range(3):
        ids.work("a", steps=30)
    assert len(ids.given) == 21
