"""Carries out what a plan asks for, in order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
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
from usher_operator.conditions import timestamp
from usher_operator.kube import ForbiddenError, InvalidError, KubeApi, KubeError, NotFoundError, NotLeaderError
from usher_operator.loads import PodAnswerError, PodClient
from usher_operator.names import FIELD_MANAGER

log = structlog.get_logger()

TELL_AGAIN_S = 600.0
MAX_TOLD = 1000
MAX_EVENT_MESSAGE = 1024
"""The API server takes no longer one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that a person has to change: the API server refuses it. `reason` is a condition's."""

    reason: str
    message: str


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

    async def carry_out(self, actions: Iterable[Action], subject: Subject, token: str) -> tuple[Fault, ...]:
        """Do one thing after the other.

        A child that the API server refuses for good (a bad field, a missing right) does not keep the rest from being
        done: a pool whose new template is wrong still gives ids to its pods. Any other failure ends the course, since
        what follows may rest on it: ids on the Lease, a smaller Deployment on a drain.

        Returns what was refused. Raises KubeError: ConflictError when somebody was faster (plan again soon),
        UnavailableError and others when nothing more can be done now; PodAnswerError.
        """
        faults: list[Fault] = []
        for action in actions:
            try:
                await self._do(action, subject, token)
            except (InvalidError, ForbiddenError, NotFoundError) as error:
                log.warning("refused by the API server", pool=subject.target.name, error=str(error))
                faults.append(Fault("Forbidden" if isinstance(error, ForbiddenError) else "Refused", str(error)))
                if not isinstance(action, Apply):
                    break
        return tuple(faults)

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

    async def _do(self, action: Action, subject: Subject, token: str) -> None:
        match action:
            case Apply(manifest):
                await self._api.apply(manifest)
            case Create(manifest):
                await self._api.create(manifest)
            case Replace(manifest):
                await self._api.replace(manifest)
            case JsonPatch(target, operations):
                await self._patch(target, operations)
            case Delete(target, uid):
                await self._api.delete(target, uid)
            case SetDrain(pod, http, drain):
                try:
                    await self._pods.set_drain(http, token, drain=drain)
                except PodAnswerError as error:
                    word = "drain" if drain else "take calls again"
                    raise PodAnswerError(f"transceiver {pod} was told to {word}: {error}") from None
            case Tell():
                await self._tell(action, subject)

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
