"""What a plan may ask for. `plan` returns these in order; `apply` carries them out and stops at the first conflict.

A transceiver that does not answer holds up only the patches that name it in `waits_for`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Names one object. `kind` with its API group and version, as `apps/v1` and `Deployment`."""

    api_version: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of everything we want of an object, with our field manager and force.

    An object that exists keeps what it has at the paths `keeps`: what the manifest says there is for a new one.
    """

    manifest: Manifest
    keeps: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object; a conflict (409) when one of that name exists."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Replace:
    """Write an object as a whole. Its `metadata.resourceVersion` makes this a compare-and-swap (409 when it lost)."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """RFC 6902 operations in one request; a `test` among them makes it a compare-and-swap.

    It is left out when one of the pods named in `waits_for` did not answer its SetDrain of the same plan. Nothing rests
    on one that `stands_alone`: the plan goes on when it is refused or meets a conflict.
    """

    target: Reference
    operations: tuple[Mapping[str, Any], ...]
    waits_for: tuple[str, ...] = ()
    stands_alone: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object, only the one with that uid."""

    target: Reference
    uid: str


@dataclass(frozen=True, slots=True)
class SetDrain:
    """Tell a transceiver by its internal API to drain, or to take calls again. `http`: base URL.

    From its reply on it refuses every create (design D14). SetDrains that follow one another are sent together.
    """

    pod: str
    http: str
    drain: bool


@dataclass(frozen=True, slots=True)
class Tell:
    """Post a Kubernetes Event about the pool."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Action = Apply | Create | Replace | JsonPatch | Delete | SetDrain | Tell


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of one look at a pool.

    Attributes:
        actions: what to do, in order.
        status: the whole `status` of the pool; written when it differs from what is there.
        look_again: seconds until the next look even if nothing happens; None: the usual time of the reconciler.
        done: of a pool that is being deleted: nothing of it is left that has to drain, so its finalizer may go.
    """

    actions: tuple[Action, ...]
    status: Manifest
    look_again: float | None = None
    done: bool = False
