"""What both kinds of pools have in common about their children: whose they are, and how they are named in messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from usher_operator.actions import Delete, Reference
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.conditions import Verdict
from usher_operator.seen import Json

_MAY_GO = ("ConfigMap", "Service")


def key_of(child: Json) -> str:
    """Return `Kind/name`."""
    return f"{child['kind']}/{child['metadata']['name']}"


def is_owned(child: Json | None, uid: str) -> bool:
    """Return whether an object belongs to the pool with that uid."""
    owners = ((child or {}).get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def is_ours(child: Json | None, pool: RelayPool | TransceiverPool) -> bool:
    """Return whether an object belongs to just this pool, not to an earlier one with its name."""
    return is_owned(child, pool.metadata.uid)


def leftovers(pool: RelayPool | TransceiverPool, there: Mapping[str, Json], wanted: Iterable[Json]) -> list[Delete]:
    """Return the deletion of children that no pod uses any more, such as the configuration of a backend without one.

    Args:
        pool: whose they are.
        there: the children that may be in vain, by `Kind/name`.
        wanted: the manifests of all that shall be there.
    """
    kept, found = {key_of(child) for child in wanted}, []
    for key, child in there.items():
        kind, _, name = key.partition("/")
        if kind in _MAY_GO and key not in kept and is_ours(child, pool):
            found.append(Delete(Reference("v1", kind, pool.metadata.namespace, name), child["metadata"]["uid"]))
    return found


def name_taken(children: Mapping[str, Json | None], pool: RelayPool | TransceiverPool) -> Verdict | None:
    """Return an Accepted that names the first child which is somebody else's; None when there is none.

    Args:
        children: by `Kind/name`; None for those that do not exist.
        pool: whose they should be.
    """
    for key, child in children.items():
        if child is not None and not is_ours(child, pool):
            text = (
                f"{key} exists and is not of this pool. After a deletion it goes by itself; otherwise delete it, or "
                "give the pool another name."
            )
            return Verdict("Accepted", "False", "NameTaken", text)
    return None
