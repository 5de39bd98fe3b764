"""Scaling a TransceiverPool at random under calls: emptiest pods go, none is cut, none is left behind draining.

A small cluster: a ReplicaSet that deletes pods in Kubernetes' order, transceivers that drain, and an operator that
crashes between any two actions.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.transceiver_pools import NOW, drained, make_deployment, make_load, make_plan, make_pod, make_pool, value_set
from usher_operator.actions import Action, Apply, JsonPatch, Plan, SetDrain
from usher_operator.names import DELETION_COST_ANNOTATION, LAST_POD_ID_ANNOTATION
from usher_operator.plan.scale_down import ANSWER_LIMIT_S
from usher_operator.seen import PodSeen

STATE = "/metadata/labels/usher.fleet~1state"
MOST = 6
ROUNDS = 12
"""Looks within which an operator that is left alone has to bring all in order."""
STEPS = (1, 2, 3, 20, 20)
EVENTS = (
    *("operator_works",) * 5,
    *("replica_set_works",) * 4,
    *("a_call_is_placed",) * 5,
    *("people_scale",) * 3,
    "operator_crashes",
    "a_call_ends",
    "a_container_restarts",
    "a_pod_gets_ready",
    "a_pod_gets_unready",
    "a_pod_falls_silent",
    "a_pod_dies",
    "time_passes",
)


class UnansweredError(Exception):
    """A transceiver did not answer, or a patch lost."""


@dataclasses.dataclass
class Transceiver:
    """A pod and the process in it."""

    name: str
    created: float
    ready: bool = False
    state: str = "active"
    annotations: dict[str, str] = dataclasses.field(default_factory=lambda: {"kept": "yes"})
    drains: bool = False
    silent: bool = False
    sessions: int = 0

    @property
    def cost(self) -> int:
        return int(self.annotations.get(DELETION_COST_ANNOTATION, "0"))

    def seen(self) -> PodSeen:
        return make_pod(
            self.name,
            ready=self.ready,
            created_at=self.created,
            labels={"usher.fleet/state": self.state},
            annotations=dict(self.annotations),
        )


class ScaleDown(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.numbers = itertools.count()
        self.wanted = 3
        self.replicas = 3
        self.pods: list[Transceiver] = []
        self.doing: list[Action] = []

    @initialize()
    def start(self) -> None:
        self.replica_set_works()
        for pod in self.pods:
            pod.ready = True

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """One rule for all events: Hypothesis leaves out whole rules in most runs, and each is needed in all."""
        event = data.draw(st.sampled_from(EVENTS))
        match event:
            case "operator_works":
                self.operator_works(data.draw(st.sampled_from(STEPS)))
            case "replica_set_works":
                self.replica_set_works()
            case "people_scale":
                self.wanted = data.draw(st.integers(0, MOST))
            case "operator_crashes":
                self.doing = []
            case "time_passes":
                self.now += data.draw(st.sampled_from((1.0, 30.0, ANSWER_LIMIT_S)))
            case _ if self.pods:
                self.happens_to(event, data.draw(st.sampled_from(self.pods)))

    def happens_to(self, event: str, pod: Transceiver) -> None:
        match event:
            case "a_call_is_placed" if pod.ready and not pod.drains and not pod.silent:
                pod.sessions += 1
            case "a_call_ends" if pod.sessions:
                pod.sessions -= 1
            case "a_container_restarts":
                pod.sessions, pod.drains, pod.ready = 0, False, False
            case "a_pod_gets_ready":
                pod.ready = True
            case "a_pod_gets_unready":
                pod.ready = False
            case "a_pod_falls_silent":
                pod.silent = not pod.silent
            case "a_pod_dies":
                self.pods.remove(pod)

    def replica_set_works(self) -> None:
        """Make or delete pods until there are `replicas`, in the order of Kubernetes' ActivePodsWithRanks."""
        while len(self.pods) < self.replicas:
            self.pods.append(Transceiver(f"pod-{next(self.numbers)}", created=self.now))
        victims = sorted(self.pods, key=lambda pod: (pod.ready, pod.cost, -pod.created, pod.name))
        for pod in victims[: len(self.pods) - self.replicas]:
            assert not pod.ready or pod.state == "draining", f"{pod.name} was never told to drain"
            self.pods.remove(pod)

    def look(self) -> Plan:
        pool = make_pool({"replicas": self.wanted}, annotations={LAST_POD_ID_ANNOTATION: "5"})
        loads = {
            f"uid-of-{pod.name}": make_load(pod.sessions, draining=pod.drains) for pod in self.pods if not pod.silent
        }
        seen = [pod.seen() for pod in self.pods]
        plan = make_plan(pool, *seen, now=self.now, loads=loads, deployment=make_deployment(pool, self.replicas))
        self.check_choice(plan)
        return plan

    def check_choice(self, plan: Plan) -> None:
        """Of pods that stay, none was a better choice than one that is newly told to go."""
        going = {
            action.target.name
            for action in plan.actions
            if isinstance(action, JsonPatch) and value_set(action, STATE) == "draining"
        }
        told = {name for name, drain in drained(plan).items() if drain}
        chosen = [pod for pod in self.pods if pod.name in going]
        staying = [pod for pod in self.pods if pod.state == "active" and pod.name not in going | told]
        for pod in chosen:
            for other in staying:
                assert pod.ready <= other.ready, f"{pod.name} is ready, {other.name} is not and would go first"
                if pod.ready and other.ready and not other.silent:
                    assert not pod.silent
                    assert pod.sessions <= other.sessions, f"{other.name} was emptier than {pod.name}"

    def operator_works(self, steps: int) -> None:
        if not self.doing:
            self.doing = [action for action in self.look().actions if isinstance(action, Apply | JsonPatch | SetDrain)]
        try:
            for _ in range(min(steps, len(self.doing))):
                self.carry_out(self.doing.pop(0))
        except UnansweredError:
            self.doing = []

    def carry_out(self, action: Action) -> None:
        match action:
            case Apply(manifest) if manifest["kind"] == "Deployment":
                self.replicas = manifest["spec"]["replicas"]
            case JsonPatch(target, operations) if target.kind == "Deployment":
                if {"op": "test", "path": "/spec/replicas", "value": self.replicas} not in operations:
                    raise UnansweredError
                self.replicas = value_set(action, "/spec/replicas")
            case JsonPatch(target, _) if target.kind == "Pod":
                self.change_pod(action)
            case SetDrain(name, _, drain):
                pod = self.pod(name)
                if pod.silent:
                    raise UnansweredError
                pod.drains = drain

    def pod(self, name: str) -> Transceiver:
        found = next((pod for pod in self.pods if pod.name == name), None)
        if found is None:
            raise UnansweredError
        return found

    def change_pod(self, patch: JsonPatch) -> None:
        pod = self.pod(patch.target.name)
        for operation in patch.operations:
            name = operation["path"].rpartition("/")[2].replace("~1", "/")
            if operation["path"] == STATE:
                if operation["op"] == "test" and operation["value"] != pod.state:
                    raise UnansweredError
                pod.state = operation["value"]
            elif operation["op"] == "remove":
                del pod.annotations[name]
            elif operation["op"] == "add":
                pod.annotations[name] = operation["value"]

    def teardown(self) -> None:
        """Left alone, the operator brings about what is wanted, and every pod that stays takes calls."""
        for pod in self.pods:
            pod.silent = False
        for _ in range(ROUNDS):
            self.operator_works(100)
            self.replica_set_works()
            for pod in self.pods:
                pod.ready = True
        assert len(self.pods) == self.wanted
        assert [pod.name for pod in self.pods if pod.drains or pod.state != "active" or pod.cost] == []
        rest: list[Any] = [action for action in self.look().actions if isinstance(action, Apply | SetDrain)]
        assert rest == []


TestScaleDown = ScaleDown.TestCase
TestScaleDown.settings = settings(max_examples=60, stateful_step_count=40)
