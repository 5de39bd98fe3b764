"""Which replica works: an election over one Lease object.

A leader writes the Lease again and again. It may believe that it leads until `renew_deadline` after it *sent* its last
write that succeeded. Others take over only when they have seen the Lease unchanged for `duration`, counted from when
they *received* it, and by a compare-and-swap. Each measures with its own clock that only goes forward, so clocks that
differ do no harm, as long as none runs half as fast again as another (15 s against 10 s). A process that was paused
finds its belief expired. What is not covered: somebody who deletes the Lease by hand. Correctness does not rest on the
election (design D13): two leaders would only be in each other's way.

`kubernetes.aio.leaderelection` (37.0) is not used: it measures with the wall clock, a request that hangs outlives the
renew deadline, what leads is cancelled but may run on, the Lease is not given back at the end, and its transitions are
not counted.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from usher_operator.actions import Manifest, Reference
from usher_operator.kube import KubeApi, KubeError
from usher_operator.times import micro_timestamp
from usher_operator.transitions import next_transitions

log = structlog.get_logger()

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of an election, in seconds; as in client-go."""

    duration: float = 15.0
    """Others wait so long for a leader that says nothing."""
    renew_deadline: float = 10.0
    """A leader that could not renew for so long leads no more."""
    retry: float = 2.0
    """Between two looks."""


class Election:
    """One candidate: what it knows, and what it should write. No I/O; `now` comes from a clock that only goes forward.

    Args:
        target: the Lease.
        identity: who we are; another one for each start of a process.
        timing: the times.
    """

    def __init__(self, target: Reference, identity: str, timing: Timing) -> None:
        self._target = target
        self._identity = identity
        self._timing = timing
        self._seen: Json | None = None
        self._seen_at = 0.0
        self._leads_until = float("-inf")
        self._has_resigned = False

    def leads(self, now: float) -> bool:
        """Return whether we may act."""
        return now < self._leads_until and not self._has_resigned

    @property
    def holder(self) -> str:
        """Who leads by the last look, "" when nobody does."""
        spec = (self._seen or {}).get("spec") or {}
        return str(spec.get("holderIdentity") or "")

    def saw(self, lease: Json | None, now: float) -> None:
        """Take in what the API server answered at `now`; None: there is no Lease."""
        if lease is None or self._seen is None or _version(lease) != _version(self._seen):
            self._seen_at = now
        self._seen = lease

    def wish(self, now: float, wall: float) -> Manifest | None:
        """Return the Lease to write now, None when another one leads. Without resourceVersion it is to be created.

        Args:
            now: of our clock.
            wall: Unix seconds, for people who read the Lease.
        """
        if self._has_resigned or not (self.holder in ("", self._identity) or self._is_silent(now)):
            return None
        lease: Json = copy.deepcopy(self._seen) if self._seen else self._new_lease()
        spec = lease["spec"] = lease.get("spec") or {}
        if self.holder != self._identity:
            spec["acquireTime"] = micro_timestamp(wall)
            spec["leaseTransitions"] = next_transitions(spec.get("leaseTransitions")) if self._seen else 0
        spec["holderIdentity"] = self._identity
        spec["leaseDurationSeconds"] = round(self._timing.duration)
        spec["renewTime"] = micro_timestamp(wall)
        return lease

    def wrote(self, lease: Json, sent_at: float, now: float) -> None:
        """Take in that a wish came true; `sent_at` is from before it was sent."""
        self.saw(lease, now)
        self._leads_until = sent_at + self._timing.renew_deadline

    def resign(self, wall: float) -> Manifest | None:
        """Lead no more, and return the Lease to write so that another one need not wait; None when it is not ours."""
        self._has_resigned = True
        if self._seen is None or self.holder != self._identity:
            return None
        lease = copy.deepcopy(self._seen)
        lease["spec"]["holderIdentity"] = ""
        lease["spec"]["renewTime"] = micro_timestamp(wall)
        return lease

    def _is_silent(self, now: float) -> bool:
        """Whether the leader has not renewed for as long as it said that it would need, or as we would."""
        spec = (self._seen or {}).get("spec") or {}
        promised = float(spec.get("leaseDurationSeconds") or 0)
        return now - self._seen_at >= max(self._timing.duration, promised)

    def _new_lease(self) -> Json:
        metadata = {"name": self._target.name, "namespace": self._target.namespace}
        return {"apiVersion": self._target.api_version, "kind": self._target.kind, "metadata": metadata}


class Elector:
    """Runs an election against the API server.

    Args:
        election: the candidate.
        api: may be slow or away; each request is cut off at the retry time or later, within the renew deadline.
        timing: the times.
        clock: seconds that only go forward, also while the machine sleeps.
        wall: Unix seconds.
    """

    def __init__(
        self,
        election: Election,
        target: Reference,
        api: KubeApi,
        timing: Timing,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._election = election
        self._target = target
        self._api = api
        self._timing = timing
        self._clock = clock
        self._wall = wall
        self.last_answer: float | None = None
        """When the API server last answered, by the clock."""

    def leads(self) -> bool:
        """Return whether we may act now. Safe to call from another thread."""
        return self._election.leads(self._clock())

    async def until_elected(self) -> None:
        """Return once we lead."""
        holder = None
        while True:
            await self._round()
            if self.leads():
                return
            if self._election.holder != holder:
                holder = self._election.holder
                log.info("standing by", leader=holder or "none yet")
            await asyncio.sleep(self._timing.retry)

    async def until_lost(self) -> None:
        """Renew, and return once we lead no more."""
        while self.leads():
            await self._round()
            await asyncio.sleep(min(self._timing.retry, self._timing.renew_deadline / 4))

    async def resign(self) -> None:
        """Give the Lease back. To be called when nothing of ours works any more."""
        if self._election.resign(self._wall()) is None:
            return
        try:
            async with asyncio.timeout(self._timing.renew_deadline / 2):
                # The round that our end has cut off may have written a version that we have not seen.
                self._election.saw(await self._api.get(self._target), self._clock())
                if (lease := self._election.resign(self._wall())) is not None:
                    await self._api.replace(lease)
        except (KubeError, TimeoutError) as error:
            log.warning("the lease could not be given back; others wait until it ends", error=str(error))

    async def _round(self) -> None:
        try:
            async with asyncio.timeout(self._timing.renew_deadline / 2):
                lease = await self._api.get(self._target)
                self.last_answer = now = self._clock()
                self._election.saw(lease, now)
                wish = self._election.wish(now, self._wall())
                if wish is None:
                    return
                sent_at = self._clock()
                is_new = "resourceVersion" not in wish["metadata"]
                written = await (self._api.create(wish) if is_new else self._api.replace(wish))
                self._election.wrote(written, sent_at, self._clock())
        except TimeoutError:
            log.warning("the election got no answer from the API server in time")
        except KubeError as error:
            log.warning("a round of the election failed", reason=error.reason, error=str(error))


def _version(lease: Json) -> str:
    return str(lease["metadata"].get("uid", "")) + str(lease["metadata"].get("resourceVersion", ""))
