"""Names that stand in Kubernetes objects; other programs, people and charts rely on them."""

from __future__ import annotations

from collections.abc import Mapping

from usher_core.kubernetes_names import (
    ACTIVE,
    API_VERSION,
    CLUSTER_ID_LABEL,
    COMPONENT_LABEL,
    DRAINING,
    GROUP,
    HOP_PORT_NAME,
    HTTP_PORT_NAME,
    POD_ID_LABEL,
    POOL_LABEL,
    REGION_LABEL,
    STATE_LABEL,
    TRANSCEIVER,
    VERSION,
)

__all__ = [
    "ACTIVE",
    "API_VERSION",
    "CLUSTER_ID_LABEL",
    "COMPONENT_LABEL",
    "DRAINING",
    "GROUP",
    "HOP_PORT_NAME",
    "HTTP_PORT_NAME",
    "POD_ID_LABEL",
    "POOL_LABEL",
    "REGION_LABEL",
    "STATE_LABEL",
    "TRANSCEIVER",
    "VERSION",
]

FIELD_MANAGER = "usher-operator"
FINALIZER = f"{GROUP}/drain"

POD_ID_GATE = f"{GROUP}/pod-id"
"""Scheduling gate of a transceiver pod that has no pod id yet."""

ROUND_ANNOTATION = f"{GROUP}/drain-round"
"""On the Deployment of transceivers: grows whenever pods are called back. On a draining pod: when it was chosen."""

REVISION_LABEL = f"{GROUP}/revision"
"""On children: hash of what we sent, so that a look tells whether they are up to date."""

KEY_SET_SECRET = "usher-keys"
"""Secret with all keys of a namespace; only the operator reads it."""
RELAY_KEYS_SECRET = "usher-relay-keys"
TRANSCEIVER_KEYS_SECRET = "usher-transceiver-keys"
SIGNALING_KEYS_SECRET = "usher-signaling-keys"
"""Secrets with a `keys.json` of what one kind of program may know."""
KEYS_FILE = "keys.json"
TOKEN_SECRET = "usher-internal-token"
"""Secret whose `token` opens the internal API of the namespace's transceivers."""
TOKEN_FILE = "token"
ROTATE_ANNOTATION = f"{GROUP}/rotate"
"""On the key set Secret: a new value asks for a rotation now."""

LAST_POD_ID_ANNOTATION = f"{GROUP}/last-pod-id"
"""On the Lease of a cluster id: the highest pod id ever given."""

DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
AUTOSCALER_SAFE_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict"
KARPENTER_ANNOTATION = "karpenter.sh/do-not-disrupt"

INSTANCE_LABEL = "app.kubernetes.io/instance"
NAME_LABEL = "app.kubernetes.io/name"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"

APP = "usher"
MANAGED_BY = "usher-operator"
RELAY = "relay"

ADMIN_PORT_NAME = "admin"
ADMIN_PORT = 9478
"""Of relays: the pages that tell their flows and keys."""


def pool_labels(component: str, pool: str) -> dict[str, str]:
    """Return the labels that select the pods of a pool; they never change, since selectors can't."""
    return {NAME_LABEL: APP, COMPONENT_LABEL: component, POOL_LABEL: pool}


def selector_of(labels: Mapping[str, str]) -> str:
    """Return the label selector of what has all these labels."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def child_labels(component: str, pool: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a pool."""
    return {**pool_labels(component, pool), INSTANCE_LABEL: pool, MANAGED_BY_LABEL: MANAGED_BY}
