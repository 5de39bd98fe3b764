"""One child process: its announce line from stdout, its log from stderr to ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from usher_cli.up.log_writer import LogWriter

MAX_LINE = 64 * 1024
"""A longer line of a log comes in pieces."""


class ChildProcess:
    """A running program. Made by `start`; `wait` must be awaited so that its pipes are emptied."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: LogWriter) -> None:
        self.name = name
        self._process = process
        self._log = log
        self._announced: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._readers = [asyncio.ensure_future(self._read_stdout()), asyncio.ensure_future(self._read_stderr())]

    @property
    def pid(self) -> int:
        return self._process.pid

    async def announcement(self) -> dict[str, Any] | None:
        """Return the announce line, or None when the program closed its stdout without one."""
        return await asyncio.shield(self._announced)

    async def wait(self) -> int:
        """Return the exit status, negative for a signal."""
        status = await self._process.wait()
        # Its own children, if any, could hold the pipes open.
        await asyncio.wait(self._readers, timeout=1)
        for reader in self._readers:
            reader.cancel()
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program; none when it has ended."""
        if self._process.returncode is None:
            # Not by the process object: that one would collect the exit status, which then is nobody's.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill the program and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        async for line in _lines(self._process.stdout):
            announcement = None if self._announced.done() else _parse_announcement(line)
            if announcement is None:
                self._log.write_line(self.name, line)
            else:
                self._announced.set_result(announcement)
        if not self._announced.done():
            self._announced.set_result(None)

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        async for line in _lines(self._process.stderr):
            self._log.write_line(self.name, line)


def usher_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `usher ARGUMENTS…` as a child that dies with us."""
    return [sys.executable, "-m", "usher_cli.up.leashed", str(os.getpid()), *arguments]


async def start(name: str, command: Sequence[str], environment: Mapping[str, str], log: LogWriter) -> ChildProcess:
    """Start a command as a child; `name` stands before each line of its log.

    It leads a session of its own: Ctrl-C at the terminal reaches `usher up` alone, which ends its children in order.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
        limit=MAX_LINE,
    )
    return ChildProcess(name, process, log)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except asyncio.LimitOverrunError as error:
            line = await stream.readexactly(error.consumed or MAX_LINE)
        if not line:
            return
        yield line


def _parse_announcement(line: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and parsed.get("ready") is True else None
