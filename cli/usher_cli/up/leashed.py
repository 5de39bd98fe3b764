"""Runs an usher program that dies with the process that started it: `python -m usher_cli.up.leashed PID relay …`.

So a `kill -9` of `usher up`, which no handler sees, leaves no process behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from usher_cli.main import main

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent, whose pid is `parent`, ends (prctl(2); Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before the kernel was asked.
    if os.getppid() != parent:
        sys.exit("usher: the process that started this one has ended")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    main(sys.argv[2:])
