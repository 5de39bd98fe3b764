"""The programs of `usher up`: the order in which they start, and the files that follow them.

Order: transceivers and the first relay of each region (which picks the UDP port where it is 0), then the other relays
on the same port, then what delays packets between regions, then signaling, which advertises that port and asks the
relays' admin pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from usher_cli.up import child
from usher_cli.up.arguments import Arguments
from usher_cli.up.atomic_file import write_atomically
from usher_cli.up.environment import environment_of_child
from usher_cli.up.log_writer import LogWriter
from usher_cli.up.members import Member, Members
from usher_cli.up.places import Places
from usher_cli.up.readiness import wait_until_calls_succeed
from usher_cli.up.run_directory import RunDirectory
from usher_cli.up.settings import UpSettings, region_name
from usher_cli.up.supervisor import Post, Supervisor
from usher_core.errors import LocalError

_SIGNALING_STAGE = 0
_TRANSCEIVER_STAGE = 0
_RELAY_STAGE = 1
"""Relays go last: transceivers take leave of their clients through them."""
_WAN = "wan"

_log = structlog.get_logger()


class Fleet:
    """Everything that `usher up` runs.

    Args:
        settings: of `usher up`.
        directory: of this run.
        log: where the children's lines go.
    """

    def __init__(self, settings: UpSettings, directory: RunDirectory, log: LogWriter) -> None:
        self._settings = settings
        self._directory = directory
        self._log = log
        self._regions = range(1, settings.regions + 1)
        self._members = Members({n: region_name(n) for n in self._regions} if settings.regions > 1 else None)
        self._places = Places(settings)
        self._arguments = Arguments(settings, directory, self._places)
        self._region_of: dict[str, int] = {}
        self._first_ready: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._opened = False
        self._ending = False
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor = Supervisor(self._spawn, self, asyncio.sleep, time.monotonic)

    async def run(self, stop: asyncio.Event, announce: Callable[[str], None]) -> None:
        """Start everything, call `announce` with the URL once a call would succeed, keep it up until `stop` is set.

        Raises LocalError when a program does not start. No child is left in any case.
        """
        self._start(self._open(announce))
        stopping = asyncio.ensure_future(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopping, self._failure]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
        finally:
            self._ending = True
            await self._supervisor.stop()
            ends += self._tasks
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            if self._opened and self._settings.state_file is not None:
                with contextlib.suppress(OSError):
                    self._settings.state_file.unlink()

    def kill(self) -> None:
        """End all children at once."""
        self._supervisor.kill()

    def on_ready(self, name: str, pid: int, facts: Mapping[str, Any]) -> None:
        """Take a program in, as the supervisor's watcher."""
        member = Member(name, pid, facts, self._region_of[name])
        self._members.add(member)
        self._places.learn(member)
        _log.info("program is ready", name=name, pid=pid)
        self._write_files()
        self._first_ready[name].set()

    def on_end(self, name: str) -> None:
        """Take a program out, as the supervisor's watcher."""
        self._members.remove(name)
        if not self._ending:
            self._write_files()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task whose failure is the fleet's."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_task_end)
        self._tasks.append(task)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _open(self, announce: Callable[[str], None]) -> None:
        settings = self._settings
        first = [self._fill_relay(region, 1) for region in self._regions]
        others = [
            self._fill_transceiver(region, number)
            for region in range(1, settings.clusters + 1)
            for number in range(1, settings.transceivers + 1)
        ]
        await self._until_ready(first)
        more = [
            self._fill_relay(region, number) for number in range(2, settings.relays + 1) for region in self._regions
        ]
        await self._until_ready(more)
        if settings.wan is not None:
            await self._until_ready([self._fill(1, _WAN, self._arguments.wan, _RELAY_STAGE)])
        if settings.regions > 1:
            for region in self._regions:
                self._directory.of(region).write_peers(self._places.peers(region))
        others += [self._fill_signaling(region) for region in range(1, settings.ingress + 1)]
        await self._until_ready(others)
        await wait_until_calls_succeed(self._members, self._places)
        _log.info("keys of this run", directory=str(self._directory.path))
        self._tell_regions()
        self._opened = True
        self._write_files()
        announce(self._places.url(1))

    def _name(self, region: int, program: str) -> str:
        """Return the name of a post, as the log has it."""
        return program if self._settings.regions == 1 else f"{region_name(region)}/{program}"

    def _fill_relay(self, region: int, number: int) -> str:
        name = self._name(region, f"relay-{number}")
        return self._fill(region, name, lambda: self._arguments.relay(region, name), _RELAY_STAGE)

    def _fill_transceiver(self, region: int, number: int) -> str:
        name = self._name(region, f"transceiver-{number}")
        return self._fill(region, name, lambda: self._arguments.transceiver(region), _TRANSCEIVER_STAGE)

    def _fill_signaling(self, region: int) -> str:
        name = self._name(region, "signaling")
        return self._fill(region, name, lambda: self._arguments.signaling(region), _SIGNALING_STAGE)

    def _fill(self, region: int, name: str, arguments: Callable[[], Sequence[str]], stage: int) -> str:
        """Keep a post filled from now on; return its name."""
        self._region_of[name] = region
        self._start(self._supervisor.keep(Post(name, arguments, stage)))
        return name

    async def _until_ready(self, names: Sequence[str]) -> None:
        for name in names:
            await self._first_ready[name].wait()

    def _tell_regions(self) -> None:
        """Say in the log where each region is, and how a call goes from one to another."""
        if self._settings.regions > 1:
            for region in self._regions:
                _log.info("region", **self._region_state(region))

    def _state(self) -> dict[str, Any]:
        places = self._places
        state = self._members.state(places.url(1), places.udp(1), str(self._directory.path))
        if self._settings.regions == 1:
            return state
        state["regions"] = [self._region_state(region) for region in self._regions]
        state["wan"] = [{"pid": wan.pid, "admin": wan.fact("admin")} for wan in self._members.of("wan")]
        return state

    def _region_state(self, region: int) -> dict[str, Any]:
        cluster = region if region <= self._settings.clusters else None
        entered = region <= self._settings.ingress
        told = {"name": region_name(region), "cluster": cluster, "http": None, "udp": None, "far_udp": None}
        if entered:
            told |= {"http": self._places.url(region), "udp": self._places.udp(region)}
            told["far_udp"] = self._places.far(region)
        return told

    def _write_files(self) -> None:
        """Write who runs now. A full disk must not end calls: what fails is logged, and tried at the next change."""
        state_file = self._settings.state_file
        try:
            self._directory.write_routes(self._members.transceivers())
        except LocalError as error:
            _log.error("the relays do not learn of this change", reason=str(error))
        # Before that some ports are not known.
        if self._opened and state_file is not None:
            try:
                write_atomically(state_file, json.dumps(self._state(), indent=2) + "\n")
            except LocalError as error:
                _log.error("the state file is not up to date", reason=str(error))

    async def _spawn(self, name: str, arguments: Sequence[str]) -> child.ChildProcess:
        environment = environment_of_child(
            os.environ, self._settings, with_key=arguments[0] == "signaling", is_terminal=sys.stderr.isatty()
        )
        return await child.start(name, child.usher_command(arguments), environment, self._log)
