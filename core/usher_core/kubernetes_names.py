"""Labels of transceiver pods, written by the operator and read by relays and signaling (design D12)."""

from __future__ import annotations

POOL_LABEL = "usher.fleet/pool"
CLUSTER_ID_LABEL = "usher.fleet/cluster-id"
POD_ID_LABEL = "usher.fleet/pod-id"
STATE_LABEL = "usher.fleet/state"
REGION_LABEL = "usher.fleet/region"
