"""The private directory of one run: keys, token, route and peers files. Removed at the end.

One region has all its files in the directory itself. Of several each has a folder `region-N` with what its relays and
transceivers read; the directory itself has what all signaling reads.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from usher_cli.key_files import (
    RELAY_FILE,
    SIGNALING_FILE,
    TOKEN_FILE,
    TRANSCEIVER_FILE,
    key_file_text,
    read_key_file,
    write_key_files,
)
from usher_cli.keys_trunk import join
from usher_cli.up.atomic_file import write_atomically
from usher_cli.up.settings import region_name
from usher_core.errors import LocalError
from usher_core.peers import Endpoint, Peer, PeerFile
from usher_core.routes import RouteFile, Transceiver


@dataclass(frozen=True, slots=True)
class RegionFiles:
    """What the relays and transceivers of one region read."""

    path: Path

    @property
    def relay_keys(self) -> str:
        return str(self.path / RELAY_FILE)

    @property
    def transceiver_keys(self) -> str:
        return str(self.path / TRANSCEIVER_FILE)

    @property
    def routes(self) -> str:
        return str(self.path / "routes.json")

    @property
    def peers(self) -> str:
        return str(self.path / "peers.json")

    def write_peers(self, endpoints: Mapping[int, Sequence[str]]) -> None:
        """Replace the peers file: trunk addresses by cluster id. Raises LocalError when it can't be written."""
        peers = tuple(
            Peer(cluster=cluster, endpoints=tuple(Endpoint(address=address) for address in addresses))
            for cluster, addresses in endpoints.items()
        )
        write_atomically(Path(self.peers), PeerFile(version=1, peers=peers).model_dump_json())


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A directory of mode 0700 in the system's place for temporary files; a context manager that removes it."""

    path: Path
    regions: int = 1

    @classmethod
    def make(cls, regions: int = 1, clusters: int = 1) -> Self:
        """Make the directory with fresh keys and empty route files; cluster N is that of region N.

        Raises LocalError when that fails.
        """
        try:
            directory = cls(Path(tempfile.mkdtemp(prefix="usher-up-")), regions)
        except OSError as error:
            raise LocalError(f"no place for temporary files: {error.strerror}", "TMPDIR can name one") from None
        try:
            now = time.time()
            # Cluster 1's; with several regions only what signaling reads is used of it.
            write_key_files(directory.path, [1], now)
            if regions > 1:
                directory._write_keys_of_regions(clusters, now)
            directory.write_routes([])
        except LocalError:
            directory.__exit__()
            raise
        return directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def signaling_keys(self) -> str:
        return str(self.path / SIGNALING_FILE)

    @property
    def token(self) -> str:
        return str(self.path / TOKEN_FILE)

    @property
    def routes(self) -> str:
        return RegionFiles(self.path).routes

    def of(self, region: int) -> RegionFiles:
        """Return the files of a region, counted from 1."""
        return RegionFiles(self.path if self.regions == 1 else self.path / region_name(region))

    def write_routes(self, transceivers: Iterable[Transceiver]) -> None:
        """Replace the route files, which relays and signaling read again. Raises LocalError when one can't be written.

        Signaling knows all transceivers, relays those of their own cluster alone: the way to others is by their relays.
        """
        known = tuple(transceivers)
        if self.regions > 1:
            for region in range(1, self.regions + 1):
                _write_route_file(self.of(region).routes, [each for each in known if each.cluster == region])
        _write_route_file(self.routes, known)

    def _write_keys_of_regions(self, clusters: int, now: float) -> None:
        every = range(1, self.regions + 1)
        for region in every:
            for written in write_key_files(self.of(region).path, [region], now):
                if written.name in (SIGNALING_FILE, TOKEN_FILE):
                    written.unlink()  # all regions have one of each
            self.of(region).write_peers({})
        relays = {region: read_key_file(Path(self.of(region).relay_keys)) for region in every}
        for home in range(1, clusters + 1):
            for ingress in every:
                if ingress != home:
                    joined = join(relays[home], relays[ingress], home, ingress, now, with_passwords=False)
                    relays[home], relays[ingress] = joined
        for region, keys in relays.items():
            write_atomically(Path(self.of(region).relay_keys), key_file_text(keys))


def _write_route_file(path: str, transceivers: Sequence[Transceiver]) -> None:
    file = RouteFile(version=1, transceivers=tuple(transceivers))
    write_atomically(Path(path), json.dumps(file.model_dump(mode="json")))
