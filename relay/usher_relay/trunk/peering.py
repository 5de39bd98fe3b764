"""Looks after the peers: reads the peers file, resolves names, probes every endpoint, and tells the data path.

* The file is read again when it changes; names are resolved every 30 s, each to at most 4 addresses, and the last good
  answer stays in use.
* Probes leave by a socket of their own. What they tell is in `probe`; which clients go where, in `rendezvous`.
* The data path is told at once when an endpoint comes or goes. With none up, all are used: probes may be what is lost.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from usher_core.errors import RemoteError
from usher_core.ids import join_host_port, pack_address, unpack_address
from usher_core.keys import HopKey, KeyFile, held_keys
from usher_core.peers import Endpoint, PeerFile, is_ip, parse_peer_file
from usher_relay.trunk.keys import TrunkKeys
from usher_relay.trunk.peer_table import PeerAddresses, PeerTable
from usher_relay.trunk.probe import NONCE_LENGTH, EndpointHealth, build_probe, read_reply
from usher_relay.trunk.rendezvous import place_endpoints
from usher_shell.watched_file import SourceStatus, WatchedFile

log = structlog.get_logger()

LOOK_EVERY_S: Final = 0.05
RESOLVE_EVERY_S: Final = 30.0
RESOLVE_WITHIN_S: Final = 5.0
MAX_ADDRESSES: Final = 4
MAX_REPLIES: Final = 256
"""Read at a time; the loop has more to do."""


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One endpoint, for people and metrics. `rtt_ms` is None before the first answer; `loss` is 0 to 1."""

    cluster: int
    address: str
    up: bool
    rtt_ms: float | None
    loss: float
    sent: int
    answered: int


@dataclass(slots=True, eq=False)
class _Way:
    """One address of a peer."""

    address: tuple[str, int]
    weight: float
    health: EndpointHealth = field(default_factory=EndpointHealth)
    was_up: bool = True

    @property
    def name(self) -> str:
        return join_host_port(*self.address)


