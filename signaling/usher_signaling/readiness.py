"""Two questions about one replica: should requests come to it, and could a new call be placed now?

Rules:
* A replica is unready for what it lacks by itself: its first list of transceivers or of RelayPools, the first answers
  of those transceivers and their settle time; and once it was told to end. Another replica does better then.
* What all replicas lack alike makes none of them unready: no transceiver that takes calls, no relay with an address. A
  new offer gets 503 with Retry-After; out of their Service nobody could end, list or restart the calls that go on.
* A list that was there once stays in use, so a source that is lost later makes nobody unready.
* One log line per change of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from usher_shell.watched_file import SourceStatus
from usher_signaling.calls import Calls
from usher_signaling.directory import Directory

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class State:
    """Both answers, in words: `unready` is empty while the replica is ready, `no_call` while a call could be placed."""

    unready: tuple[str, ...]
    no_call: str

    @property
    def ready(self) -> bool:
        """Whether requests should come here."""
        return not self.unready

    @property
    def can_place(self) -> bool:
        """Whether a new call could succeed; all transceivers may be full."""
        return not self.no_call


class Readiness:
    """Looks at the sources and the transceivers.

    Args:
        sources: where transceivers and relay addresses are known from.
        directory: the transceivers.
        calls: what a new call would need.
        ending: set once the process is told to end.
    """

    def __init__(
        self,
        sources: Sequence[Callable[[], SourceStatus]],
        directory: Directory,
        calls: Calls,
        ending: asyncio.Event,
    ) -> None:
        self._sources = sources
        self._directory = directory
        self._calls = calls
        self._ending = ending
        self._is_informed = False
        self._before: State | None = None

    def look(self) -> State:
        """Return how it is now, and log what has changed since the last look."""
        state = State(tuple(self._unready()), self._calls.why_none())
        before, self._before = self._before, state
        if before is None or before.ready != state.ready:
            _tell(log.info, "ready", "not ready", "; ".join(state.unready))
        if before is None or before.can_place != state.can_place:
            write = log.info if before is None else log.warning
            _tell(write, "calls can be placed", "no call can be placed", state.no_call)
        return state

    def _unready(self) -> Iterator[str]:
        if self._ending.is_set():
            yield "told to end"
        missing = [status for source in self._sources if not (status := source()).loaded]
        for status in missing:
            yield f"no first list from {status.name}" + (f": {status.fault}" if status.fault else "")
        # Once: of later ones every replica learns like this one.
        directory = self._directory
        self._is_informed = self._is_informed or (
            not missing and directory.has_asked and not directory.source.is_settling
        )
        if not missing and not self._is_informed:
            yield "the first transceivers are being asked how full they are"


def _tell(lost: Callable[..., None], good: str, bad: str, why: str) -> None:
    if why:
        lost(bad, why=why)
    else:
        log.info(good)
