"""What is wrong with the Secrets that a pool names."""

from __future__ import annotations

from collections.abc import Mapping

from usher_operator.api.common import LocalReference
from usher_operator.conditions import Verdict
from usher_operator.seen import RelayPoolSeen, TransceiverPoolSeen

FORBIDDEN = "SecretForbidden"
"""Whether the Secret exists is not known; its pods mount it without us."""


def secrets_fault(
    references: Mapping[str, LocalReference | None], seen: RelayPoolSeen | TransceiverPoolSeen, namespace: str
) -> Verdict | None:
    """Return a KeysReady that names the first Secret which is missing, or else which the operator may not read.

    Args:
        references: by their field of the pool, such as `spec.keys.secretRef`; None where the field is left out.
        seen: knows which Secrets exist.
        namespace: of the pool.
    """
    named = [(field, reference.name) for field, reference in references.items() if reference is not None]
    for field, name in named:
        if name not in seen.secrets | seen.secrets_forbidden:
            text = f"Secret {name} of {field} does not exist in namespace {namespace}: make it."
            return Verdict("KeysReady", "False", "SecretMissing", text)
    for field, name in named:
        if name in seen.secrets_forbidden:
            text = (
                f"The operator may not read Secret {name} of {field} in namespace {namespace}: add {name} to "
                "rbac.secretNames of the chart. Pods mount it all the same."
            )
            return Verdict("KeysReady", "False", FORBIDDEN, text)
    return None
