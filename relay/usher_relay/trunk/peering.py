"""Looks after the peers: reads the peers file, has names resolved, probes every endpoint, and tells the data path.

* The file is read again when it changes. IP addresses are used at once, a name as soon as it is resolved (`names`).
* Probes leave by a socket of their own. What they tell is in `probe`; which clients go where, in `endpoints`.
* The data path is told when that changes, within 0.05 s.
* A peer that can't be reached as the files say is one warning, and one more each time it comes to that again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import structlog

from usher_core.errors import RemoteError
from usher_core.ids import Route
from usher_core.keys import KeyFile, held_keys
from usher_core.peers import Endpoint, is_ip, parse_peer_file
from usher_relay.endpoint import as_source
from usher_relay.probe_socket import ProbeSocket
from usher_relay.trunk.endpoints import EndpointView, PeerEndpoints
from usher_relay.trunk.keys import TrunkKeys
from usher_relay.trunk.names import PeerNames
from usher_relay.trunk.peer_table import PeerAddresses, PeerTable
from usher_relay.trunk.probe import NONCE_LENGTH, build_probe, held_ids, read_reply
from usher_shell.watched_file import SourceStatus, WatchedFile

log = structlog.get_logger()

LOOK_EVERY_S: Final = 0.05


class Peering:
    """The peers of one relay.

    Args:
        path: of the peers file.
        keys: with those of the trunks.
        publish: gets each new table.
        names: resolves the names in the file.

    Raises LocalError when the file can't be read at the start.
    """

    def __init__(
        self, path: Path, keys: KeyFile, publish: Callable[[PeerTable], None], names: PeerNames | None = None
    ) -> None:
        self._file = WatchedFile(path, parse_peer_file, "peers file")
        self._publish = publish
        self._published: dict[int, PeerAddresses] | None = None
        self._peers: dict[int, PeerEndpoints] = {}
        self._names = names or PeerNames()
        self._own_clusters: AbstractSet[int] = frozenset()
        self._warnings: AbstractSet[str] = frozenset()
        self.set_keys(keys)

    def set_keys(self, keys: KeyFile) -> None:
        """Swap the keys. Raises LocalError when they are of no use."""
        trunks, held = TrunkKeys(keys.hop), held_keys(keys)
        self._held = {cluster: held_ids(held, (cluster,), own) for cluster, own in trunks.all()}
        self._keys = trunks

    def set_own_clusters(self, clusters: AbstractSet[int]) -> None:
        """Say which clusters the relay's own routes are of."""
        self._own_clusters = clusters

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
            self._take_file(time.monotonic())
            while True:
                now, unix = time.monotonic(), time.time()
                if self._file.look():
                    self._take_file(now)
                if self._names.look(now):
                    self._set_peers()
                self._probe(sock, now, unix)
                self._publish_changes(now)
                await asyncio.sleep(LOOK_EVERY_S)

    # The file

    def _take_file(self, now: float) -> None:
        hosts = {endpoint.host for peer in self._file.value.peers for endpoint in peer.endpoints}
        self._names.set_names({host for host in hosts if not is_ip(host)}, now)
        self._set_peers()

    def _set_peers(self) -> None:
        peers = {peer.cluster: self._peers.get(peer.cluster) or PeerEndpoints() for peer in self._file.value.peers}
        for peer in self._file.value.peers:
            peers[peer.cluster].set_addresses(
                (address, endpoint.weight) for endpoint in peer.endpoints for address in self._addresses_of(endpoint)
            )
        self._peers = peers  # at once: other threads may be reading the old ones

    def _addresses_of(self, endpoint: Endpoint) -> Iterator[tuple[str, int]]:
        hosts = (endpoint.host,) if is_ip(endpoint.host) else self._names.addresses(endpoint.host)
        return (as_source(host, endpoint.port) for host in hosts)

    # Probes

    def _probe(self, sock: ProbeSocket, now: float, unix: float) -> None:
        newest = self._keys.newest(unix)
        for cluster, peer in self._peers.items():
            key = newest.get(cluster.to_bytes(2))
            if key is None:
                continue
            for way in peer.ways.values():
                if way.health.is_due(now):
                    nonce = secrets.token_bytes(NONCE_LENGTH)
                    way.health.on_sent(nonce, now)
                    sock.send(build_probe(Route(cluster, 0, 0), nonce, self._held[cluster], key, unix), way.address)

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
        self._log_warnings()
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

    def _log_warnings(self) -> None:
        warnings = set(self._find_warnings())
        for warning in sorted(warnings - self._warnings):
            log.warning(warning)
        self._warnings = warnings

    def _find_warnings(self) -> Iterator[str]:
        for cluster in self._peers:
            if not self._keys.of(cluster.to_bytes(2)):
                yield f"no hop key for the trunk to cluster {cluster}: run `usher keys trunk`"
            if cluster in self._own_clusters:
                yield f"cluster {cluster} has routes here and stands in the peers file; the routes here count"
