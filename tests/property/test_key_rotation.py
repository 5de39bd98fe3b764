"""No call is lost to a rotation of keys: whatever lags, crashes or comes late, and with two operators at work.

Relays and transceivers that run may read their Secrets as late as they like. Those whose container does not run, and
signaling, which reports nothing, read them within KUBELET_S. Pods that end read nothing any more. Pods of a node that
has lost the API server are not ready, read nothing, hear nothing of their end, answer nothing, and carry their calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.operator_keys import ACTIVE_FOR, CLUSTERS, DAY, SECRET_OF, ConflictError, World, fresh
from usher_core.errors import LocalError, RemoteError
from usher_core.ids import Route
from usher_core.keys import HopKeyRing, IceKeyRing, KeyFile, newest_active
from usher_operator import names
from usher_operator.actions import Action
from usher_operator.keys.holders import SETTLE_S, Holder
from usher_operator.keys.key_set import MAX_GENERATIONS
from usher_operator.plan.keys import LOOK_LAG_S, KeySettings, KeysPlan, plan_keys
from usher_operator.seen import PodSeen

KUBELET_S = SETTLE_S - LOOK_LAG_S - 20
"""The longest that a kubelet takes to bring a changed Secret to a pod."""
MOST_PODS = 3
MOST_CALLS = 12
ANY = st.integers(0, 1_000)
BOTH = ("relay", "transceiver")
KINDS = st.sampled_from([BOTH, BOTH, ("relay",), ("transceiver",), ()])


class Rings:
    """Rings of key files, made once: pods share what they read."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[KeyFile, IceKeyRing, HopKeyRing]] = {}

    def of(self, file: KeyFile) -> tuple[IceKeyRing, HopKeyRing]:
        """Return the rings of a file. Raises LocalError when it can't be used."""
        if id(file) not in self._made:
            self._made[id(file)] = (file, IceKeyRing(file.ice), HopKeyRing(file.hop))
        return self._made[id(file)][1:]


@dataclass
class Operator:
    """One replica: what its watch has shown it, and what it is about to do."""

    pods: dict[str, PodSeen] = field(default_factory=dict)
    watched_at: float = 0
    todo: list[Action] = field(default_factory=list)

    def watch(self, world: World) -> None:
        """See the pods as they are."""
        self.pods, self.watched_at = dict(world.pods), world.now


@dataclass(frozen=True)
class Call:
    """A call at a transceiver, by the ufrag that its client sends."""

    transceiver: str
    ufrag: bytes
    until: float

    @property
    def letter(self) -> str:
        """That of the key that made its ufrag."""
        return chr(self.ufrag[0])


