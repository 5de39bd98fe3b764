"""Keeps programs running: each post of the fleet is filled by a process, and filled again when that process dies.

Rules:
* The first restart after a death is at once, later ones wait (`backoff.py`); a program that was ready once is restarted
  for ever.
* Before its first readiness a program gets three tries, and only one when it ends with status 2: then its settings are
  wrong and no retry mends them.
* A program that is not ready within 30 s is killed and counts as dead.
* The end goes by stages: SIGTERM, a second SIGTERM for what drains, SIGKILL. Stage 0 ends first.

Time and processes are handed in, so tests run it without either.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from usher_cli.up.backoff import Backoff
from usher_core.errors import LocalError

FIRST_TRIES = 3
STATUS_OF_WRONG_SETTINGS = 2
READY_LIMIT_S = 30.0
SECOND_SIGNAL_AFTER_S = 0.2
STAGE_LIMIT_S = 1.2
"""Two stages and their kills stay below the 3 s within which `usher up` ends."""

_log = structlog.get_logger()


class Running(Protocol):
    """A running program; `child.ChildProcess` is the real one."""

    @property
    def pid(self) -> int: ...

    async def announcement(self) -> dict[str, Any] | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, number: signal.Signals) -> None: ...

    def kill_group(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Post:
    """A place in the fleet.

    Args:
        name: as in the log, `relay-1`.
        arguments: called for each start: the arguments of `usher`.
        stage: 0 is ended first.
    """

    name: str
    arguments: Callable[[], Sequence[str]]
    stage: int = 0


class Watcher(Protocol):
    """Who is told what happens to posts."""

    def on_ready(self, name: str, pid: int, facts: Mapping[str, Any]) -> None:
        """A program announced itself; `facts` is its announce line."""
        ...

    def on_end(self, name: str) -> None:
        """A program that was ready has ended."""
        ...


class Supervisor:
    """Fills posts until told to stop.

    Args:
        spawn: starts a program for a post, by name and arguments.
        watcher: told of each program that is ready and each that ends.
        sleep: waits for seconds.
        now: monotonic seconds.
    """

    def __init__(
        self,
        spawn: Callable[[str, Sequence[str]], Awaitable[Running]],
        watcher: Watcher,
        sleep: Callable[[float], Awaitable[None]],
        now: Callable[[], float],
    ) -> None:
        self._spawn = spawn
        self._watcher = watcher
        self._sleep = sleep
        self._now = now
        self._running: dict[Post, Running] = {}
        self._stopping = False

    async def keep(self, post: Post) -> None:
        """Keep `post` filled until `stop`. Raises LocalError when its program does not start at all."""
        backoff = Backoff()
        was_ready = False
        while not self._stopping:
            started = self._now()
            ready, status = await self._run_once(post)
            was_ready = was_ready or ready
            if self._stopping:
                return
            lived = self._now() - started
            delay = backoff.next_delay(lived)
            if not was_ready and (backoff.deaths >= FIRST_TRIES or status == STATUS_OF_WRONG_SETTINGS):
                raise LocalError(f"{post.name} does not start ({_status_text(status)})", "its lines above say why")
            _log.warning("program ended", name=post.name, how=_status_text(status), restart_in_s=delay)
            await self._sleep(delay)

    async def stop(self) -> None:
        """End all programs, stage by stage; returns when none is left."""
        self._stopping = True
        for stage in sorted({post.stage for post in self._running}):
            await self._end_stage(stage)

    def kill(self) -> None:
        """End all programs at once."""
        self._stopping = True
        for running in self._running.values():
            running.kill_group()

    async def _run_once(self, post: Post) -> tuple[bool, int]:
        """Start a program and see it through. Return whether it was ready, and its exit status."""
        # A start that is given up half-way would leave its process and its pipes to nobody.
        spawning = asyncio.ensure_future(self._spawn(post.name, post.arguments()))
        try:
            return await self._see_through(post, await asyncio.shield(spawning))
        except asyncio.CancelledError:
            running = await spawning
            running.kill_group()
            await running.wait()
            raise

    async def _see_through(self, post: Post, running: Running) -> tuple[bool, int]:
        self._running[post] = running
        facts = None
        if self._stopping:
            # `stop` has not seen it.
            running.kill_group()
        try:
            try:
                async with asyncio.timeout(READY_LIMIT_S):
                    facts = await running.announcement()
            except TimeoutError:
                _log.error("program is not ready in time", name=post.name, limit_s=READY_LIMIT_S)
                running.kill_group()
            if facts is not None and not self._stopping:
                self._watcher.on_ready(post.name, running.pid, facts)
            if self._stopping:
                running.send_signal(signal.SIGTERM)
            return facts is not None, await running.wait()
        finally:
            del self._running[post]
            if facts is not None:
                self._watcher.on_end(post.name)

    async def _end_stage(self, stage: int) -> None:
        members = [running for post, running in self._running.items() if post.stage == stage]
        ends = [asyncio.ensure_future(running.wait()) for running in members]
        if not ends:
            return
        for running in members:
            running.send_signal(signal.SIGTERM)
        await asyncio.wait(ends, timeout=SECOND_SIGNAL_AFTER_S)
        # A transceiver drains on the first signal and takes leave of its clients on the second.
        for running, end in zip(members, ends, strict=True):
            if not end.done():
                running.send_signal(signal.SIGTERM)
        await asyncio.wait(ends, timeout=STAGE_LIMIT_S - SECOND_SIGNAL_AFTER_S)
        for running in members:
            # Also where the program itself has ended: what it started must go too.
            running.kill_group()
        await asyncio.wait(ends)


def _status_text(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
