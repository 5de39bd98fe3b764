"""A UDP proxy that is slow and loses packets: the way between two regions, or a client's bad network.

Rules:
* Each address that sends to a link has an outer socket of its own, so that answers find their way back; at most
  `MAX_SOURCES`, and the one that was silent for longest makes room.
* Each packet, each way, is lost or waits: `delay_s`, and up to `jitter_s` more. With jitter they overtake each other.
* At most `MAX_WAITING` packets of a link wait, of `MAX_WAITING_BYTES` together; more are dropped and counted. So is
  what a new address sends while there is no socket for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

Address = tuple[str, int]

MAX_SOURCES = 1024
MAX_WAITING = 20_000
"""Packets of 100 calls on the way for a second, both directions."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""`MAX_WAITING` packets of twice the size that networks carry in one piece; larger ones may come to more."""
_BATCH = 64
"""Packets read at a time; the loop has more to do."""
_BUFFER = 4 * 1024 * 1024
_LONGEST = 65_535


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to each packet, each way: `loss` as a share of 1; `delay_s`, and evenly 0..`jitter_s` on top."""

    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0


@dataclass(slots=True)
class _Outer:
    """The socket of one source; `used` in seconds of the loop's clock."""

    sock: socket.socket
    used: float


class UdpLink:
    """Forwards between whoever sends to `address` and one target. An async context manager.

    Args:
        target: (IP, port) where packets go.
        weather: of both directions.
        seed: of loss and jitter, so that two runs see the same ones.
        listen: (IP, port) to take packets at; port 0 takes a free one.

    `forwarded`, `lost` (by the weather), `dropped` (no room, no socket) and `unreachable` (nobody is there, or any
    more) count packets; `waiting` packets of `waiting_bytes` are on the way. Raises OSError when it can't listen.
    """

    def __init__(
        self, target: Address, weather: Weather | None = None, seed: int = 1, listen: Address = ("127.0.0.1", 0)
    ) -> None:
        self.target = target
        self._weather = weather or Weather()
        self._random = random.Random(seed)  # noqa: S311  (weather, no secret)
        self._loop = asyncio.get_running_loop()
        self._inner = _bound_socket(listen)
        self._outer: dict[Address, _Outer] = {}
        self.forwarded = 0
        self.lost = 0
        self.dropped = 0
        self.unreachable = 0
        self.waiting = 0
        self.waiting_bytes = 0

    async def __aenter__(self) -> Self:
        self._loop.add_reader(self._inner, self._from_clients)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close(self._inner)
        for outer in self._outer.values():
            self._close(outer.sock)
        self._outer.clear()

    @property
    def address(self) -> Address:
        """Where clients send to."""
        host, port = self._inner.getsockname()[:2]
        return host, port

    def from_client(self, packet: bytes, client: Address) -> None:
        """Pass on what a client sent."""
        self._through_weather(lambda: self._send(client, packet), len(packet))

    def to_client(self, packet: bytes, client: Address) -> None:
        """Pass on what the target sent."""
        self._through_weather(lambda: self._inner.sendto(packet, client), len(packet))

    def _from_clients(self) -> None:
        for _ in range(_BATCH):
            try:
                packet, client = self._inner.recvfrom(_LONGEST)
            except OSError:  # nothing more
                return
            outer = self._outer.get(client)
            if outer is None:
                self._make_room()
                try:
                    self._outer[client] = self._open(client)
                except OSError:  # no descriptor is left, say
                    self.dropped += 1
                    continue
            else:
                outer.used = self._loop.time()
            self.from_client(packet, client)

    def _from_target(self, outer: socket.socket, client: Address) -> None:
        for _ in range(_BATCH):
            try:
                packet = outer.recv(_LONGEST)
            except OSError:  # nothing more, or the target is not there: a network would lose it without a word
                return
            self.to_client(packet, client)

    def _open(self, client: Address) -> _Outer:
        sock = _bound_socket(("::1" if ":" in self.target[0] else "0.0.0.0", 0))
        try:
            sock.connect(self.target)
        except OSError:
            sock.close()
            raise
        self._loop.add_reader(sock, self._from_target, sock, client)
        return _Outer(sock, self._loop.time())

    def _make_room(self) -> None:
        if len(self._outer) >= MAX_SOURCES:
            quietest = min(self._outer, key=lambda client: self._outer[client].used)
            self._close(self._outer.pop(quietest).sock)

    def _close(self, each: socket.socket) -> None:
        self._loop.remove_reader(each)
        each.close()

    def _send(self, client: Address, packet: bytes) -> None:
        if (outer := self._outer.get(client)) is None:
            raise ConnectionResetError("the source has made room for another")
        outer.sock.send(packet)

    def _through_weather(self, send: Callable[[], object], length: int) -> None:
        weather = self._weather
        if weather.loss and self._random.random() < weather.loss:
            self.lost += 1
            return
        delay = weather.delay_s + (self._random.uniform(0, weather.jitter_s) if weather.jitter_s else 0.0)
        if not delay:
            self._deliver(send)
        elif self.waiting >= MAX_WAITING or self.waiting_bytes + length > MAX_WAITING_BYTES:
            self.dropped += 1
        else:
            self.waiting += 1
            self.waiting_bytes += length
            self._loop.call_later(delay, self._deliver_late, send, length)

    def _deliver_late(self, send: Callable[[], object], length: int) -> None:
        self.waiting -= 1
        self.waiting_bytes -= length
        if self._inner.fileno() != -1:
            self._deliver(send)

    def _deliver(self, send: Callable[[], object]) -> None:
        try:
            send()
        except BlockingIOError:  # the kernel has no room
            self.dropped += 1
        except OSError:
            self.unreachable += 1
        else:
            self.forwarded += 1


def _bound_socket(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_DGRAM)
    try:
        bound.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with contextlib.suppress(OSError):
                bound.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
