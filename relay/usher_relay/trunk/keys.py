"""The hop keys of all trunks: by peer to send with, by id to open with.

A key's scope is the cluster at the other end. A datagram that comes over a trunk names only the id of its key, so the
keys of all trunks with that id are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from usher_core.errors import LocalError
from usher_core.keys import HopKey, index_by_id, newest_usable

MAX_KEYS_PER_ID = 8


class TrunkKeys:
    """Raises LocalError when two live keys of one trunk have an id, or more than 8 of all trunks: each costs a try."""

    def __init__(self, keys: Iterable[HopKey]) -> None:
        by_cluster: dict[bytes, list[HopKey]] = {}
        for key in keys:
            if key.scope != "local":
                by_cluster.setdefault(key.scope.to_bytes(2), []).append(key)
        self._by_cluster = {cluster: index_by_id(held) for cluster, held in by_cluster.items()}
        self._by_id: dict[int, list[tuple[bytes, HopKey]]] = {}
        for cluster, held in self._by_cluster.items():
            for number, key in held.items():
                self._by_id.setdefault(number, []).append((cluster, key))
        for number, found in self._by_id.items():
            if len(found) > MAX_KEYS_PER_ID:
                raise LocalError(f"more than {MAX_KEYS_PER_ID} trunk keys have the id {number}", "give them other ids")

    def of(self, cluster: bytes) -> dict[int, HopKey]:
        """Return the live keys of the trunk with a cluster by id, in the file's order; empty when there are none."""
        return self._by_cluster.get(cluster, {})

    def all(self) -> Iterable[tuple[int, Mapping[int, HopKey]]]:
        """Return (cluster id, live keys by id) of each trunk."""
        return ((int.from_bytes(cluster), held) for cluster, held in self._by_cluster.items())

    def candidates(self, number: int) -> list[tuple[bytes, HopKey]]:
        """Return (cluster, key) of every trunk that has a live key of this id."""
        return self._by_id.get(number, [])

    def youngest(self, cluster: bytes) -> HopKey | None:
        """Return the live key of a trunk that came last, whether or not it is active yet: the one to wait for."""
        # Of several with one time, the last in the file: new keys are put behind the others.
        return max(reversed(self.of(cluster).values()), key=lambda key: key.not_before, default=None)

    def newest(self, unix: float) -> dict[bytes, HopKey]:
        """Return the key to send with at `unix`, Unix seconds, by cluster."""
        return {cluster: newest_usable(held.values(), unix) for cluster, held in self._by_cluster.items() if held}
