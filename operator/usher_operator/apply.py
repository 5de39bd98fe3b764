"""Carries out what a plan asks for, in order."""

from __future__ import annotations

import asyncio
import functools
import itertools
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from usher_operator.actions import (
    Action,
    Apply,
    Create,
    Delete,
    JsonPatch,
    Manifest,
    Reference,
    Replace,
    SetDrain,
    Tell,
)
from usher_operator.kube import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeApi,
    KubeError,
    NotFoundError,
    NotLeaderError,
    reference,
)
from usher_operator.loads import PodAnswerError, PodClient, ask_all
from usher_operator.names import FIELD_MANAGER
from usher_operator.times import timestamp

log = structlog.get_logger()

TELL_AGAIN_S = 600.0
MAX_TOLD = 1000
MAX_EVENT_MESSAGE = 1024
"""The API server takes no longer one."""
DRAINS_S = 20.0
"""For all drains that follow one another: those that answer take ms each, silent ones seconds."""
PATCHES_AT_ONCE = 8
"""Of those that stand alone, such as the ids of pods: few enough that the API server has time for others."""
KEEP_TRIES = 5
MAX_FAULTS = 8
"""Refusals of one plan that are told: a policy may be against every pod."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that a person has to change: the API server refuses it. `reason` is a condition's."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan.

    Attributes:
        faults: what was refused, the first MAX_FAULTS.
        silent: the transceivers that did not answer, and why.
        lost: the objects whose own patch met a conflict.
    """

    faults: tuple[Fault, ...] = ()
    silent: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """The pool that a plan is about."""

    target: Reference
    uid: str


class Applier:
    """Carries out plans.

    Args:
        api: the API server.
        pods: speaks to transceivers.
        wall: Unix seconds.
    """

    def __init__(self, api: KubeApi, pods: PodClient, wall: Callable[[], float]) -> None:
        self._api = api
        self._pods = pods
        self._wall = wall
        self._told: dict[tuple[str, str, str], float] = {}
        self._written: dict[str, tuple[Manifest, Any]] = {}

    async def carry_out(self, actions: Iterable[Action], subject: Subject, token: str) -> Outcome:
        """Do one thing after the other, but drains, and patches that stand alone, several at once.

        A child that the API server refuses for good (a bad field, a missing right) does not keep the rest from being
        done: a pool whose new template is wrong still gives ids to its pods. Nor does a patch that stands alone, as
        that of a pod that can't be changed, nor a transceiver that is silent, but for the patches that wait for it.
        Any other failure ends the course, since what follows may rest on it, as ids rest on the Lease.

        Raises KubeError: ConflictError when somebody was faster (plan again soon), UnavailableError and others when
        nothing more can be done now.
        """
        faults: list[Fault] = []
        silent: dict[str, str] = {}
        lost: list[str] = []

        async def do(action: Action) -> bool:
            """Return whether to go on."""
            if isinstance(action, JsonPatch) and not silent.keys().isdisjoint(action.waits_for):
                return True
            try:
                await self._do(action, subject)
            except ConflictError:
                if not _stands_alone(action):
                    raise
                lost.append(_what(action))
            except (InvalidError, ForbiddenError, NotFoundError) as error:
                log.warning("refused by the API server", pool=subject.target.name, error=str(error))
                if len(faults) < MAX_FAULTS:
                    faults.append(_fault(action, error))
                return _stands_alone(action) or isinstance(action, Apply)
            return True

        for kind, group in itertools.groupby(actions, lambda each: (isinstance(each, SetDrain), _stands_alone(each))):
            match kind:
                case (True, _):
                    silent |= await self._tell_all([each for each in group if isinstance(each, SetDrain)], token)
                case (_, True):
                    await _some_at_once(do, group)
                case _:
                    for action in group:
                        if not await do(action):
                            return Outcome(tuple(faults), tuple(silent.values()), tuple(lost))
        return Outcome(tuple(faults), tuple(silent.values()), tuple(lost))

    async def write_status(self, subject: Subject, status: Manifest, current: Any) -> None:
        """Write the status if it differs from the current one.

        The API server may add defaults, so that what comes back is never quite what was sent; that is remembered.
        """
        if current == status or self._written.get(subject.uid) == (status, current):
            return
        answer = await self._api.apply_status(subject.target, status)
        self._written[subject.uid] = (status, answer.get("status"))

    def forget(self, uid: str) -> None:
        """The pool is gone."""
        self._written.pop(uid, None)

    async def _do(self, action: Action, subject: Subject) -> None:
        match action:
            case Apply(manifest, keeps):
                await (self._apply_keeping(manifest, keeps) if keeps else self._api.apply(manifest))
            case Create(manifest):
                await self._api.create(manifest)
            case Replace(manifest):
                await self._api.replace(manifest)
            case JsonPatch(target, operations):
                await self._patch(target, operations)
            case Delete(target, uid):
                await self._api.delete(target, uid)
            case Tell():
                await self._tell(action, subject)

    async def _tell_all(self, drains: Iterable[SetDrain], token: str) -> dict[str, str]:
        """Tell transceivers to drain or not to, all at once, and return those that did not answer, with the reason."""
        answers = await ask_all({action.pod: self._set_drain(action, token) for action in drains}, DRAINS_S)
        late = f"not in the {DRAINS_S:g} s that all had"
        silent = {}
        for pod, reason in answers.items():
            if isinstance(reason, asyncio.CancelledError):
                silent[pod] = f"{pod}: {late}"
            elif isinstance(reason, PodAnswerError):
                silent[pod] = f"{pod}: {reason}"
            elif isinstance(reason, BaseException):
                raise reason
        return silent

    async def _set_drain(self, action: SetDrain, token: str) -> None:
        await self._pods.set_drain(action.http, token, drain=action.drain)

    async def _apply_keeping(self, manifest: Manifest, keeps: Iterable[tuple[str, ...]]) -> None:
        """Apply with what is there at some paths, by compare-and-swap: nobody's change of them is lost."""
        for tries_left in reversed(range(KEEP_TRIES)):
            there = await self._api.get(reference(manifest))
            if there is None:
                await self._api.apply(manifest)
                return
            wanted = functools.reduce(lambda body, path: _with_value_of(there, body, path), keeps, manifest)
            try:
                await self._api.apply(_with_value_of(there, wanted, ("metadata", "resourceVersion")))
            except ConflictError:
                # Controllers write its status all the time.
                if not tries_left:
                    raise
            else:
                return

    async def _patch(self, target: Reference, operations: Any) -> None:
        try:
            await self._api.json_patch(target, operations)
        except NotFoundError:
            # It ended between the look and now; the next look won't see it.
            log.debug("nothing to patch any more", kind=target.kind, name=target.name)

    async def _tell(self, event: Tell, subject: Subject) -> None:
        now = self._wall()
        key = (subject.uid, event.reason, event.message)
        if now - self._told.get(key, float("-inf")) < TELL_AGAIN_S:
            return
        self._told = {known: at for known, at in self._told.items() if now - at < TELL_AGAIN_S}
        if len(self._told) >= MAX_TOLD:
            self._told.pop(next(iter(self._told)))
        self._told[key] = now
        try:
            await self._api.create(_event(event, subject, now))
        except NotLeaderError:
            raise
        except KubeError as error:
            # Events help people; nothing rests on them.
            log.warning("an Event could not be posted", reason=event.reason, error=str(error))


