"""What a RelayPool says of other clusters: whether their relays reach its trunk, and its own relays theirs.

Neither keeps a pool from being Ready: calls of its own cluster need no other one. Rules of a peer, the
first that holds; rule 1 alone is about the whole pool:

1. With one whose cluster id transceivers here have the pool is not Accepted: packets with that id stay here, so two
   clusters have one id. What runs goes on and nothing of it changes until one has another id: to leave out just that
   peer would end its calls, by a rollout, for a TransceiverPool that may be the wrong one.
2. Without a Secret, or with relays that don't hold its keys, its ufrags are dropped.
3. An endpoint that answers, and holds none of the keys by which our relays open ufrags of that cluster, is another
   cluster with the same id, or our keys are old ones.
4. It is down for a relay that gets an answer from none of its endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from usher_core.keys import ice_key_name
from usher_operator.api.relay_pool import RelayPool
from usher_operator.conditions import Verdict, some
from usher_operator.plan.secret_refs import needed_by_peers, needed_by_trunk, secret_missing
from usher_operator.render.trunk import trunk_service_name
from usher_operator.seen import EndpointSeen, RelayPoolSeen, TrunksSeen

EXPORT = "`usher keys trunk-secrets`"


def cluster_id_conflict(pool: RelayPool, seen: RelayPoolSeen) -> Verdict | None:
    """Return an Accepted that names another cluster with an id of ours; None: there is none."""
    neighbours = pool.spec.trunk.neighbours if pool.spec.trunk else []
    named = [(each.cluster_id, "spec.peers") for each in pool.spec.peers]
    named += [(each.cluster_id, "spec.trunk.neighbours") for each in neighbours]
    for cluster, field in named:
        if (owner := seen.clusters.get(cluster)) is not None:
            text = (
                f"Cluster {cluster} of {field} has the id of TransceiverPool {owner}, whose calls these relays carry: "
                "two clusters must not have one id. Pin another spec.clusterID in a TransceiverPool of one of them."
            )
            return Verdict("Accepted", "False", "ClusterIDConflict", text)
    return None


def trunk_ready(pool: RelayPool, seen: RelayPoolSeen, addresses: list[str]) -> Verdict | None:
    """Return whether relays of other clusters can use the trunk; None: there is none."""
    trunk, kind = pool.spec.trunk, "TrunkReady"
    if trunk is None:
        return None
    if missing := secret_missing(kind, needed_by_trunk(pool), seen, pool.metadata.namespace):
        return missing
    if not addresses:
        service = trunk_service_name(pool)
        text = (
            f"Service {service} has no address yet: see spec.trunk.exposure, and `kubectl describe service {service}`."
        )
        if trunk.exposure.type in ("NodePort", "HostPort"):
            text = (
                "No node with an address has a ready relay, or the operator sees no nodes (chart value rbac.readNodes)."
            )
        return Verdict(kind, "False", "AddressPending", text)
    if not seen.trunks:
        return _nobody_answers(kind)
    without = [
        str(each.cluster_id)
        for each in trunk.neighbours
        if any(each.cluster_id not in relay.hop for relay in seen.trunks)
    ]
    if without:
        text = (
            f"Not all relays hold a key of the trunk with cluster {some(without)}, so what it sends is dropped: "
            f"make it with {EXPORT}; a Secret that is there already needs a minute or two to reach them."
        )
        return Verdict(kind, "False", "KeyMissing", text)
    more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    return Verdict(kind, "True", "Exposed", f"Relays of other clusters reach these by {addresses[0]}{more}.")


def peers_up(pool: RelayPool, seen: RelayPoolSeen) -> str:
    """Return how many peers all relays reach, of all, such as `1/2`; "" where there are none."""
    wanted = [each.cluster_id for each in pool.spec.peers]
    up = sum(bool(seen.trunks) and not _down(cluster, seen.trunks) for cluster in wanted)
    return f"{up}/{len(wanted)}" if wanted else ""


def peers_reachable(pool: RelayPool, seen: RelayPoolSeen) -> Verdict | None:
    """Return whether the relays can hand packets on to the clusters of the peers; None: there are none."""
    kind, clusters = "PeersReachable", [each.cluster_id for each in pool.spec.peers]
    if not clusters:
        return None
    if missing := secret_missing(kind, needed_by_peers(pool), seen, pool.metadata.namespace):
        return missing
    if not seen.trunks:
        return _nobody_answers(kind)
    relays = seen.trunks
    return (
        _fault(clusters, relays, _without_keys, "KeyMissing", _KEY_MISSING)
        or _fault(clusters, relays, _with_other_keys, "OtherKeys", _OTHER_KEYS)
        or _fault(clusters, relays, _down, "PeerDown", _PEER_DOWN)
        or Verdict(kind, "True", "Reachable", f"The relays reach {_told(clusters, relays)}.")
    )


_KEY_MISSING = (
    "The relays lack a hop key of the trunk to cluster {clusters}, or ice keys that open its ufrags: make them with "
    f"{EXPORT}; a Secret that is there already needs a minute or two to reach them. Seen at {{pods}}."
)
_OTHER_KEYS = (
    "What answers as cluster {clusters} holds none of the ice keys that the relays have for it: give them the newest "
    f"with {EXPORT}, unless two clusters have this id. Seen at {{pods}}."
)
_PEER_DOWN = (
    "No endpoint of cluster {clusters} answers, so calls there are silent: see its condition TrunkReady, the addresses "
    "in spec.peers, firewalls, and that both sides hold one key of the trunk. Seen at {pods}."
)

_Judge = Callable[[int, Iterable[TrunksSeen]], list[str]]
"""Names the relays for which something is wrong with a cluster."""


def _fault(
    clusters: Iterable[int], relays: tuple[TrunksSeen, ...], judge: _Judge, reason: str, text: str
) -> Verdict | None:
    wrong = {cluster: pods for cluster in clusters if (pods := judge(cluster, relays))}
    if not wrong:
        return None
    pods = sorted({pod for seen_at in wrong.values() for pod in seen_at})
    told = text.format(clusters=some([str(cluster) for cluster in wrong]), pods=some(pods))
    return Verdict("PeersReachable", "False", reason, told)


def _without_keys(cluster: int, relays: Iterable[TrunksSeen]) -> list[str]:
    return [relay.pod for relay in relays if cluster not in relay.hop or not relay.ice.get(cluster)]


def _with_other_keys(cluster: int, relays: Iterable[TrunksSeen]) -> list[str]:
    def differs(relay: TrunksSeen, way: EndpointSeen) -> bool:
        ours = {ice_key_name(cluster, letter) for letter in relay.ice[cluster]}
        return way.up and way.heard_s is not None and ours.isdisjoint(way.held_ice)

    return [relay.pod for relay in relays if any(differs(relay, way) for way in _ways(relay, cluster))]


def _down(cluster: int, relays: Iterable[TrunksSeen]) -> list[str]:
    return [relay.pod for relay in relays if not any(each.up for each in _ways(relay, cluster))]


def _ways(relay: TrunksSeen, cluster: int) -> Iterator[EndpointSeen]:
    return (each for each in relay.endpoints if each.cluster == cluster)


def _told(clusters: Iterable[int], relays: Iterable[TrunksSeen]) -> str:
    parts = []
    for cluster in clusters:
        ways = {each.address: True for relay in relays for each in _ways(relay, cluster)}
        down = sorted({each.address for relay in relays for each in _ways(relay, cluster) if not each.up})
        lack = f", not all by {some(down)}" if down else ""
        parts.append(f"cluster {cluster} by {len(ways)} address{'es' if len(ways) > 1 else ''}{lack}")
    return some(parts)


def _nobody_answers(kind: str) -> Verdict:
    return Verdict(kind, "Unknown", "NoAnswer", "No ready relay says how it is.")
