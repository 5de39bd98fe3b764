"""What shall happen to the keys of a namespace next: made, handed out, switched, removed (design D3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from usher_core.internal_api import HeldKeys
from usher_operator.actions import Action
from usher_operator.seen import Json, PodSeen


@dataclass(frozen=True, slots=True)
class Holder:
    """A relay or transceiver pod whose keys the operator makes, and what it says it holds.

    `held`: its answer (relay: admin page `/keys`; transceiver: `GET /internal/v1/keys`); None when it did not answer.
    """

    pod: PodSeen
    held: HeldKeys | None


@dataclass(frozen=True, slots=True)
class KeysSeen:
    """What `plan_keys` needs of a namespace.

    Read the Secrets before the pods, and the pods before their answers: then no pod that was made before a key was
    handed out is missed.
    """

    namespace: str
    secrets: Mapping[str, Json]
    """Whole objects by name, of the five in `names`: KEY_SET, RELAY_KEYS, TRANSCEIVER_KEYS, SIGNALING_KEYS, TOKEN."""
    relays: tuple[Holder, ...]
    """All relay pods of the pools here without `spec.keys.secretRef`, ending ones too."""
    transceivers: tuple[Holder, ...]
    """The same of transceiver pods."""
    clusters: frozenset[int]
    """Cluster ids of the TransceiverPools here, and of all pods that still carry one."""
    longest_call: float
    """Seconds: the longest `maxSessionAge` of the TransceiverPools here."""
    is_wanted: bool
    """Whether a pool or a pod here uses keys or token that the operator makes; if not, they are deleted."""


@dataclass(frozen=True, slots=True)
class KeySettings:
    """What the operator's settings say of keys.

    `rotate_every`: seconds, 0 for on demand only. `clusters`: ids that every key serves from the start, at least one
    and at most 64: the first of the operator's range, so that a new pool need not wait until all relays know its id.
    """

    rotate_every: float
    clusters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeysPlan:
    """The outcome of one look at the keys of a namespace.

    Attributes:
        actions: what to do, in order; a conflict means that another operator was first: look again.
        key_ids: lines for the status of every pool here that uses these keys.
        fault: why the keys can't be used or kept up to date, with what to do; "" when all is well.
        note: what a rotation waits for, with the pods' names; "" when nothing is under way.
        served: cluster ids whose transceivers may start: all relays know them.
        look_again: seconds until the next look; 0 at once, None the usual time.
    """

    actions: tuple[Action, ...]
    key_ids: tuple[str, ...]
    fault: str = ""
    note: str = ""
    served: frozenset[int] = frozenset()
    look_again: float | None = None

    def fault_for(self, cluster: int | None) -> str:
        """Return `keys_fault` of a TransceiverPool with that cluster id; its pods stay gated while it is not ""."""
        if self.fault or cluster is None or cluster in self.served:
            return self.fault
        return f"not all relays hold a key for cluster {cluster} yet"


FRESH_BYTES = 256
"""Random bytes that `plan_keys` wants: enough for all keys of a generation and the token."""


def plan_keys(seen: KeysSeen, settings: KeySettings, now: float, fresh: bytes) -> KeysPlan:
    """Return the next step. Pure; `fresh` are FRESH_BYTES random bytes, new for every call, `now` Unix seconds.

    Each look takes one step and writes either the key set or what is derived from it, so that a crash between two
    actions and a second operator can do no harm: everything handed out stands in the key set first.
    """
    raise NotImplementedError
