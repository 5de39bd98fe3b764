"""Looks at one pool after the other: observe, plan, apply. Level-triggered: a look needs nothing of the one before."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog
from pydantic import ValidationError

from usher_core.errors import describe
from usher_operator import names
from usher_operator.actions import Action, Delete, Plan, Reference, Tell
from usher_operator.api.common import Condition
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.apply import MAX_FAULTS, Applier, Fault, Subject
from usher_operator.conditions import Verdict, with_verdict
from usher_operator.keys_keeper import KeysKeeper
from usher_operator.kube import (
    ConflictError,
    KubeApi,
    KubeError,
    NotLeaderError,
    UnauthorizedError,
    UnavailableError,
)
from usher_operator.metrics import OperatorMetrics
from usher_operator.observe import KeysView, Observer, Pool, is_deleting
from usher_operator.plan.events import News, Trouble, tell_changes
from usher_operator.plan.keys import KeysPlan
from usher_operator.render.transceiver import token_secret
from usher_operator.seen import RelayPoolSeen, TransceiverPoolSeen

log = structlog.get_logger()

KINDS: Mapping[str, type[Pool]] = {RelayPool.kind: RelayPool, TransceiverPool.kind: TransceiverPool}

LOOK_EVERY_S = 30.0
"""Without any event; a quarter of it more or less, so that pools don't look all at once."""
SETTLE_S = 0.05
"""After an event, so that a burst of them is one look."""
MAX_SETTLE_S = 1.0
CONFLICT_S = 0.1
MAX_CONFLICT_S = 5.0
CONFLICTS_TOLD = 10
"""Conflicts in a row, over half a minute: somebody is never so unlucky."""
REFUSED_S = 1.0
KEYS_S = 0.5
"""For a look at keys, which asks every program of the namespace, where the outcome of the last one is known."""
SILENT_POD_S = 2.0
ERROR_S = 0.25
MAX_ERROR_S = 10.0
"""Ten seconds after the API server is back at the latest, new pods get ids again."""
DELETING_S = 2.0
"""Between two looks at a pool that is being deleted, when its plan names no time."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """Names a pool."""

    kind: str
    namespace: str
    name: str

    @property
    def target(self) -> Reference:
        """The object."""
        return Reference(names.API_VERSION, self.kind, self.namespace, self.name)


class Plans(Protocol):
    """The pure half of the operator; `now` is Unix seconds."""

    def relay_pool(self, pool: RelayPool, seen: RelayPoolSeen, now: float) -> Plan:
        """Return what to do about a RelayPool."""
        ...

    def transceiver_pool(self, pool: TransceiverPool, seen: TransceiverPoolSeen, now: float) -> Plan:
        """Return what to do about a TransceiverPool."""
        ...

    def pod_ids(self, pool: TransceiverPool, seen: TransceiverPoolSeen, now: float) -> tuple[Action, ...]:
        """Return the part of it that gives ids to pods that wait; the loads need not be known."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """The outcome of a look.

    Attributes:
        again: seconds until the next one.
        done: of a pool that is being deleted: nothing is left of it to wait for.
        settled: whether the look went well, so that an event may bring the next one forward.
        took: seconds of work.
    """

    again: float
    done: bool = False
    settled: bool = True
    took: float = 0.0


@dataclass(slots=True)
class _State:
    """What is remembered of a pool between looks; nothing that correctness needs."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    failures: int = 0
    users: int = 0
    conflicts: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    """Objects whose patch met a conflict, and how often in a row."""
    began: float | None = None
    waiting_since: tuple[float, ...] = ()
    gave_ids: bool = False
    """Whether the last look did nothing else."""
    troubles: Mapping[str, Trouble] | None = None
    keys: KeysPlan | None = None
    keys_look: asyncio.Task[KeysPlan] | None = None


