"""The Secrets that a pool names: which keys of them its pods need, and what is wrong with them.

What a Secret holds is nobody's business here but for the names of its keys, and only where the operator may look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.api.trunk import Neighbour, Peer
from usher_operator.conditions import Verdict
from usher_operator.names import KEYS_FILE, TOKEN_FILE
from usher_operator.seen import RelayPoolSeen, TransceiverPoolSeen

FORBIDDEN = "SecretForbidden"
"""Whether the Secret exists is not known; its pods mount it without us."""


def holds_up(verdict: Verdict) -> bool:
    """Return whether a pool waits for what a condition is about. For what only we may not look at, none does."""
    return verdict.status != "True" and (verdict.status, verdict.reason) != ("Unknown", FORBIDDEN)


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A key of a Secret of the pool's namespace. `field`: of the pool that names it, such as `spec.keys.secretRef`."""

    field: str
    secret: str
    key: str


def needed_keys(pool: RelayPool | TransceiverPool) -> list[SecretKey]:
    """Return where the keys and the token of a pool are, as far as it names Secrets of its own."""
    needed = []
    if (keys := pool.spec.keys.secret_ref) is not None:
        needed.append(SecretKey("spec.keys.secretRef", keys.name, KEYS_FILE))
    if isinstance(pool, TransceiverPool) and (token := pool.spec.internal_token_secret_ref) is not None:
        needed.append(SecretKey("spec.internalTokenSecretRef", token.name, TOKEN_FILE))
    return needed


def needed_by_backend(pool: TransceiverPool) -> list[SecretKey]:
    """Return what the backend of a TransceiverPool takes from Secrets."""
    realtime = pool.spec.backend.realtime
    references = (
        {}
        if realtime is None
        else {"apiKeySecretRef": realtime.api_key_secret_ref, "headersSecretRef": realtime.headers_secret_ref}
    )
    return [
        SecretKey(f"spec.backend.realtime.{field}", reference.name, reference.key)
        for field, reference in references.items()
        if reference is not None
    ]


def needed_by_redis(pool: RelayPool) -> list[SecretKey]:
    """Return what relays take from Secrets to reach Redis."""
    redis = pool.spec.redis
    if redis is None:
        return []
    url, ca = redis.url_secret_ref, redis.ca_secret_ref
    of_ca = [] if ca is None else [SecretKey("spec.redis.caSecretRef", ca.name, ca.key)]
    return [SecretKey("spec.redis.urlSecretRef", url.name, url.key), *of_ca]


def needed_by_trunk(pool: RelayPool) -> list[SecretKey]:
    """Return where the keys of those clusters are whose relays may use the trunk."""
    return _of_trunks("spec.trunk.neighbours", pool.spec.trunk.neighbours if pool.spec.trunk else ())


def needed_by_peers(pool: RelayPool) -> list[SecretKey]:
    """Return where the keys of the ways to other clusters are."""
    return _of_trunks("spec.peers", pool.spec.peers)


def _of_trunks(field: str, ends: Iterable[Neighbour | Peer]) -> list[SecretKey]:
    return [
        SecretKey(f"{field}[clusterID={each.cluster_id}]", each.key_secret_ref.name, KEYS_FILE)
        for each in ends
        if each.key_secret_ref is not None
    ]


def named_secrets(pool: RelayPool | TransceiverPool) -> list[str]:
    """Return the names of all Secrets that the conditions of a pool are about."""
    needed = needed_keys(pool)
    if isinstance(pool, TransceiverPool):
        needed += needed_by_backend(pool)
    else:
        needed += [*needed_by_redis(pool), *needed_by_trunk(pool), *needed_by_peers(pool)]
    return sorted({each.secret for each in needed})


def secret_missing(
    kind: str, needed: Sequence[SecretKey], seen: RelayPoolSeen | TransceiverPoolSeen, namespace: str
) -> Verdict | None:
    """Return a condition that names the first Secret or key which is missing; None when none is.

    Args:
        kind: of the condition.
        needed: by pods of the pool.
        seen: knows the Secrets.
        namespace: of the pool.
    """
    for each in needed:
        if each.secret in seen.secrets_forbidden:
            continue
        what = f"Secret {each.secret} of {each.field}"
        if each.secret not in seen.secrets:
            text = f"{what} does not exist in namespace {namespace}: make it."
            return Verdict(kind, "False", "SecretMissing", text)
        if each.key not in seen.secrets[each.secret]:
            text = f"{what} in namespace {namespace} has no key {each.key}, or an empty one: add it."
            return Verdict(kind, "False", "SecretKeyMissing", text)
    return None


def secrets_verdict(
    kind: str, needed: Sequence[SecretKey], seen: RelayPoolSeen | TransceiverPoolSeen, namespace: str
) -> Verdict | None:
    """Return a condition about Secrets that only pods use; None where they use none.

    It is Unknown where the operator may not look, which keeps nothing from going on: an API key is nothing that it has
    to read.
    """
    if not needed:
        return None
    names = ", ".join(sorted({each.secret for each in needed}))
    return (
        secret_missing(kind, needed, seen, namespace)
        or secret_forbidden(kind, "Unknown", needed, seen, namespace)
        or Verdict(kind, "True", "SecretsFound", f"What pods take from Secrets is there: {names}.")
    )


def secret_forbidden(
    kind: str,
    status: Literal["False", "Unknown"],
    needed: Sequence[SecretKey],
    seen: RelayPoolSeen | TransceiverPoolSeen,
    namespace: str,
) -> Verdict | None:
    """Return a condition of that status that names the first Secret which the operator may not read; None: it may."""
    for each in needed:
        if each.secret in seen.secrets_forbidden:
            text = (
                f"The operator may not read Secret {each.secret} of {each.field} in namespace {namespace}: add "
                f"{each.secret} to rbac.secretNames of the chart. Pods mount it all the same."
            )
            return Verdict(kind, status, FORBIDDEN, text)
    return None
