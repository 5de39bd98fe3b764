"""Children of `usher up`, as processes: their lines, their announcement, their end."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from usher_cli.up.child import MAX_LINE, ChildProcess, start, usher_command
from usher_cli.up.log_writer import LogWriter

LEASHED_SLEEPER = "import sys, time; from usher_cli.up.leashed import die_with_parent; die_with_parent({}); "


class Child:
    """A Python program as a child, and what it logged."""

    def __init__(self) -> None:
        self._stream = io.BytesIO()
        self._writer = LogWriter(self._stream)

    async def start(self, script: str) -> ChildProcess:
        return await start("prog-1", [sys.executable, "-c", script], os.environ, self._writer)

    @property
    def lines(self) -> list[str]:
        """All lines; no more can come."""
        self._writer.close()
        return self._stream.getvalue().decode().splitlines()


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.01)


async def test_the_name_stands_before_each_line_and_the_announcement_is_told() -> None:
    child = Child()
    process = await child.start(
        "import sys; print('early'); print('a log line', file=sys.stderr)\n"
        'print(\'{"ready": true, "program": "relay", "admin": "x"}\', flush=True)\n'
        "print('late')"
    )
    assert await process.announcement() == {"ready": True, "program": "relay", "admin": "x"}
    assert await process.wait() == 0
    assert sorted(child.lines) == ["prog-1 | a log line", "prog-1 | early", "prog-1 | late"]


async def test_one_that_ends_without_an_announcement_says_so() -> None:
    child = Child()
    process = await child.start("import sys; sys.exit('usher: the port is taken')")
    assert await process.announcement() is None
    assert await process.wait() == 1
    assert child.lines == ["prog-1 | usher: the port is taken"]


async def test_a_line_without_end_is_cut_and_does_not_block() -> None:
    child = Child()
    process = await child.start(f"import sys; sys.stderr.write('x' * {3 * MAX_LINE}); sys.stderr.write('\\nend\\n')")
    assert await process.wait() == 0
    assert "".join(line.removeprefix("prog-1 | ") for line in child.lines) == "x" * 3 * MAX_LINE + "end"


async def test_ctrl_c_at_the_terminal_does_not_reach_it() -> None:
    child = Child()
    process = await child.start("print('{\"ready\": true}', flush=True); import time; time.sleep(60)")
    await process.announcement()
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == -signal.SIGTERM


async def test_what_it_started_is_killed_with_it() -> None:
    child = Child()
    process = await child.start(
        "import subprocess, sys, time\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        'print(\'{"ready": true, "grandchild": %d}\' % grandchild.pid, flush=True); time.sleep(60)'
    )
    announcement = await process.announcement()
    assert announcement is not None
    process.kill_group()
    assert await process.wait() == -signal.SIGKILL
    await until(lambda: not is_running(announcement["grandchild"]))


async def test_a_reader_of_our_log_that_went_away_ends_nothing() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb", buffering=0) as broken:
        writer = LogWriter(broken)
        process = await start(
            "prog-1", [sys.executable, "-c", "import sys; print('x', file=sys.stderr)"], os.environ, writer
        )
        assert await process.wait() == 0
        writer.close()


def test_a_leashed_program_dies_with_the_process_that_started_it() -> None:
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys, time\n"  # noqa: ISC004  (one script)
            f"script = {LEASHED_SLEEPER!r}.format(os.getpid()) + 'print(1, flush=True); time.sleep(60)'\n"
            "child = subprocess.Popen([sys.executable, '-c', script], stdout=subprocess.PIPE, start_new_session=True)\n"
            "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    with starter.stdout:
        pid = int(starter.stdout.readline())
        assert is_running(pid)
        starter.kill()
        starter.wait()
    deadline = time.monotonic() + 5
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_leashed_program_does_not_start_without_the_process_that_started_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEASHED_SLEEPER.format(1) + "print('started')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "has ended" in done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["keys", "--help"]])
async def test_usher_itself_runs_as_a_child(arguments: list[str]) -> None:
    log = io.BytesIO()
    writer = LogWriter(log)
    process = await start("prog-1", usher_command(arguments), os.environ, writer)
    assert await process.wait() == 0
    writer.close()
    assert b"usher" in log.getvalue()