class Rotation(RuleBasedStateMachine):
    """A namespace in which everything is late."""

    @initialize(seed=st.integers(0, 50), every=st.sampled_from([0, 3_600, DAY]))
    def begin(self, seed: int, every: float) -> None:
        self.world = World(seed=seed, settings=KeySettings(every, CLUSTERS))
        self.operators = [Operator(), Operator()]
        self.rings = Rings()
        self.calls: list[Call] = []
        self.signaling: dict[str, KeyFile] = {}
        self.written: dict[str, float] = {}
        self.cut_off: set[str] = set()
        self.number = 0
        self.world.settle()
        for kind in ("relay", "transceiver"):
            self._start(kind, ready=True)
        self.start_signaling()
        for operator in self.operators:
            operator.watch(self.world)

    # ---- operators

    def _seen_by(self, operator: Operator) -> KeysPlan:
        if self.world.now >= operator.watched_at + LOOK_LAG_S:
            operator.watch(self.world)

        self.world.ufrags = {name: Counter(call.letter for call in self._calls_of(name)) for name in self.world.pods}

        def holders(kind: str) -> tuple[Holder, ...]:
            live = {holder.pod.name: holder.held for holder in self.world.holders(kind)}
            return tuple(
                Holder(pod, live.get(pod.name))
                for pod in operator.pods.values()
                if pod.labels[names.COMPONENT_LABEL] == kind
            )

        seen = replace(self.world.seen(), relays=holders("relay"), transceivers=holders("transceiver"))
        self.world.draws += 1
        return plan_keys(seen, self.world.settings, self.world.now, fresh(self.world.seed, self.world.draws))

    @rule(which=st.integers(0, 1))
    def look(self, which: int) -> None:
        """An operator looks; it acts later. What it had in mind before is lost, as by a crash."""
        self._look(which)

    def _look(self, which: int) -> None:
        plan = self._seen_by(self.operators[which])
        assert plan.fault == "" or "is older than" in plan.fault, plan.fault
        self.operators[which].todo = list(plan.actions)

    @rule(which=st.integers(0, 1), steps=st.integers(1, 4))
    def act(self, which: int, steps: int) -> None:
        self._act(which, steps)

    def _act(self, which: int, steps: int) -> None:
        operator = self.operators[which]
        for _ in range(steps):
            if not operator.todo:
                return
            action = operator.todo.pop(0)
            before = dict(self.world.secrets)
            try:
                self.world.do(action)
            except ConflictError:
                operator.todo = []
            for name, secret in self.world.secrets.items():
                if before.get(name) is not secret:
                    self.written[name] = self.world.now

    @rule(which=st.integers(0, 1))
    def come_to_rest(self, which: int) -> None:
        """An operator does all that it can do now."""
        self._come_to_rest(which)

    def _come_to_rest(self, which: int) -> None:
        for _ in range(20):
            self._look(which)
            if not self.operators[which].todo:
                return
            self._act(which, 10)

    @rule(which=st.integers(0, 1))
    def watch(self, which: int) -> None:
        self.operators[which].watch(self.world)

    # ---- people

    @rule(is_heard=st.booleans())
    def demand(self, is_heard: bool) -> None:
        self.number += 1
        self.world.demand(f"wish {self.number}")
        if is_heard:
            self._come_to_rest(0)

    @rule(cluster=st.integers(1, 5))
    def new_pool(self, cluster: int) -> None:
        self.world.clusters |= {cluster}

    @rule(longest=st.sampled_from([0, 600, ACTIVE_FOR]))
    def say_how_long_calls_last(self, longest: float) -> None:
        """`maxSessionAge` of a paused pool changes, or its whole spec can't be read: its pods keep to the old one."""
        self.world.longest_call = longest

    # ---- pods

    def _names(self, kind: str, test: Callable[[PodSeen], bool] = lambda pod: True) -> list[str]:
        return [
            name for name, pod in self.world.pods.items() if pod.labels[names.COMPONENT_LABEL] == kind and test(pod)
        ]

    def _start(self, kind: str, *, ready: bool) -> None:
        self.number += 1
        self.world.start(kind, f"{kind}-{self.number}", ready=ready)

    @rule(kind=st.sampled_from(sorted(SECRET_OF)))
    def start(self, kind: str) -> None:
        if len(self._names(kind)) < MOST_PODS:
            self._start(kind, ready=False)

    @rule(pick=ANY, ready=st.booleans(), waits=st.booleans())
    def change_readiness(self, pick: int, ready: bool, waits: bool = False) -> None:
        """A pod gets ready, or is not any more: it still runs, or its container waits to be started again."""
        pods = [pod for pod in self.world.pods.values() if pod.deleted_at is None and pod.name not in self.cut_off]
        if pods:
            pod = pods[pick % len(pods)]
            reason = "CrashLoopBackOff" if waits and not ready else ""
            if reason:
                self.calls = [call for call in self.calls if call.transceiver != pod.name]
            self.world.pods[pod.name] = replace(pod, ready=ready, phase="Running", waiting_reason=reason)

    @rule(pick=ANY)
    def lose_a_node(self, pick: int) -> None:
        """The node of a pod no longer reaches the API server."""
        pods = [pod for pod in self.world.pods.values() if pod.ready]
        if pods:
            pod = pods[pick % len(pods)]
            self.cut_off.add(pod.name)
            self.world.silent.add(pod.name)
            self.world.pods[pod.name] = replace(pod, ready=False)

    @precondition(lambda self: self.cut_off)
    @rule(pick=ANY)
    def find_a_node(self, pick: int) -> None:
        """A node is back: its pods are ready, or end if that is overdue."""
        name = sorted(self.cut_off)[pick % len(self.cut_off)]
        self.cut_off.remove(name)
        self.world.silent.remove(name)
        self.world.pods[name] = replace(self.world.pods[name], ready=True)
        self._pass(0)

    @rule(pick=ANY, grace=st.sampled_from([0, 30, 90, 3_600]))
    def end(self, pick: int, grace: float) -> None:
        running = [name for name, pod in self.world.pods.items() if pod.deleted_at is None]
        if running:
            self.world.end(running[pick % len(running)], grace)
            self._pass(0)

    @rule(kinds=KINDS)
    def ready_ones_reload(self, kinds: tuple[str, ...]) -> None:
        self._reload_ready(kinds)

    @rule(first=KINDS, second=KINDS, third=KINDS, hours=st.integers(0, 8))
    def rotate(self, first: tuple[str, ...], second: tuple[str, ...], third: tuple[str, ...], hours: int) -> None:
        """A whole rotation, in which some come late."""
        self.number += 1
        self.world.demand(f"wish {self.number}")
        for kinds, seconds in ((first, LOOK_LAG_S), (second, hours * 3_600), (third, 0)):
            self._come_to_rest(0)
            self._reload_ready(kinds)
            self.nobody_loses_a_call()
            self._pass(seconds)

    def _reload_ready(self, kinds: tuple[str, ...]) -> None:
        for name in [name for kind in kinds for name in self._names(kind, lambda pod: pod.ready)]:
            self.world.reload(name)

    @rule(pick=ANY)
    def reload(self, pick: int) -> None:
        reached = [name for name in self.world.pods if name not in self.cut_off]
        if reached:
            self.world.reload(reached[pick % len(reached)])

    @rule()
    def start_signaling(self) -> None:
        if len(self.signaling) < MOST_PODS:
            self.number += 1
            self.signaling[f"signaling-{self.number}"] = self.world.file(names.SIGNALING_KEYS_SECRET)

    @precondition(lambda self: self.signaling)
    @rule(pick=ANY)
    def reload_signaling(self, pick: int) -> None:
        name = sorted(self.signaling)[pick % len(self.signaling)]
        self.signaling[name] = self.world.file(names.SIGNALING_KEYS_SECRET)

    # ---- time

    @rule(seconds=st.sampled_from([1, 5, 12, 60, 200, 900]))
    def wait(self, seconds: int) -> None:
        self._pass(seconds)

    @rule(hours=st.integers(1, 8))
    def wait_long(self, hours: int) -> None:
        for _ in range(hours):
            self._pass(3_600)

    def _pass(self, seconds: float) -> None:
        """Let time pass, and let happen what must happen until then."""
        end = self.world.now + seconds
        while True:
            due = [time for time in self._deadlines() if time > self.world.now]
            self.world.now = min([*due, end])
            self._keep_deadlines()
            if self.world.now >= end:
                return
            self.nobody_loses_a_call()

    def _deadlines(self) -> Iterator[float]:
        yield from (time + KUBELET_S for time in self.written.values())
        yield from (pod.deleted_at for pod in self.world.pods.values() if pod.deleted_at is not None)

    def _keep_deadlines(self) -> None:
        now = self.world.now
        for name, pod in list(self.world.pods.items()):
            if name in self.cut_off:
                continue
            if pod.deleted_at is not None and pod.deleted_at <= now:
                del self.world.pods[name], self.world.files[name]
            elif not _runs(pod) and self._is_due(SECRET_OF[pod.labels[names.COMPONENT_LABEL]]):
                self.world.reload(name)
        if self._is_due(names.SIGNALING_KEYS_SECRET):
            self.signaling = dict.fromkeys(self.signaling, self.world.file(names.SIGNALING_KEYS_SECRET))
        self.calls = [call for call in self.calls if call.until > now and call.transceiver in self.world.pods]

    def _is_due(self, secret: str) -> bool:
        return self.world.now >= self.written.get(secret, 0) + KUBELET_S

    # ---- what holds

    def _carries_calls(self, pod: PodSeen) -> bool:
        return pod.ready or pod.name in self.cut_off

    @rule(pick=ANY, random=st.binary(min_size=5, max_size=5))
    def call(self, pick: int, random: bytes) -> None:
        transceivers = self._names("transceiver", _runs)
        if transceivers and len(self.calls) < MOST_CALLS:
            name = transceivers[pick % len(transceivers)]
            for cluster in self._clusters_of(name):
                self.calls.append(Call(name, self._ufrag(name, cluster, random), self.world.now + ACTIVE_FOR))

    def _calls_of(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.transceiver == name]

    def _clusters_of(self, name: str) -> tuple[int, ...]:
        return self.world.files[name].ice[0].clusters

    def _ufrag(self, name: str, cluster: int, random: bytes) -> bytes:
        ring, _ = self.rings.of(self.world.files[name])
        return ring.make(Route(cluster, 7), random, self.world.now)[0].encode()

    @invariant()
    def nobody_loses_a_call(self) -> None:
        relays = self._names("relay", self._carries_calls)
        for name in self._names("transceiver"):
            for cluster in self._clusters_of(name):
                self._opened_by_all(relays, self._ufrag(name, cluster, b"fresh"), f"a new call of {name}")
        for call in self.calls:
            self._opened_by_all(relays, call.ufrag, f"a call of {call.transceiver}")

    def _opened_by_all(self, relays: list[str], ufrag: bytes, what: str) -> None:
        for relay in relays:
            try:
                self.rings.of(self.world.files[relay])[0].open(ufrag)
            except RemoteError as error:
                raise AssertionError(f"{relay} does not open {what}: {error.reason}") from error

    @invariant()
    def hop_datagrams_verify_at_the_other_side(self) -> None:
        relays = self._names("relay", self._carries_calls)
        transceivers = self._names("transceiver", self._carries_calls)
        for one in relays:
            for other in transceivers:
                self._verifies(one, other)
                self._verifies(other, one)

    def _verifies(self, sender: str, receiver: str) -> None:
        number, key = self.rings.of(self.world.files[sender])[1].active(self.world.now)
        held: dict[int, Any] = {each.id: each.key for each in self.world.files[receiver].hop}
        assert held.get(number) == key, f"{receiver} does not verify what {sender} sends"

    @invariant()
    def every_replica_opens_what_another_one_seals(self) -> None:
        for sender, file in self.signaling.items():
            key = newest_active(file.seal, self.world.now)
            assert key is not None
            for receiver, other in self.signaling.items():
                held = {each.id: each.key for each in other.seal}
                assert held.get(key.id) == key.key, f"{receiver} does not open what {sender} seals"

    @invariant()
    def keys_are_bounded_and_rings_take_them(self) -> None:
        assert len(self.world.keys.generations) <= MAX_GENERATIONS
        for file in self.world.files.values():
            try:
                self.rings.of(file)
            except LocalError as error:
                raise AssertionError(str(error)) from error