class Peering:
    """The peers of one relay.

    Args:
        path: of the peers file.
        keys: with those of the trunks.
        publish: gets each new table.

    Raises LocalError when the file can't be read at the start.
    """

    def __init__(self, path: Path, keys: KeyFile, publish: Callable[[PeerTable], None]) -> None:
        self._file = WatchedFile(path, parse_peer_file, "peers file")
        self._publish = publish
        self._published: dict[int, PeerAddresses] | None = None
        self._ways: dict[int, dict[tuple[str, int], _Way]] = {}
        self._resolved: dict[str, tuple[str, ...]] = {}
        self._resolve_at = time.monotonic() + RESOLVE_EVERY_S
        self._newest: dict[bytes, HopKey] = {}
        self.set_keys(keys)

    def set_keys(self, keys: KeyFile) -> None:
        """Swap the keys. Raises LocalError when they are of no use."""
        self._keys, self._held = TrunkKeys(keys.hop), held_keys(keys)

    def status(self) -> SourceStatus:
        """Return how the peers file is now."""
        return self._file.status()

    def endpoints(self) -> list[EndpointView]:
        """Return all endpoints as they are now."""
        now = time.monotonic()
        return [
            EndpointView(
                cluster=cluster,
                address=way.name,
                up=way.health.is_up(now),
                rtt_ms=None if way.health.rtt is None else round(way.health.rtt * 1000, 1),
                loss=round(way.health.loss, 3),
                sent=way.health.sent,
                answered=way.health.answered,
            )
            for cluster, ways in sorted(self._ways.items())
            for way in ways.values()
        ]

    async def run(self) -> None:
        """Probe and publish until cancelled."""
        loop = asyncio.get_running_loop()
        with _open_socket() as sock:
            loop.add_reader(sock.fileno(), self._on_readable, sock)
            resolving = asyncio.ensure_future(self._resolve(self._file.value))
            try:
                while True:
                    if self._file.look():
                        self._resolve_at = 0.0
                    # A name server that hangs must not hold up the probes.
                    if time.monotonic() >= self._resolve_at and resolving.done():
                        self._resolve_at = time.monotonic() + RESOLVE_EVERY_S
                        resolving = asyncio.ensure_future(self._resolve(self._file.value))
                    now, unix = time.monotonic(), time.time()
                    self._newest = self._keys.newest(unix)
                    self._probe(sock, now, unix)
                    self._publish_changes(now)
                    await asyncio.sleep(LOOK_EVERY_S)
            finally:
                resolving.cancel()
                loop.remove_reader(sock.fileno())

    # Names

    async def _resolve(self, file: PeerFile) -> None:
        names = {endpoint.host for peer in file.peers for endpoint in peer.endpoints if not is_ip(endpoint.host)}
        self._resolved = {name: hosts for name, hosts in self._resolved.items() if name in names}
        for name, hosts in zip(names, await asyncio.gather(*map(_addresses, names)), strict=True):
            if hosts:
                self._resolved[name] = hosts
            else:
                log.warning("a peer's name has no address now", name=name, using=self._resolved.get(name, ()))
        known, self._ways = self._ways, {}
        for peer in file.peers:
            ways = self._ways[peer.cluster] = {}
            for endpoint in peer.endpoints:
                for address in self._addresses_of(endpoint):
                    way = known.get(peer.cluster, {}).get(address) or _Way(address, endpoint.weight)
                    way.weight = endpoint.weight
                    ways[address] = way

    def _addresses_of(self, endpoint: Endpoint) -> Iterator[tuple[str, int]]:
        hosts = (endpoint.host,) if is_ip(endpoint.host) else self._resolved.get(endpoint.host, ())
        # In one spelling: sources are compared with it.
        return ((unpack_address(pack_address(host)), endpoint.port) for host in hosts)

    # Probes

    def _probe(self, sock: socket.socket, now: float, unix: float) -> None:
        for cluster, ways in self._ways.items():
            key = self._newest.get(cluster.to_bytes(2))
            for way in ways.values():
                if key is not None and way.health.is_due(now):
                    nonce = secrets.token_bytes(NONCE_LENGTH)
                    way.health.on_sent(nonce, now)
                    _send(sock, build_probe(cluster, nonce, self._held, key, unix), way.address)

    def _on_readable(self, sock: socket.socket) -> None:
        for _ in range(MAX_REPLIES):
            try:
                datagram, source = sock.recvfrom(2_048)
            except OSError:
                return  # nothing waits, or an ICMP error came of a probe, which the probe tells as well
            self._on_reply(datagram, (source[0].removeprefix("::ffff:"), source[1]))

    def _on_reply(self, datagram: bytes, source: tuple[str, int]) -> None:
        now, unix = time.monotonic(), time.time()
        for cluster, ways in self._ways.items():
            way = ways.get(source)
            if way is None:
                continue
            try:
                nonce = read_reply(datagram, cluster, self._keys.of(cluster.to_bytes(2)), unix)
            except RemoteError:
                continue
            if way.health.on_answer(nonce, now):
                self._publish_changes(now)
                return

    # The table

    def _publish_changes(self, now: float) -> None:
        table = {cluster: _table_of(ways, now) for cluster, ways in self._ways.items() if ways}
        if table == self._published:
            return
        for cluster, ways in self._ways.items():
            for way in ways.values():
                is_up = way.health.is_up(now)
                if is_up != way.was_up:
                    way.was_up = is_up
                    log.warning(
                        "peer endpoint is up again" if is_up else "peer endpoint is down",
                        cluster=cluster,
                        address=way.name,
                    )
        self._published = table
        self._publish(table)


def _table_of(ways: Mapping[tuple[str, int], _Way], now: float) -> PeerAddresses:
    addresses = tuple(ways)
    up = {way.name: way.weight for way in ways.values() if way.health.is_up(now)}
    places = place_endpoints(up or {way.name: way.weight for way in ways.values()})
    index = {way.name: number for number, way in enumerate(ways.values())}
    return PeerAddresses(addresses, tuple(index[name] for name in places))


async def _addresses(name: str) -> tuple[str, ...]:
    """Return at most 4 addresses of a name, none when there are none now."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_WITHIN_S):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError, TimeoutError):
        return ()
    # Sorted, so that the order in which a resolver rotates them changes nothing.
    return tuple(sorted({str(address[0]) for *_, address in found}))[:MAX_ADDRESSES]


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


def _send(sock: socket.socket, datagram: bytes, address: tuple[str, int]) -> None:
    host, port = address
    if sock.family == socket.AF_INET6 and ":" not in host:
        host = f"::ffff:{host}"
    with suppress(OSError):  # unanswered, which is what probes tell
        sock.sendto(datagram, (host, port))
