"""Which cluster id a pool has or may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.conditions import Verdict
from usher_operator.identity.lease import ClusterLease
from usher_operator.plan.defaults import Defaults

_CONDITION = "ClusterIDAllocated"
_NOT_ACCEPTED = Verdict(
    _CONDITION, "Unknown", "NotAccepted", "The pool claims a cluster id once its spec is accepted; see Accepted."
)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a pool may do about its cluster id.

    Attributes:
        cluster: the id to work under; None when there is none, and then no child is made.
        lease: its Lease as it is; None: to be created.
        is_held: whether that Lease names the pool already. If not, writing the Lease comes first.
    """

    cluster: int | None
    lease: ClusterLease | None
    is_held: bool
    verdict: Verdict


def pool_identity(pool: TransceiverPool) -> str:
    """Return how Leases name a pool: a new pool of the same name resumes."""
    return f"{pool.metadata.namespace}/{pool.metadata.name}"


def claim_cluster_id(
    pool: TransceiverPool,
    leases: Mapping[int, ClusterLease],
    holders: frozenset[str],
    defaults: Defaults,
    used: frozenset[int] = frozenset(),
    *,
    is_accepted: bool = True,
) -> Claim:
    """Return the pool's claim. An id that the pool has used it keeps for good.

    Args:
        pool: the pool.
        leases: of all cluster ids that anybody had.
        holders: pools that still exist or have pods.
        defaults: of the operator.
        used: cluster ids that pods and Deployment of this pool carry.
        is_accepted: whether the spec can work; if not, no id is claimed that other pools could have.
    """
    me = pool_identity(pool)
    pinned = pool.spec.cluster_id
    cluster = _own(pool, me, leases, used) or _free(leases, holders, defaults)
    if cluster is None:
        return Claim(None, None, is_held=False, verdict=_exhausted(defaults))
    lease = leases.get(cluster)
    if lease is not None and lease.holder != me and not _is_free(lease, holders, defaults):
        return Claim(None, lease, is_held=False, verdict=_taken(cluster, lease.holder))
    is_held = lease is not None and lease.holder == me
    if not (is_held or is_accepted or cluster in used):
        return Claim(None, lease, is_held=False, verdict=_NOT_ACCEPTED)
    return Claim(cluster, lease, is_held, _verdict(cluster, pinned, is_held=is_held))


def candidates(pool: TransceiverPool, leases: Iterable[ClusterLease]) -> frozenset[int]:
    """Return the cluster ids of which one may be the pool's already."""
    me = pool_identity(pool)
    told = {pool.status.cluster_id, pool.spec.cluster_id} | {lease.cluster for lease in leases if lease.holder == me}
    return frozenset(each for each in told if each is not None)


def _own(pool: TransceiverPool, me: str, leases: Mapping[int, ClusterLease], used: frozenset[int]) -> int | None:
    """Return the id that the pool has or asks for.

    People can write a status, or restore that of another pool: Lease, pods and Deployment tell what it really has.
    """
    told = pool.status.cluster_id
    held = frozenset(cluster for cluster, lease in leases.items() if lease.holder == me)
    if told is not None:
        is_lost = not held and (told not in leases or not leases[told].holder)
        if told in held | used or is_lost:
            return told
    return pool.spec.cluster_id or min(held & used, default=None) or min(held, default=None)


def _free(leases: Mapping[int, ClusterLease], holders: frozenset[str], defaults: Defaults) -> int | None:
    """Return the lowest id that nobody ever had, or else the lowest one that was given back."""
    ids = range(defaults.first_cluster_id, defaults.last_cluster_id + 1)
    unused = next((cluster for cluster in ids if cluster not in leases), None)
    if unused is not None:
        return unused
    return next((cluster for cluster in ids if _is_free(leases[cluster], holders, defaults)), None)


def _is_free(lease: ClusterLease, holders: frozenset[str], defaults: Defaults) -> bool:
    """Return whether another pool may take it: the holder and all its pods are gone, as far as we can know."""
    if not lease.holder:
        return True
    namespace = lease.holder.partition("/")[0]
    return lease.holder not in holders and defaults.sees(namespace)


def _verdict(cluster: int, pinned: int | None, *, is_held: bool) -> Verdict:
    if not is_held:
        return Verdict(_CONDITION, "Unknown", "Claiming", f"Cluster id {cluster} is being claimed.")
    if pinned is not None and pinned != cluster:
        return Verdict(
            _CONDITION,
            "False",
            "Immutable",
            f"spec.clusterID is {pinned}, but the pool has cluster id {cluster} for good. Set spec.clusterID to "
            f"{cluster}, or make another pool for {pinned}.",
        )
    return Verdict(_CONDITION, "True", "Allocated", f"Cluster id {cluster} belongs to this pool.")


def _taken(cluster: int, holder: str) -> Verdict:
    return Verdict(
        _CONDITION,
        "False",
        "Taken",
        f"Cluster id {cluster} is held by pool {holder}. Make this pool anew with another spec.clusterID or none; or "
        "delete that pool, and this one gets the id once all its pods are gone.",
    )


def _exhausted(defaults: Defaults) -> Verdict:
    return Verdict(
        _CONDITION,
        "False",
        "RangeExhausted",
        f"All cluster ids of the operator's range {defaults.first_cluster_id} to {defaults.last_cluster_id} are in "
        "use. Widen the range in the operator's settings, pin one with spec.clusterID, or delete a pool.",
    )
