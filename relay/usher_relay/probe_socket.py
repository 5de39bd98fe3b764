"""The socket by which the control side probes relays of other clusters and our own transceivers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

MAX_REPLIES: Final = 256
"""Read at a time; the loop has more to do."""
_MAX_REPLY: Final = 2_048


class ProbeSocket:
    """A context manager. `on_reply` gets each datagram and the (IP, port) it came from, which may be anybody's."""

    def __init__(self, on_reply: Callable[[bytes, tuple[str, int]], None]) -> None:
        self._on_reply = on_reply
        self._socket = _open_socket()

    def __enter__(self) -> Self:
        """Begin to listen."""
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._on_readable)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """End."""
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def send(self, datagram: bytes, address: tuple[str, int]) -> None:
        """Send a probe; that it can't be sent is what its missing answer tells."""
        host, port = address
        if self._socket.family == socket.AF_INET6 and ":" not in host:
            host = f"::ffff:{host}"
        with suppress(OSError):
            self._socket.sendto(datagram, (host, port))

    def _on_readable(self) -> None:
        for _ in range(MAX_REPLIES):
            try:
                datagram, source = self._socket.recvfrom(_MAX_REPLY)
            except OSError:
                return  # nothing waits, or an ICMP error came of a probe, which the probe tells as well
            self._on_reply(datagram, (source[0].removeprefix("::ffff:"), source[1]))


def _open_socket() -> socket.socket:
    """Return a socket for both families, or for IPv4 alone where the host has no IPv6."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::", 0))
    except OSError:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("0.0.0.0", 0))  # answers come from anywhere, and are authentic or dropped
    sock.setblocking(False)
    return sock
