"""A UDP proxy for tests: it stands between a client and a relay, loses and delays packets, and changes its outer port.

So it is the NAT and the bad network of a client. One outer socket per client address; a change of the outer port is
what a NAT does when its mapping is lost: packets to the old port vanish.
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


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to each packet, each way: `loss` as a share of 1; delay is drawn evenly from 0..`jitter_s`."""

    loss: float = 0.0
    jitter_s: float = 0.0


class UdpProxy:
    """Forwards between clients and one target. An async context manager.

    Args:
        target: (IP, port) of the relay.
        weather: of both directions.
        seed: of loss and jitter, so that a test sees the same ones each time.
    """

    def __init__(self, target: Address, weather: Weather | None = None, seed: int = 1) -> None:
        self._target = target
        self._weather = weather or Weather()
        self._random = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._inner = _bound_socket()
        self._outer: dict[Address, socket.socket] = {}
        self.lost = 0
        self.forwarded = 0

    async def __aenter__(self) -> Self:
        self._loop.add_reader(self._inner, self._from_clients)
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in (self._inner, *self._outer.values()):
            self._close(each)
        self._outer.clear()

    @property
    def address(self) -> Address:
        """Where clients send to."""
        host, port = self._inner.getsockname()
        return host, port

    @property
    def outer_ports(self) -> list[int]:
        """The ports that the relay sees."""
        return [outer.getsockname()[1] for outer in self._outer.values()]

    def rebind(self) -> None:
        """Give each client a new outer port; the old ones are dead at once."""
        for client, old in list(self._outer.items()):
            self._outer[client] = self._open(client)
            self._close(old)

    def _open(self, client: Address) -> socket.socket:
        outer = _bound_socket()
        outer.connect(self._target)
        self._loop.add_reader(outer, self._from_target, outer, client)
        return outer

    def _close(self, each: socket.socket) -> None:
        self._loop.remove_reader(each)
        each.close()

    def _from_clients(self) -> None:
        packet, client = self._inner.recvfrom(65_535)
        if client not in self._outer:
            self._outer[client] = self._open(client)
        self.from_client(packet, client)

    def _from_target(self, outer: socket.socket, client: Address) -> None:
        try:
            packet = outer.recv(65_535)
        except ConnectionRefusedError:
            # The relay is being restarted. A network would lose the packet without a word.
            return
        self.to_client(packet, client)

    def from_client(self, packet: bytes, client: Address) -> None:
        """Pass on what a client sent. Tests that record or steal packets override it."""
        self._through_weather(lambda: self._send(self._outer[client], packet))

    def to_client(self, packet: bytes, client: Address) -> None:
        """Pass on what the relay sent; see `from_client`."""
        self._through_weather(lambda: self._inner.sendto(packet, client))

    def send_as_client(self, packet: bytes) -> None:
        """Send to the target from the address of each client, as somebody who forges it would."""
        for outer in self._outer.values():
            self._send(outer, packet)

    def _send(self, outer: socket.socket, packet: bytes) -> None:
        with contextlib.suppress(ConnectionRefusedError):
            outer.send(packet)

    def _through_weather(self, send: Callable[[], object]) -> None:
        if self._random.random() < self._weather.loss:
            self.lost += 1
            return
        self.forwarded += 1
        if self._weather.jitter_s:
            self._loop.call_later(self._random.uniform(0, self._weather.jitter_s), self._if_open, send)
        else:
            send()

    def _if_open(self, send: Callable[[], object]) -> None:
        if self._inner.fileno() != -1:
            with contextlib.suppress(KeyError):
                send()


def _bound_socket() -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind(("127.0.0.1", 0))
    bound.setblocking(False)
    return bound
