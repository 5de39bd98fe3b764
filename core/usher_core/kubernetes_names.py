"""Names in Kubernetes objects that the operator writes and relays and signaling read (design D12)."""

from __future__ import annotations

GROUP = "usher.fleet"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

POOL_LABEL = f"{GROUP}/pool"
CLUSTER_ID_LABEL = f"{GROUP}/cluster-id"
POD_ID_LABEL = f"{GROUP}/pod-id"
STATE_LABEL = f"{GROUP}/state"
REGION_LABEL = f"{GROUP}/region"
COMPONENT_LABEL = "app.kubernetes.io/component"

TRANSCEIVER = "transceiver"
"""Value of COMPONENT_LABEL."""
ACTIVE = "active"
DRAINING = "draining"
"""Values of STATE_LABEL: only active pods take new calls and count for an HPA."""

HOP_PORT_NAME = "hop"
HTTP_PORT_NAME = "http"
"""Container ports of a transceiver."""

TRANSCEIVER_SELECTOR = f"{COMPONENT_LABEL}={TRANSCEIVER},{POD_ID_LABEL}"
"""Label selector of the pods that may have a route: transceivers that the operator has given an id."""
