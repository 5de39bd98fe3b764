"""A UDP proxy for tests: it stands between a client and a relay, loses and delays packets, and changes its outer port.

So it is the NAT and the bad network of a client. One outer socket per client address; a change of the outer port is what
a NAT does when its mapping is lost: packets to the old port vanish.
"""

from __future__ import annotations

import asyncio
import random
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
        self._inner: asyncio.DatagramTransport | None = None
        self._outer: dict[Address, asyncio.DatagramTransport] = {}
        self._opening: set[Address] = set()
        self.lost = 0
        self.forwarded = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._inner, _ = await loop.create_datagram_endpoint(lambda: _Inner(self), local_addr=("127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._inner is not None
        self._inner.close()
        for transport in self._outer.values():
            transport.close()
        await asyncio.sleep(0)

    @property
    def address(self) -> Address:
        """Where clients send to."""
        assert self._inner is not None
        host, port = self._inner.get_extra_info("sockname")
        return host, port

    @property
    def outer_ports(self) -> list[int]:
        """The ports that the relay sees."""
        return [transport.get_extra_info("sockname")[1] for transport in self._outer.values()]

    async def rebind(self) -> None:
        """Give each client a new outer port; the old ones are dead at once."""
        for client, old in list(self._outer.items()):
            new = await self._open(client)
            self._outer[client] = new
            old.close()

    async def _open(self, client: Address) -> asyncio.DatagramTransport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Outer(self, client), local_addr=("127.0.0.1", 0), remote_addr=self._target
        )
        return transport

    def from_client(self, packet: bytes, client: Address) -> None:
        outer = self._outer.get(client)
        if outer is not None:
            self._through_weather(lambda: self._outer[client].sendto(packet))
        elif client not in self._opening:
            # The first packet of a client waits for its socket, those right behind it are lost: a check comes again.
            self._opening.add(client)
            asyncio.ensure_future(self._first(packet, client))

    async def _first(self, packet: bytes, client: Address) -> None:
        self._outer[client] = await self._open(client)
        self._opening.discard(client)
        self.from_client(packet, client)

    def to_client(self, packet: bytes, client: Address) -> None:
        assert self._inner is not None
        inner = self._inner
        self._through_weather(lambda: inner.sendto(packet, client))

    def _through_weather(self, send) -> None:
        if self._random.random() < self._weather.loss:
            self.lost += 1
            return
        self.forwarded += 1
        if self._weather.jitter_s:
            asyncio.get_running_loop().call_later(self._random.uniform(0, self._weather.jitter_s), send)
        else:
            send()


class _Inner(asyncio.DatagramProtocol):
    def __init__(self, proxy: UdpProxy) -> None:
        self._proxy = proxy

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self._proxy.from_client(data, addr)


class _Outer(asyncio.DatagramProtocol):
    def __init__(self, proxy: UdpProxy, client: Address) -> None:
        self._proxy = proxy
        self._client = client

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self._proxy.to_client(data, self._client)

    def error_received(self, exc: OSError) -> None:
        """The relay is being restarted: a network would lose the packet without a word."""
