"""Looks after the peers: reads the peers file, resolves names, probes every endpoint, and tells the data path.

* The file is read again when it changes; names are resolved every 30 s, each to at most 4 addresses, and the last good
  answer stays in use.
* Probes leave by a socket of their own. What they tell is in `probe`; which clients go where, in `endpoints`.
* The data path is told when that changes, within 0.05 s.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import structlog

from usher_core.errors import RemoteError
from usher_core.ids import Route
from usher_core.keys import KeyFile, held_keys
from usher_core.peers import Endpoint, PeerFile, is_ip, parse_peer_file
from usher_relay.endpoint import as_source
from usher_relay.probe_socket import ProbeSocket
from usher_relay.trunk.endpoints import EndpointView, PeerEndpoints
from usher_relay.trunk.keys import TrunkKeys
from usher_relay.trunk.peer_table import PeerAddresses, PeerTable
from usher_relay.trunk.probe import NONCE_LENGTH, build_probe, held_ids, read_reply
from usher_shell.watched_file import SourceStatus, WatchedFile

log = structlog.get_logger()

LOOK_EVERY_S: Final = 0.05
RESOLVE_EVERY_S: Final = 30.0
RESOLVE_WITHIN_S: Final = 5.0
MAX_ADDRESSES: Final = 4


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
        self._peers: dict[int, PeerEndpoints] = {}
        self._resolved: dict[str, tuple[str, ...]] = {}
        self._resolve_at = time.monotonic() + RESOLVE_EVERY_S
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
        found: list[EndpointView] = []
        for cluster, peer in sorted(self._peers.items()):
            newest = self._keys.youngest(cluster.to_bytes(2))
            found += peer.views(cluster, None if newest is None else newest.id, now)
        return found

    async def run(self) -> None:
        """Probe and publish until cancelled."""
        with ProbeSocket(self._on_reply) as sock:
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
                    self._probe(sock, now, unix)
                    self._publish_changes(now)
                    await asyncio.sleep(LOOK_EVERY_S)
            finally:
                resolving.cancel()

    # Names

    async def _resolve(self, file: PeerFile) -> None:
        names = {endpoint.host for peer in file.peers for endpoint in peer.endpoints if not is_ip(endpoint.host)}
        self._resolved = {name: hosts for name, hosts in self._resolved.items() if name in names}
        for name, hosts in zip(names, await asyncio.gather(*map(_addresses, names)), strict=True):
            if hosts:
                self._resolved[name] = hosts
            else:
                log.warning("a peer's name has no address now", name=name, using=self._resolved.get(name, ()))
        peers = {peer.cluster: self._peers.get(peer.cluster) or PeerEndpoints() for peer in file.peers}
        for peer in file.peers:
            peers[peer.cluster].set_addresses(
                (address, endpoint.weight) for endpoint in peer.endpoints for address in self._addresses_of(endpoint)
            )
        self._peers = peers  # at once: other threads may be reading the old ones

    def _addresses_of(self, endpoint: Endpoint) -> Iterator[tuple[str, int]]:
        hosts = (endpoint.host,) if is_ip(endpoint.host) else self._resolved.get(endpoint.host, ())
        return (as_source(host, endpoint.port) for host in hosts)

    # Probes

    def _probe(self, sock: ProbeSocket, now: float, unix: float) -> None:
        newest = self._keys.newest(unix)
        for cluster, peer in self._peers.items():
            key = newest.get(cluster.to_bytes(2))
            if key is None:
                continue
            held = held_ids(self._held, (cluster,), self._keys.of(cluster.to_bytes(2)))
            for way in peer.ways.values():
                if way.health.is_due(now):
                    nonce = secrets.token_bytes(NONCE_LENGTH)
                    way.health.on_sent(nonce, now)
                    sock.send(build_probe(Route(cluster, 0, 0), nonce, held, key, unix), way.address)

    def _on_reply(self, datagram: bytes, source: tuple[str, int]) -> None:
        now, unix = time.monotonic(), time.time()
        for cluster, peer in self._peers.items():
            way = peer.ways.get(source)
            if way is None:
                continue
            try:
                reply = read_reply(datagram, self._keys.of(cluster.to_bytes(2)), unix)
            except RemoteError:
                continue
            if reply.route.cluster == cluster and way.health.on_answer(reply.nonce, now):
                way.held = reply.held
                return

    # The table

    def _publish_changes(self, now: float) -> None:
        self._log_changes(now)
        tables = ((cluster, peer.table(now)) for cluster, peer in self._peers.items())
        table = {cluster: found for cluster, found in tables if found is not None}
        if table != self._published:
            self._published = table
            self._publish(table)

    def _log_changes(self, now: float) -> None:
        for cluster, peer in self._peers.items():
            for way in peer.ways.values():
                is_up = way.health.is_up(now)
                if is_up != way.was_up:
                    way.was_up = is_up
                    text = "peer endpoint is up again" if is_up else "peer endpoint is down"
                    log.warning(text, cluster=cluster, address=way.name)


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
