"""The UDP socket that all calls of this process share: a thin shell around the mux.

It never blocks: what the kernel does not take at once is dropped and counted, as any router would.

A process that falls behind must not work off a queue of old speech, while the new waits or finds no room. So the
kernel notes when each datagram came, and the handler is told which are late. Only what was read later than that after
the socket was last seen empty can be late: so a step of the wall clock makes nothing late in a process that keeps up.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import structlog

from usher_core.errors import LocalError
from usher_shell.udp_buffers import granted_buffers, kernel_drops, set_buffers
from usher_transceiver.paths import SocketAddress

MAX_PER_WAKE_UP = 64
"""Datagrams read before other work of the loop gets its turn."""
MAX_TURN_S = 0.002
"""Seconds after which it gets its turn in any case: a datagram of a relay that bundles may hold 60 packets."""
MAX_DATAGRAM = 9216
"""Bytes; a jumbo frame. Hop datagrams are as large as the interface's MTU."""
LATE_S = 0.2
"""Seconds in the receive buffer after which speech is worthless: whoever listens has filled the gap by then."""
HEARTBEAT = b"\0"
"""Sent to ourselves: version 0 of the hop protocol, which nobody speaks."""

# linux/in.h, linux/in6.h; the socket module has no names for them.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
# asm-generic/socket.h, likewise; the kernel adds a timespec of the wall clock to each datagram.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")
_ANCILLARY_SPACE = socket.CMSG_SPACE(_TIMESPEC.size)

log = structlog.get_logger()


class DatagramHandler(Protocol):
    """What is called for each datagram."""

    def __call__(self, now: float, datagram: bytes, relay: SocketAddress, *, late: bool) -> None:
        """Handle it, which waited longer than LATE_S if it is `late`; raises nothing."""


class HopSocket:
    """Binds at once. Raises LocalError when the address can't be used.

    Args:
        host: IP address or name to bind to.
        port: 0 lets the system choose.
        buffer_bytes: wanted for each direction; the log says when the kernel gives less.
        clock: seconds, monotonic.
        wall: Unix seconds.
    """

    def __init__(
        self,
        host: str,
        port: int,
        buffer_bytes: int,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._last_empty = clock()
        self._handler: DatagramHandler | None = None
        self._batch: Callable[[], AbstractContextManager[None]] = nullcontext
        self._loop: asyncio.AbstractEventLoop | None = None
        self.send_failures: Counter[str] = Counter()
        self.receive_failures = 0
        self.last_heartbeat = clock()
        self._socket = _bind(host, port)
        set_buffers(self._socket, "hop", buffer_bytes, buffer_bytes)
        self.receive_buffer, self.send_buffer = granted_buffers(self._socket)

    @property
    def address(self) -> tuple[str, int]:
        """The (host, port) it is bound to."""
        name = self._socket.getsockname()
        return name[0], name[1]

    @property
    def kernel_drops(self) -> int | None:
        """Datagrams the kernel dropped because the receive buffer was full; None where it doesn't say."""
        return kernel_drops(self._socket)

    def start(self, handler: DatagramHandler, batch: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Hand every datagram to `handler` from now on, those of one wake-up within one `batch`; needs a running
        loop.
        """
        self._handler = handler
        self._batch = batch
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def close(self) -> None:
        """Stop reading and close."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop = None
        self._socket.close()

    def send(self, datagram: bytes, to: SocketAddress) -> None:
        """Send, or drop and count."""
        try:
            self._socket.sendto(datagram, to)
        except BlockingIOError:
            self.send_failures["again"] += 1
        except OSError as error:
            self.send_failures[_FAILURES.get(error.errno or 0, "other")] += 1

    def beat(self) -> None:
        """Send a datagram to ourselves; `last_heartbeat` tells when it last arrived."""
        host, port = self.address
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        self.send(HEARTBEAT, (loopback.get(host, host), port))

    def _on_readable(self) -> None:
        with self._batch():
            self._read()

    def _read(self) -> None:
        assert self._handler is not None
        receive, handler = self._socket.recvmsg, self._handler
        now = self._clock()
        is_behind = now - self._last_empty > LATE_S
        for _ in range(MAX_PER_WAKE_UP):
            try:
                datagram, ancillary, _, relay = receive(MAX_DATAGRAM, _ANCILLARY_SPACE)
            except BlockingIOError:
                self._last_empty = now
                return
            except OSError:
                # An ICMP error of an earlier send; the socket goes on.
                self.receive_failures += 1
                return
            if datagram == HEARTBEAT:
                self.last_heartbeat = now
                continue
            handler(now, datagram, relay, late=is_behind and self._age(ancillary) > LATE_S)
            if self._clock() - now > MAX_TURN_S:
                return

    def _age(self, ancillary: list[tuple[int, int, bytes]]) -> float:
        """Return how many seconds ago the kernel got a datagram; 0 where it does not tell."""
        for level, kind, data in ancillary:
            if (level, kind, len(data)) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS, _TIMESPEC.size):
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                return self._wall() - float(seconds + nanoseconds / 1e9)
        return 0.0


_FAILURES = {
    errno.ENOBUFS: "no_buffers",
    errno.EMSGSIZE: "too_long",
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EPERM: "forbidden",
}


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise LocalError(f"--udp {host}:{port} is no address of this machine: {error.strerror}") from None
    try:
        bound.setblocking(False)
        if sys.platform == "linux":
            _try_option(bound, socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        # DF on every datagram, and no size limit learnt from ICMP, which anybody can forge.
        if family == socket.AF_INET6:
            _try_option(bound, socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            _try_option(bound, socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise LocalError(f"--udp {host}:{port} can't be bound: {error.strerror}", "is another process there?") from None
    return bound


def _try_option(bound: socket.socket, level: int, option: int, value: int) -> None:
    try:
        bound.setsockopt(level, option, value)
    except OSError as error:
        log.info("a socket option is not available here", level=level, option=option, problem=error.strerror)
