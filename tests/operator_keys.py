"""A namespace with its Secrets and programs, for tests of the planning of keys: no API, no clock."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from usher_core.internal_api import HeldKeys
from usher_core.keys import KeyFile, held_keys, parse_key_file
from usher_operator import names
from usher_operator.actions import Create, Delete, Replace, Tell
from usher_operator.keys.key_set import Generation, KeySet
from usher_operator.keys.neighbours import Neighbour
from usher_operator.keys.secrets import read_key_set
from usher_operator.plan.keys import (
    FRESH_BYTES,
    LOOK_LAG_S,
    Holder,
    KeySettings,
    KeysPlan,
    KeysSeen,
    plan_keys,
)
from usher_operator.seen import PodSeen

NOW = 1_800_000_000.0
DAY = 86_400.0
ACTIVE_FOR = 7_200.0
"""The longest call."""
CLUSTERS = (1000, 1001)
NAMESPACE = "calls"
SECRET_OF = {"relay": names.RELAY_KEYS_SECRET, "transceiver": names.TRANSCEIVER_KEYS_SECRET}


class ConflictError(Exception):
    """409: another one was first."""


parsed = cache(parse_key_file)
"""Pods that read the same text share one file."""


def fresh(seed: int, draw: int) -> bytes:
    """Return what stands for random bytes, other ones for each draw."""
    return hashlib.shake_256(f"{seed} {draw}".encode()).digest(FRESH_BYTES)


def pod(kind: str, name: str, *, ready: bool = True, phase: str = "Running", ip: str = "10.0.0.1") -> PodSeen:
    """Return a pod of that kind."""
    labels = names.child_labels(kind, "pool")
    return PodSeen(
        name=name,
        namespace=NAMESPACE,
        uid=f"uid-{name}",
        resource_version="1",
        labels=labels,
        annotations={},
        has_annotations=False,
        created_at=NOW,
        deleted_at=None,
        phase=phase,
        ready=ready,
        ip=ip,
        node="node-1",
        gates=(),
        waiting_reason="",
        restarts=0,
    )


@dataclass
class World:
    """The namespace. `files`: what each pod has read; `silent`: pods that don't answer."""

    seed: int = 0
    now: float = NOW
    settings: KeySettings = field(default_factory=lambda: KeySettings(0, CLUSTERS))
    clusters: frozenset[int] = frozenset()
    longest_call: float = ACTIVE_FOR
    secrets: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    pods: dict[str, PodSeen] = field(default_factory=dict)
    files: dict[str, KeyFile] = field(default_factory=dict)
    ufrags: dict[str, dict[str, int]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    neighbours: tuple[Neighbour, ...] = ()
    told: list[Tell] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    draws: int = 0
    version: int = 0

    # What the operator sees and does.

    def seen(self) -> KeysSeen:
        """Return a look at the namespace."""
        return KeysSeen(
            namespace=NAMESPACE,
            secrets=dict(self.secrets),
            relays=self.holders("relay"),
            transceivers=self.holders("transceiver"),
            clusters=self.clusters,
            longest_call=self.longest_call,
            is_wanted=True,
            neighbours=self.neighbours,
        )

    def holders(self, kind: str) -> tuple[Holder, ...]:
        """Return the pods of a kind with their answers."""
        return tuple(
            Holder(each, self._answer(each.name))
            for each in self.pods.values()
            if each.labels[names.COMPONENT_LABEL] == kind
        )

    def _answer(self, name: str) -> HeldKeys | None:
        pod = self.pods[name]
        if name in self.silent or name not in self.files or pod.phase != "Running" or pod.waiting_reason:
            return None
        return HeldKeys(keys=held_keys(self.files[name]), ufrags=self.ufrags.get(name, {}))

    def look(self) -> KeysPlan:
        """Return what an operator would do now."""
        plan = plan_keys(self.seen(), self.settings, self.now, fresh(self.seed, self.draws))
        self.draws += 1
        return plan

    def apply(self, plan: KeysPlan) -> None:
        """Carry out a plan. Raises ConflictError at the first action that lost a race."""
        for action in plan.actions:
            self.do(action)

    def do(self, action: object) -> None:
        """Carry out one action as the API would. Raises ConflictError."""
        match action:
            case Tell():
                self.told.append(action)
            case Create(manifest):
                if manifest["metadata"]["name"] in self.secrets:
                    raise ConflictError
                self._store(manifest)
            case Replace(manifest):
                there = self.secrets.get(manifest["metadata"]["name"])
                version = manifest["metadata"]["resourceVersion"]
                if there is None or there["metadata"]["resourceVersion"] != version:
                    raise ConflictError
                self._store(manifest)
            case Delete(target):
                del self.secrets[target.name]
            case _:
                raise AssertionError(action)

    def _store(self, manifest: Mapping[str, Any]) -> None:
        self.version += 1
        name = manifest["metadata"]["name"]
        metadata = {**manifest["metadata"], "uid": f"uid-{name}", "resourceVersion": str(self.version)}
        self.secrets[name] = {**manifest, "metadata": metadata}
        if name == names.KEY_SET_SECRET:
            known = {each.ufrag_key for each in self.generations}
            self.generations += [each for each in self.keys.generations if each.ufrag_key not in known]

    def settle(self) -> KeysPlan:
        """Look and act until there is nothing to do at this moment; return the last plan."""
        for _ in range(30):
            plan = self.look()
            self.apply(plan)
            if plan.look_again != 0:
                return plan
        raise AssertionError("the operator never comes to rest")

    def rotate_through(self) -> KeysPlan:
        """Let all programs follow until nothing moves any more but time."""
        for _ in range(4):
            plan = self.settle()
            self.wait(LOOK_LAG_S)
            self.reload_all()
        return plan

    # What people, kubelets and programs do.

    @property
    def keys(self) -> KeySet:
        """The stored key set."""
        return read_key_set(self.secrets[names.KEY_SET_SECRET])

    def file(self, name: str) -> KeyFile:
        """Return the key file in a Secret."""
        return parsed(base64.b64decode(self.secrets[name]["data"][names.KEYS_FILE]).decode())

    def demand(self, text: str) -> None:
        """Ask for a rotation as `usher keys rotate` does."""
        secret = self.secrets[names.KEY_SET_SECRET]
        self.version += 1
        metadata = {**secret["metadata"], "resourceVersion": str(self.version)}
        metadata["annotations"] = {**metadata["annotations"], names.ROTATE_ANNOTATION: text}
        self.secrets[names.KEY_SET_SECRET] = {**secret, "metadata": metadata}

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def start(self, kind: str, name: str, *, ready: bool = True) -> None:
        """Start a pod: its files are what the Secret holds now. One that is not ready yet does not run yet."""
        self.pods[name] = pod(kind, name, ready=ready, phase="Running" if ready else "Pending")
        self.reload(name)

    def reload(self, name: str) -> None:
        """Let a pod read its Secret, unless it is ending."""
        if self.pods[name].deleted_at is None:
            self.files[name] = self.file(SECRET_OF[self.pods[name].labels[names.COMPONENT_LABEL]])

    def reload_all(self, but: str = "") -> None:
        """Let all pods read their Secrets, but one."""
        for name in self.pods:
            if name != but:
                self.reload(name)

    def end(self, name: str, grace: float) -> None:
        """Delete a pod: it goes on until its grace period is over."""
        self.pods[name] = replace(self.pods[name], deleted_at=self.now + grace)
