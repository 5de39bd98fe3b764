"""File descriptors: as many as the system lets a program have, and how many that is."""

from __future__ import annotations

import contextlib
import resource

MANY = 1_048_576
"""What an unlimited process is taken to have."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of this process to the hard one, and return how many descriptors it may have.

    Many systems start programs with a soft limit of 1024, for the sake of programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS names a hard limit that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MANY if soft == resource.RLIM_INFINITY else min(soft, MANY)