def _stands_alone(action: Action) -> bool:
    return isinstance(action, JsonPatch) and action.stands_alone


async def _some_at_once(do: Callable[[Action], Awaitable[object]], actions: Iterable[Action]) -> None:
    """Begin the next one whenever one of PATCHES_AT_ONCE is done. The first error ends the others, too."""
    waiting = iter(actions)

    async def work() -> None:
        for action in waiting:
            await do(action)

    tasks = [asyncio.create_task(work()) for _ in range(PATCHES_AT_ONCE)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _fault(action: Action, error: KubeError) -> Fault:
    """Return what a condition says of a refusal: what was refused, what to do, and why."""
    what = _what(action)
    if isinstance(error, ForbiddenError):
        fix = "give the operator's ServiceAccount that right, or see which policy is against it"
        return Fault("Forbidden", f"The API server forbids {what}; {fix}: {error}")
    if isinstance(action, Apply):
        fix = "change what spec of this pool sets there; the last good state goes on meanwhile"
    else:
        fix = "see whether a policy or a webhook of the cluster is against it"
    return Fault("Refused", f"The API server refuses {what}; {fix}: {error}")


def _with_value_of(source: Manifest, target: Manifest, path: tuple[str, ...]) -> Manifest:
    """Return `target` with the value that `source` has at a path, if it has one."""
    name, *rest = path
    if name not in source:
        return target
    return {**target, name: _with_value_of(source[name], target.get(name, {}), tuple(rest)) if rest else source[name]}


def _what(action: Action) -> str:
    match action:
        case Apply(manifest) | Create(manifest) | Replace(manifest):
            target = reference(manifest)
        case JsonPatch(target) | Delete(target):
            pass
        case SetDrain(pod):
            return f"Pod {pod}"
        case Tell(reason=reason):
            return f"Event {reason}"
    return f"{target.kind} {target.namespace}/{target.name}"


def _event(event: Tell, subject: Subject, now: float) -> Manifest:
    target = subject.target
    message = event.message
    if len(message) > MAX_EVENT_MESSAGE:
        message = message[: MAX_EVENT_MESSAGE - 1] + "…"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{target.name[:200]}.{uuid.uuid4().hex[:16]}", "namespace": target.namespace},
        "involvedObject": {
            "apiVersion": target.api_version,
            "kind": target.kind,
            "namespace": target.namespace,
            "name": target.name,
            "uid": subject.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": message,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
    }