def _runs(pod: PodSeen) -> bool:
    return pod.phase == "Running" and not pod.waiting_reason


def begun() -> Rotation:
    machine = Rotation()
    machine.begin(seed=1, every=0)
    return machine


def check(machine: Rotation) -> None:
    machine.nobody_loses_a_call()
    machine.hop_datagrams_verify_at_the_other_side()
    machine.every_replica_opens_what_another_one_seals()


def test_a_relay_that_gets_ready_after_all_others_have_the_new_key() -> None:
    machine = begun()
    machine.start("relay")
    machine.rotate(first=BOTH, second=("transceiver",), third=(), hours=0)
    machine.change_readiness(pick=list(machine.world.pods).index("relay-4"), ready=True)
    check(machine)


def test_a_transceiver_that_ends_while_relays_go_on_to_the_new_key() -> None:
    machine = begun()
    machine.end(pick=list(machine.world.pods).index("transceiver-2"), grace=3_600)
    machine.call(pick=0, random=bytes(5))
    machine.rotate(first=BOTH, second=("relay",), third=(), hours=0)
    check(machine)


@pytest.mark.parametrize("name", ["relay-1", "transceiver-2"])
@pytest.mark.parametrize("grace", [None, 30])
def test_a_node_that_has_lost_the_api_server_carries_its_calls_on(name: str, grace: float | None) -> None:
    machine = begun()
    machine.start("relay")
    machine.change_readiness(pick=list(machine.world.pods).index("relay-4"), ready=True)
    machine.call(pick=0, random=bytes(5))
    machine.lose_a_node(pick=list(machine.world.pods).index(name))
    if grace is not None:
        machine.end(pick=list(machine.world.pods).index(name), grace=grace)
    machine.rotate(first=BOTH, second=BOTH, third=BOTH, hours=1)
    machine.come_to_rest(0)
    machine.ready_ones_reload(kinds=BOTH)
    check(machine)


