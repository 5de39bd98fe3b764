"""One `usher up` at a time has a UDP address, from before its relays bind it until it ends.

Relays share an address (SO_REUSEPORT), so binding tells two runs that begin at once nothing. What does is a name of an
abstract Unix socket (unix(7)): the kernel gives it to one, knows it per network namespace as it does ports, and frees
it however the holder ends. Linux only; elsewhere nothing is claimed.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from usher_cli.up.addresses import cannot_be_used
from usher_core.ids import split_host_port

_SOCKETS = Path("/proc/net/unix")


@contextlib.contextmanager
def claimed(flag: str, text: str) -> Iterator[None]:
    """Keep `IP:PORT` from every other run that claims it, or an address that includes it or is included.

    Raises LocalError when another has it. Of two overlapping ones that are claimed at the same instant both may fail.
    Port 0 is not claimed.
    """
    host, port = split_host_port(text)
    if port == 0 or sys.platform != "linux":
        yield
        return
    family = f"usher-up/udp/{port}/"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
        try:
            holder.bind(f"\0{family}{host}")
        except OSError as error:
            raise cannot_be_used(flag, text, error) from None
        if any(other != host and _overlap(host, other) for other in _claimed_hosts(family)):
            raise cannot_be_used(flag, text, OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))
        yield


def _claimed_hosts(family: str) -> list[str]:
    try:
        lines = _SOCKETS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []  # a sandbox may hide it; equal addresses are kept apart without it
    names = [line.rpartition(" ")[2] for line in lines]
    return [name.removeprefix(f"@{family}") for name in names if name.startswith(f"@{family}")]


def _overlap(one: str, other: str) -> bool:
    try:
        first, second = ipaddress.ip_address(one), ipaddress.ip_address(other)
    except ValueError:
        return False  # another user may bind any name
    if first.version != second.version:
        return any(each.version == 6 and each.is_unspecified for each in (first, second))  # `::` takes IPv4 as well
    return first.is_unspecified or second.is_unspecified
