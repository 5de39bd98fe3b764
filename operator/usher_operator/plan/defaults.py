"""What the operator was told for all pools."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Defaults:
    """Settings that plans use.

    Attributes:
        relay_image: image of relays whose pool names none.
        transceiver_image: image of transceivers whose pool names none.
        identity_namespace: where the Leases of cluster ids are.
        first_cluster_id: lowest id given to a pool that pins none.
        last_cluster_id: highest one, included.
        namespaces: namespaces in which the operator sees pools and pods; empty: all. A cluster id whose holder lives
            elsewhere is never taken over, since nobody here can know that it is gone.
        image_pull_secrets: Secrets for the registry of pools that name none.
    """

    relay_image: str
    transceiver_image: str
    identity_namespace: str
    first_cluster_id: int
    last_cluster_id: int
    namespaces: frozenset[str] = frozenset()
    image_pull_secrets: tuple[str, ...] = ()

    def sees(self, namespace: str) -> bool:
        """Return whether the operator sees that namespace."""
        return not self.namespaces or namespace in self.namespaces
