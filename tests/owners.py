"""Many transceivers that answer as `Owner` does, in a process of their own: each of them is asked for each client.

python -m tests.owners COUNT CALLERS: says their entries of a route file, and ends with its stdin. Caller number N has
the SSRC of number N in a `Crowd`, and the transceiver number N modulo COUNT.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.relay_network import FakeTransceiver
from tests.relay_speech import Crowd, Owner
from usher_core.ids import Route
from usher_shell.udp_buffers import set_buffers

FIRST_POD = 17
BUFFER = 4 << 20


def route(number: int) -> Route:
    """Return the route of a transceiver."""
    return Route(1, FIRST_POD + number)


class Owners:
    """That process."""

    def __init__(self, count: int, callers: int) -> None:
        self._count = count
        command = [sys.executable, "-m", "tests.owners", str(count), str(callers)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._entries = json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)

    def write_routes(self, file: Path) -> None:
        """Write a route file of all."""
        file.write_text(json.dumps({"version": 1, "transceivers": self._entries}))

    def route_of(self, caller: int) -> Route:
        """Return who has a caller."""
        return route(caller % self._count)


def main() -> None:
    count, callers = map(int, sys.argv[1:])
    poller = select.epoll()
    poller.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
    owners: dict[int, Owner] = {}
    for number in range(count):
        pod = FakeTransceiver(route(number))
        pod.socket.setblocking(False)
        # As a transceiver has it: each socket gets a question per client at once.
        set_buffers(pod.socket, "owner", BUFFER, BUFFER)
        owner = Owner(pod, *range(Crowd.FIRST_SSRC + number, Crowd.FIRST_SSRC + callers, count))
        owners[pod.socket.fileno()] = owner
        poller.register(pod.socket.fileno(), select.EPOLLIN)
    print(json.dumps([owner.pod.entry.model_dump() for owner in owners.values()]), flush=True)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor not in owners:
                return
            with contextlib.suppress(BlockingIOError):
                while True:
                    owners[descriptor].serve()


if __name__ == "__main__":
    main()
