"""The end of a program: signals that come while its loop is being closed make no noise."""

import subprocess
import sys

import pytest

ENDING = """
import asyncio, os, signal
from usher_shell.ending_signals import ignore_signals

async def work():
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: None)
    {end}
    # What `loop.close` does before it takes the handlers away.
    loop._close_self_pipe()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    os._exit(0)

asyncio.run(work())
"""


@pytest.mark.parametrize(("end", "is_quiet"), [("ignore_signals()", True), ("pass", False)])
def test_a_signal_between_the_end_of_the_work_and_that_of_the_loop_makes_no_noise(end: str, is_quiet: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(end=end)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (done.stderr == "") is is_quiet, done.stderr