def test_a_transceiver_that_goes_on_with_the_old_key_for_hours() -> None:
    machine = begun()
    machine.rotate(first=BOTH, second=("relay",), third=("relay",), hours=8)
    machine.wait_long(hours=3)
    machine.come_to_rest(0)
    machine.ready_ones_reload(kinds=("relay",))
    check(machine)


def test_a_call_that_is_longer_than_its_pool_says_by_now() -> None:
    machine = begun()
    machine.call(pick=0, random=bytes(5))
    machine.say_how_long_calls_last(longest=0)
    machine.rotate(first=BOTH, second=BOTH, third=BOTH, hours=0)
    machine.wait(200)
    machine.come_to_rest(0)
    machine.wait(900)
    machine.come_to_rest(0)
    machine.ready_ones_reload(kinds=BOTH)
    assert machine.calls
    check(machine)


def test_a_whole_rotation_comes_to_its_end() -> None:
    machine = begun()
    before = machine.world.keys.active.letter
    machine.rotate(first=BOTH, second=BOTH, third=BOTH, hours=0)
    machine.wait(200)
    machine.come_to_rest(0)
    machine.wait_long(hours=3)
    machine.come_to_rest(1)
    assert [each.letter for each in machine.world.keys.generations] != [before]
    assert len(machine.world.keys.generations) == 1
    check(machine)


TestRotation = Rotation.TestCase
TestRotation.settings = settings(max_examples=40, stateful_step_count=50)
