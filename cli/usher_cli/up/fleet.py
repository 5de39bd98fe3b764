"""The programs of `usher up`, their flags, the order in which they start, and the files that follow them.

Order: transceivers and the first relay (which picks the UDP port where it is 0), then the other relays on the same
port, then signaling, which advertises that port and asks the relays' admin pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from usher_cli.up import child
from usher_cli.up.addresses import advertised_addresses
from usher_cli.up.atomic_file import write_atomically
from usher_cli.up.log_writer import LogWriter
from usher_cli.up.members import Member, Members
from usher_cli.up.pod_ids import PodIds
from usher_cli.up.readiness import wait_until_calls_succeed
from usher_cli.up.run_directory import CLUSTER, RunDirectory
from usher_cli.up.settings import UpSettings
from usher_cli.up.supervisor import Post, Supervisor
from usher_core.errors import LocalError
from usher_core.ids import join_host_port, split_host_port

LISTENER = 1
"""All relays have one listener, so it has one id."""
_LOOPBACK_ANY_PORT = "127.0.0.1:0"
_BUILT_IN_BACKENDS = ("echo", "parrot")
"""What a caller may choose beside `--backend`."""
_KEYS_FILE = "USHER_API_KEYS_FILE"
"""Reaches signaling through the environment; then it is not keyless."""
_SIGNALING_STAGE = 0
_TRANSCEIVER_STAGE = 0
_RELAY_STAGE = 1
"""Relays go last: transceivers take leave of their clients through them."""

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
        self._members = Members()
        self._pod_ids = PodIds()
        self._first_ready: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._opened = False
        self._ending = False
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Known once they are bound; from then on a program that is started again gets the same.
        self._udp = settings.udp
        self._http = settings.http
        self._admins: dict[str, str] = {}
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
        member = Member(name, pid, facts)
        self._members.add(member)
        match facts.get("program"):
            case "relay":
                self._udp = facts["listeners"][str(LISTENER)]
                self._admins[name] = member.fact("admin")
            case "signaling":
                self._http = member.fact("http").removeprefix("http://")
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
        relays = [f"relay-{number}" for number in range(1, self._settings.relays + 1)]
        transceivers = [f"transceiver-{number}" for number in range(1, self._settings.transceivers + 1)]
        self._fill_relay(relays[0])
        for name in transceivers:
            self._fill(Post(name, self._transceiver_arguments, _TRANSCEIVER_STAGE))
        await self._until_ready([relays[0]])
        for name in relays[1:]:
            self._fill_relay(name)
        await self._until_ready(relays)
        self._fill(Post("signaling", self._signaling_arguments, _SIGNALING_STAGE))
        await self._until_ready([*transceivers, "signaling"])
        await wait_until_calls_succeed(self._members)
        _log.info("keys of this run", directory=str(self._directory.path))
        self._opened = True
        self._write_files()
        announce(self._url)

    def _fill_relay(self, name: str) -> None:
        self._fill(Post(name, lambda: self._relay_arguments(name), _RELAY_STAGE))

    def _fill(self, post: Post) -> None:
        self._start(self._supervisor.keep(post))

    async def _until_ready(self, names: Sequence[str]) -> None:
        for name in names:
            await self._first_ready[name].wait()

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
                write_atomically(state_file, self._members.state(self._url, self._udp, str(self._directory.path)))
            except LocalError as error:
                _log.error("the state file is not up to date", reason=str(error))

    @property
    def _url(self) -> str:
        """What a person on this machine opens."""
        host, port = split_host_port(self._http)
        return f"http://{join_host_port({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(host, host), port)}"

    async def _spawn(self, name: str, arguments: Sequence[str]) -> child.ChildProcess:
        environment = self._environment(with_key=name == "signaling")
        return await child.start(name, child.usher_command(arguments), environment, self._log)

    def _environment(self, *, with_key: bool) -> dict[str, str]:
        """Return our environment without what was meant for `usher up` itself; the API key for signaling only."""
        ours = {f"USHER_{field.upper()}" for field in UpSettings.model_fields}
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        if with_key and self._settings.api_key is not None:
            # Not as a flag: any user of this machine can read those.
            environment["USHER_API_KEY"] = self._settings.api_key.get_secret_value()
        return environment

    def _relay_arguments(self, name: str) -> list[str]:
        admin = self._admins.get(name, "").removeprefix("http://") or _LOOPBACK_ANY_PORT
        return [
            "relay",
            f"--listen={LISTENER}={self._udp}",
            "--upstream=127.0.0.1",
            f"--admin={admin}",
            f"--keys-file={self._directory.relay_keys}",
            f"--routes-file={self._directory.routes}",
            f"--engine={self._settings.engine}",
            "--grace=0",
            *self._log_arguments(),
        ]

    def _transceiver_arguments(self) -> list[str]:
        return [
            "transceiver",
            f"--udp={_LOOPBACK_ANY_PORT}",
            f"--http={_LOOPBACK_ANY_PORT}",
            f"--keys-file={self._directory.transceiver_keys}",
            f"--token-file={self._directory.token}",
            f"--cluster={CLUSTER}",
            f"--pod={self._pod_ids.next(time.time())}",
            f"--backend={self._settings.backend}",
            *self._log_arguments(),
        ]

    def _signaling_arguments(self) -> list[str]:
        host, port = split_host_port(self._udp)
        return [
            "signaling",
            f"--http={self._http}",
            f"--keys-file={self._directory.signaling_keys}",
            f"--token-file={self._directory.token}",
            f"--routes-file={self._directory.routes}",
            *(
                f"--advertise={LISTENER}={address}"
                for address in advertised_addresses(host, port, self._settings.advertise)
            ),
            *(f"--relay-admin={admin}" for admin in self._admins.values()),
            *(f"--backends={name}" for name in dict.fromkeys([self._settings.backend, *_BUILT_IN_BACKENDS])),
            *(["--keyless"] if self._settings.api_key is None and not os.environ.get(_KEYS_FILE) else []),
            *self._log_arguments(),
        ]

    def _log_arguments(self) -> list[str]:
        return [f"--log-format={self._settings.log_format}", f"--log-level={self._settings.log_level}"]
