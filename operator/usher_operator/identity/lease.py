"""The Lease of a cluster id: who holds it, and the highest pod id ever given under it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from usher_core.decimals import read_decimal
from usher_core.ids import MAX_CLUSTER, MAX_POD
from usher_operator.names import APP, LAST_POD_ID_ANNOTATION, MANAGED_BY, MANAGED_BY_LABEL, NAME_LABEL
from usher_operator.seen import Json
from usher_operator.times import micro_timestamp
from usher_operator.transitions import next_transitions

_PREFIX = "usher-cluster-"


@dataclass(frozen=True, slots=True)
class ClusterLease:
    """A Lease as it was read. `holder`: `namespace/name` of a pool, or "". `last_pod_id`: 0 when none was given."""

    cluster: int
    holder: str
    last_pod_id: int
    manifest: Json


def lease_name(cluster: int) -> str:
    """Return the name of a cluster id's Lease; that two can't have one name is what keeps ids apart."""
    return f"{_PREFIX}{cluster}"


def read_leases(manifests: Iterable[Json]) -> dict[int, ClusterLease]:
    """Return the Leases of cluster ids by their number; other Leases are left out."""
    leases = {}
    for manifest in manifests:
        digits = manifest["metadata"]["name"].removeprefix(_PREFIX)
        cluster = read_decimal(digits, MAX_CLUSTER, 1)
        if cluster and manifest["metadata"]["name"] == lease_name(cluster):
            annotations = manifest["metadata"].get("annotations") or {}
            last = read_decimal(annotations.get(LAST_POD_ID_ANNOTATION, ""), MAX_POD) or 0
            holder = (manifest.get("spec") or {}).get("holderIdentity") or ""
            leases[cluster] = ClusterLease(cluster, holder, last, manifest)
    return leases


def new_lease(cluster: int, namespace: str, holder: str, last_pod_id: int, now: float) -> dict[str, Any]:
    """Return the Lease to create; creating it fails for all but one."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": lease_name(cluster),
            "namespace": namespace,
            "labels": {NAME_LABEL: APP, MANAGED_BY_LABEL: MANAGED_BY},
            "annotations": {LAST_POD_ID_ANNOTATION: str(last_pod_id)},
        },
        "spec": {"holderIdentity": holder, "acquireTime": micro_timestamp(now), "leaseTransitions": 0},
    }


def moved_lease(lease: ClusterLease, holder: str, last_pod_id: int, now: float) -> dict[str, Any]:
    """Return the Lease with another holder or last id; its resourceVersion makes writing it a compare-and-swap."""
    metadata = dict(lease.manifest["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), LAST_POD_ID_ANNOTATION: str(last_pod_id)}
    spec = dict(lease.manifest.get("spec") or {})
    if holder != lease.holder:
        transitions = next_transitions(spec.get("leaseTransitions"))
        spec |= {"holderIdentity": holder, "acquireTime": micro_timestamp(now), "leaseTransitions": transitions}
    return {**lease.manifest, "metadata": metadata, "spec": spec}