class Reconciler:
    """Looks at pools, and decides when to look again.

    Args:
        api: the API server.
        observer: reads what plans see.
        applier: carries plans out.
        keys: of namespaces.
        plans: the pure half.
        metrics: told of each look.
        clock: seconds that only go forward.
        wall: Unix seconds.
    """

    def __init__(
        self,
        api: KubeApi,
        observer: Observer,
        applier: Applier,
        keys: KeysKeeper,
        plans: Plans,
        metrics: OperatorMetrics,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._api = api
        self._observer = observer
        self._applier = applier
        self._keys = keys
        self._plans = plans
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._states: dict[PoolKey, _State] = {}

    def wake(self, key: PoolKey) -> None:
        """Something of that pool has changed: look soon."""
        if state := self._states.get(key):
            state.wake.set()

    def wake_namespace(self, namespace: str) -> None:
        """Something that all pools of a namespace share has changed."""
        for key, state in self._states.items():
            if key.namespace == namespace:
                state.wake.set()

    def working_since(self) -> float | None:
        """Return when the oldest look under way began; None: none is."""
        return min((state.began for state in self._states.values() if state.began is not None), default=None)

    async def follow(self, key: PoolKey) -> None:
        """Look at a pool again and again, until cancelled."""
        with self._using(key) as state:
            while True:
                state.wake.clear()
                await self._pause(state, await self.look(key))

    async def drain(self, key: PoolKey, at_most: float) -> bool:
        """Look at a pool that is being deleted until nothing is left to wait for, or for `at_most` seconds.

        Returns whether it is done.
        """
        end = self._clock() + at_most
        with self._using(key) as state:
            while True:
                state.wake.clear()
                look = await self.look(key)
                if look.done or self._clock() + look.again >= end:
                    return look.done
                await self._pause(state, look)

    @staticmethod
    async def _pause(state: _State, look: Look) -> None:
        """Wait for the next look: for an event, too, unless this one failed."""
        if not look.settled:
            await asyncio.sleep(look.again)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(look.again):
                await state.wake.wait()
            # As long as the look took, so that a storm of events takes half a core at most.
            await asyncio.sleep(max(SETTLE_S, min(look.took, MAX_SETTLE_S)))

    @contextlib.contextmanager
    def _using(self, key: PoolKey) -> Iterator[_State]:
        """Share what is remembered of a pool: the one that follows it may end after its drain has begun."""
        state = self._states.setdefault(key, _State())
        state.users += 1
        try:
            yield state
        finally:
            state.users -= 1
            if not state.users:
                del self._states[key]
                self._count_waiting()
                if state.keys_look is not None:
                    state.keys_look.cancel()
                    state.keys_look.add_done_callback(lambda look: look.cancelled() or look.exception())

    async def look(self, key: PoolKey) -> Look:
        """Look once. Never raises but when cancelled; one look at a time for each pool."""
        with self._using(key) as state:
            async with state.turn:
                began = state.began = self._clock()
                try:
                    look = await self._attempt(key, state)
                finally:
                    took = self._clock() - began
                    self._metrics.pass_seconds.labels(key.kind).observe(took)
                    state.began = None
        return replace(look, took=took)

    async def _attempt(self, key: PoolKey, state: _State) -> Look:
        try:
            look = await self._pass(key, state)
        except ConflictError as error:
            state.conflicts += 1
            self._count(key, "conflict", error.reason)
            log.info("somebody was faster; looking again", pool=key.name, error=str(error))
            if state.conflicts >= CONFLICTS_TOLD:
                fault = _never_taken(str(error))
                await self._say(key, Verdict("Ready", "False", fault.reason, fault.message[:1000]))
            return Look(_after_conflict(state.conflicts), settled=False)
        except KubeError as error:
            return await self._failed(key, state, error.reason, error)
        except Exception as error:
            # A fault of ours in one pool must not end the others.
            log.exception("a look at a pool failed; this is a fault of usher", pool=key.name)
            return await self._failed(key, state, "internal", error)
        state.failures = state.conflicts = 0
        self._count(key, "done")
        return look

    async def _pass(self, key: PoolKey, state: _State) -> Look:
        body = await self._api.get(key.target)
        if body is None:
            return Look(LOOK_EVERY_S, done=True)
        try:
            pool = KINDS[key.kind].model_validate(body)
        except ValidationError as error:
            await self._write_fault(key, body, Verdict("Accepted", "False", "InvalidSpec", describe(error)))
            if "deletionTimestamp" in body["metadata"]:
                return await self._end(key, Subject(key.target, body["metadata"]["uid"]))
            return Look(LOOK_EVERY_S * _jitter())
        subject = Subject(key.target, pool.metadata.uid)
        current = body.get("status")
        now = self._wall()
        if isinstance(pool, TransceiverPool):
            waiting = self._observer.waiting(pool)
            state.waiting_since = tuple(pod.created_at for pod in waiting)
            self._count_waiting()
            # Ids need no answer of a pod, so pods that wait come before all that may have to wait for answers.
            state.gave_ids = bool(waiting) and not state.gave_ids and await self._give_ids(pool, subject, state, now)
            if state.gave_ids:
                return Look(SETTLE_S)
        keys = await self._keys_of(pool, subject, state)
        if isinstance(pool, TransceiverPool):
            token = await self._observer.token(key.namespace, token_secret(pool))
            seen = await self._observer.transceiver_pool(pool, _view(pool, keys), token)
            plan = self._plans.transceiver_pool(pool, seen, now)
        else:
            token = ""
            plan = self._plans.relay_pool(pool, await self._observer.relay_pool(pool, _view(pool, keys)), now)
        outcome = await self._applier.carry_out(plan.actions, subject, token)
        state.lost = {what: state.lost.get(what, 0) + 1 for what in outcome.lost}
        stubborn = [_never_taken(what) for what, n in state.lost.items() if n >= CONFLICTS_TOLD]
        faults = (*outcome.faults, *stubborn[:MAX_FAULTS])
        status = with_faults(plan.status, faults, pool, now)
        await self._applier.write_status(subject, status, current)
        told = news(status, faults, pool, state.troubles, now)
        state.troubles = told.troubles
        await self._applier.carry_out(told.events, subject, token)
        if is_deleting(pool) and plan.done:
            await self._keys.current(subject, now=True)
        again = plan.look_again if plan.look_again is not None else LOOK_EVERY_S * _jitter()
        if is_deleting(pool) and plan.look_again is None:
            again = DELETING_S
        if told.look_again is not None:
            again = min(again, told.look_again)
        if outcome.lost:
            again = min(again, _after_conflict(max(state.lost.values())))
        if outcome.faults:
            again = max(again, REFUSED_S)
        if outcome.silent:
            # The plan knows of them from the loads; the status says it.
            self._count_silent(key, outcome.silent)
            again = min(again, SILENT_POD_S * _jitter())
        return Look(max(again, SETTLE_S), done=plan.done and is_deleting(pool))

    async def _end(self, key: PoolKey, subject: Subject) -> Look:
        """Let a deleted pool go whose spec tells nothing: its pods drain as they end, and all else stays till then."""
        left = False
        for found in await self._observer.workloads(key.kind, key.namespace, key.name, subject.uid):
            left = True
            metadata = found["metadata"]
            if "deletionTimestamp" not in metadata:
                target = Reference(found["apiVersion"], found["kind"], key.namespace, metadata["name"])
                await self._applier.carry_out([Delete(target, metadata["uid"])], subject, "")
        if left or self._observer.pods_of(key.kind, key.namespace, key.name):
            return Look(DELETING_S)
        await self._keys.current(subject, now=True)
        return Look(DELETING_S, done=True)

    async def _give_ids(self, pool: TransceiverPool, subject: Subject, state: _State, now: float) -> bool:
        """Give ids to pods that wait, as far as the last verdict about the keys lets us. Returns whether any was."""
        keys = state.keys or _keys_before(pool)
        if keys is None:
            return False
        actions = self._plans.pod_ids(pool, await self._observer.transceiver_pool(pool, _view(pool, keys), None), now)
        await self._applier.carry_out(actions, subject, "")
        return bool(actions)

    async def _keys_of(self, pool: Pool, subject: Subject, state: _State) -> KeysPlan:
        """Return the newest outcome of a look at keys. One that takes long goes on while the last outcome holds."""
        look = state.keys_look = state.keys_look or asyncio.create_task(self._look_at_keys(subject))
        known = state.keys or _keys_before(pool)
        done, _ = await asyncio.wait([look], timeout=None if known is None else KEYS_S)
        if known is not None and not done:
            look.add_done_callback(lambda _: state.wake.set())
            return known
        state.keys_look = None
        state.keys = look.result()
        return state.keys

    async def _look_at_keys(self, subject: Subject) -> KeysPlan:
        """Keys that can't be looked after are a fault of theirs; the pool's other affairs go on."""
        try:
            return await self._keys.current(subject)
        except (ConflictError, NotLeaderError, UnauthorizedError, UnavailableError):
            raise
        except Exception as error:
            reason = error.reason if isinstance(error, KubeError) else "internal"
            if reason == "internal":
                log.exception("a look at keys failed; this is a fault of usher", namespace=subject.target.namespace)
            self._metrics.errors.labels(reason).inc()
            return KeysPlan((), (), fault=f"the operator can't look after the keys: {error}"[:1000])

    async def _failed(self, key: PoolKey, state: _State, reason: str, error: Exception) -> Look:
        state.failures += 1
        self._count(key, "error", reason)
        again = min(ERROR_S * 2 ** min(state.failures - 1, 10), MAX_ERROR_S) * _jitter()
        log.warning(
            "a look at a pool failed", pool=key.name, reason=reason, error=str(error), again_in_s=round(again, 1)
        )
        if reason not in ("unavailable", "not_leader") and state.failures > 1:
            text = f"the operator tries again: {error}"[:1000]
            await self._say(key, Verdict("Ready", "False", "ReconcileFailed", text))
        return Look(again, settled=False)

    async def _say(self, key: PoolKey, verdict: Verdict) -> None:
        """Write a condition, if it can be written at all."""
        try:
            if body := await self._api.get(key.target):
                await self._write_fault(key, body, verdict)
        except KubeError as error:
            log.debug("nor could the status be written", pool=key.name, error=str(error))

    async def _write_fault(self, key: PoolKey, body: Mapping[str, Any], verdict: Verdict) -> None:
        """Change one condition of a status that can't be made anew."""
        status = dict(body.get("status") or {})
        previous = [Condition.model_validate(entry) for entry in status.get("conditions", ())]
        generation = body["metadata"].get("generation", 0)
        status["conditions"] = with_verdict(status.get("conditions", ()), verdict, previous, generation, self._wall())
        subject = Subject(key.target, body["metadata"]["uid"])
        await self._applier.write_status(subject, status, body.get("status"))

    def _count(self, key: PoolKey, outcome: str, reason: str = "") -> None:
        self._metrics.passes.labels(key.kind, outcome).inc()
        if reason:
            self._metrics.errors.labels(reason).inc()

    def _count_silent(self, key: PoolKey, silent: tuple[str, ...]) -> None:
        self._metrics.errors.labels("pod_silent").inc()
        log.info("transceivers do not do what they are told", pool=key.name, pods=len(silent), first=silent[0])

    def _count_waiting(self) -> None:
        waiting = [since for state in self._states.values() for since in state.waiting_since]
        self._metrics.pods_waiting.set(len(waiting))
        self._metrics.pods_waiting_seconds.set(max(0.0, self._wall() - min(waiting)) if waiting else 0.0)


def with_faults(status: Mapping[str, Any], faults: tuple[Fault, ...], pool: Pool, now: float) -> Mapping[str, Any]:
    """Return a status whose Ready says what the API server refused of this pool."""
    if not faults:
        return status
    verdict = Verdict("Ready", "False", faults[0].reason, faults[0].message[:1000])
    conditions = with_verdict(
        status.get("conditions", ()), verdict, pool.status.conditions, pool.metadata.generation, now
    )
    return {**status, "conditions": conditions}


def news(
    status: Mapping[str, Any],
    faults: tuple[Fault, ...],
    pool: Pool,
    troubles: Mapping[str, Trouble] | None,
    now: float,
) -> News:
    """Return what to tell people of a look: each refusal, and what else has changed in the conditions."""
    told = [Tell("Warning", fault.reason, fault.message) for fault in faults]
    refused = {fault.reason for fault in faults}
    changes = tell_changes(status.get("conditions", ()), pool.status.conditions, troubles, now)
    return replace(changes, events=(*told, *(each for each in changes.events if each.reason not in refused)))


def _never_taken(what: str) -> Fault:
    """Return what is wrong where a change is never taken; that somebody else is faster looks just like it."""
    text = (
        f"{CONFLICTS_TOLD} changes in a row met a conflict; see which program writes that object all the time, or "
        f"which policy or webhook is against the change; the operator goes on trying: {what}"
    )
    return Fault("Conflict", text)


def _after_conflict(times: int) -> float:
    return min(CONFLICT_S * 2.0 ** min(times - 1, 6), MAX_CONFLICT_S) * _jitter()


def _keys_before(pool: Pool) -> KeysPlan | None:
    """Return the last outcome of a look at keys, as far as a status tells; None: not known, or not good."""
    if not isinstance(pool, TransceiverPool):
        return None
    if pool.spec.keys.secret_ref is not None:
        return KeysPlan((), ())
    ready = next((each for each in pool.status.conditions if each.type == "KeysReady"), None)
    if ready is None or ready.status != "True" or pool.status.cluster_id is None:
        return None
    note = ready.message if ready.reason == "Rotating" else ""
    return KeysPlan((), tuple(pool.status.key_ids), note=note, served=frozenset([pool.status.cluster_id]))


def _view(pool: Pool, keys: KeysPlan) -> KeysView:
    if pool.spec.keys.secret_ref is not None:
        return KeysView(transceiver_keys=keys.transceiver_keys)
    if isinstance(pool, TransceiverPool):
        return KeysView(keys.key_ids, keys.fault_for(pool.status.cluster_id or pool.spec.cluster_id), keys.note)
    return KeysView(keys.key_ids, keys.fault, keys.note, keys.transceiver_keys)


def _jitter() -> float:
    return random.uniform(0.75, 1.25)  # noqa: S311  (no secret)
