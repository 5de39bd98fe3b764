"""What a plan looks at: plain values of the objects around a pool. Read from the API by `observe`; no I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from usher_core.decimals import read_decimal
from usher_core.ids import MAX_POD, join_host_port
from usher_core.internal_api import Load
from usher_operator.names import POD_ID_LABEL

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The parts of a pod that plans use. Times are Unix seconds."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    """Those that we write."""
    has_annotations: bool
    """Whether the pod has the map, with whatever annotations in it: a JSON patch that adds it replaces it."""
    created_at: float
    deleted_at: float | None
    phase: str
    """Pending, Running, Succeeded, Failed or Unknown."""
    ready: bool
    ip: str
    node: str
    gates: tuple[str, ...]
    """Names of the scheduling gates, in their order: a JSON patch removes one by its index."""
    waiting_reason: str
    """Why the main container waits, such as ImagePullBackOff; "" when it does not."""
    restarts: int
    has_controller: bool = True
    """Whether something makes and ends it, as a ReplicaSet does. People take a pod out, to look at it in peace."""
    is_up: bool = True
    """Whether its program has started and not ended, by its kubelet's last word; True where that says nothing."""

    @property
    def is_live(self) -> bool:
        """Whether it counts among the pods that its pool wants."""
        return self.has_controller and not self.is_ending

    @property
    def is_aside(self) -> bool:
        """Whether it goes on though it was taken out: another pod is in its place, and nothing will end it."""
        return not (self.has_controller or self.is_ending)

    @property
    def is_ending(self) -> bool:
        """Whether its deletion has begun or its containers have ended for good."""
        return self.deleted_at is not None or self.phase in ("Succeeded", "Failed")

    @property
    def can_answer(self) -> bool:
        """Whether there is a process, so that it can be asked; before that nothing can place a call on the pod."""
        return bool(self.ip) and self.phase in ("Running", "Unknown")

    @property
    def may_carry(self) -> bool:
        """Whether it may have calls or flows: a program that crashed or never came up has none."""
        return self.can_answer and self.is_up

    def base_url(self, port: int) -> str:
        """Return the base URL of its HTTP port."""
        return f"http://{join_host_port(self.ip, port)}"


def pod_ids(pods: Iterable[PodSeen]) -> tuple[int, ...]:
    """Return the pod ids on the labels of pods; what is no number is no id of ours."""
    numbers = (read_decimal(pod.labels.get(POD_ID_LABEL, ""), MAX_POD) for pod in pods)
    return tuple(number for number in numbers if number is not None)


@dataclass(frozen=True, slots=True)
class TransceiverPoolSeen:
    """Everything that `plan_transceiver_pool` needs beside the pool. Children are None when they do not exist."""

    pods: tuple[PodSeen, ...]
    """All pods of the pool, ending ones too."""
    cluster_pod_ids: tuple[int, ...]
    """Pod ids of all pods anywhere in sight that carry a cluster id which may be the pool's."""
    loads: Mapping[str, Load]
    """By pod uid; a pod that did not answer is missing."""
    deployment: Json | None
    children: Mapping[str, Json]
    """Other children by `Kind/name`: Service, PodDisruptionBudget, ServiceAccount, ConfigMap."""
    leases: tuple[Json, ...]
    """Leases of cluster ids in the identity namespace."""
    holders: frozenset[str] = frozenset()
    """`namespace/name` of pools that hold a cluster id and still exist or have pods."""
    secrets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of the Secrets that the pool names and that exist: the keys which have a value, by the name of the Secret."""
    secrets_forbidden: frozenset[str] = frozenset()
    """Names of those that the operator may not read."""
    key_ids: tuple[str, ...] = ()
    """Keys in use and their state, for the status."""
    keys_fault: str = ""
    """Why the keys are not ready, "" when they are."""
    keys_note: str = ""
    """What a rotation of keys waits for; the keys in use are good meanwhile."""
    resend: bool = False
    """Whether children are sent again though their revision is right."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node's addresses, for NodePort and HostPort."""

    name: str
    addresses: tuple[str, ...]
    """External IPs, or internal ones where there are none."""
    ready: bool


@dataclass(frozen=True, slots=True)
class EndpointSeen:
    """An endpoint of a peer as a relay tells it.

    `held_ice`: the ice keys (CLUSTER:LETTER) that the other side said it holds; `heard_s`: seconds since it last said
    something, None for never.
    """

    cluster: int
    address: str
    up: bool
    held_ice: frozenset[str] = frozenset()
    heard_s: float | None = None


@dataclass(frozen=True, slots=True)
class TrunksSeen:
    """What a relay says of trunks. `hop`: clusters that it has a live hop key for; `ice`: letters by cluster."""

    pod: str
    endpoints: tuple[EndpointSeen, ...]
    hop: frozenset[int]
    ice: Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class RelayPoolSeen:
    """Everything that `plan_relay_pool` needs beside the pool. Children are None when they do not exist."""

    pods: tuple[PodSeen, ...]
    workload: Json | None
    """The Deployment or DaemonSet."""
    service: Json | None
    children: Mapping[str, Json]
    """Other children by `Kind/name`: PodDisruptionBudget, ServiceAccount, Role, RoleBinding, ConfigMap, Service of the
    trunk."""
    idle: frozenset[str] = frozenset()
    """Uids of relays that say they carry no flow; asked only of a pool that is being deleted."""
    nodes: tuple[NodeSeen, ...] = ()
    pod_security: str = ""
    """The level that the namespace enforces: privileged, baseline, restricted, or "" for none."""
    resolved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """IPs of the host names that the Service or the spec name; the last good answer."""
    secrets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of the Secrets that the pool names and that exist: the keys which have a value, by the name of the Secret."""
    secrets_forbidden: frozenset[str] = frozenset()
    """Names of those that the operator may not read."""
    key_ids: tuple[str, ...] = ()
    """Keys in use and their state, for the status."""
    keys_fault: str = ""
    """Why the keys are not ready, "" when they are."""
    keys_note: str = ""
    """What a rotation of keys waits for; the keys in use are good meanwhile."""
    transceiver_keys: Mapping[str, str] = field(default_factory=dict)
    """The Secret with the keys of each TransceiverPool of the namespace, by the pool's name."""
    clusters: Mapping[int, str] = field(default_factory=dict)
    """Cluster ids of the transceivers that the relays serve, and the TransceiverPool that has each; looked up where the
    pool names other clusters."""
    trunks: tuple[TrunksSeen, ...] = ()
    """What those ready relays say that answer; asked where the pool has peers or a trunk."""
    resend: bool = False
    """Whether children are sent again though their revision is right."""
