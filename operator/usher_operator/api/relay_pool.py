"""RelayPool: relays that share one public address."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from usher_operator.api.common import (
    Condition,
    Disruption,
    Duration,
    FreeForm,
    Keys,
    LocalReference,
    Metadata,
    Model,
    Placement,
    Region,
    Resources,
    Strategy,
)


class Listener(Model):
    """A public port."""

    name: str = Field(default="media", pattern=r"^[a-z]([a-z0-9-]{0,13}[a-z0-9])?$")
    """Name of the port in Services and pods."""
    id: int = Field(default=1, ge=0, le=65535)
    """Number of this listener in hop datagrams: one per port and public address, never used for another one later."""
    port: int = Field(default=3478, ge=1, le=65535)
    """Public port."""
    protocol: Literal["UDP"] = "UDP"
    """Transport of clients."""


class Exposure(Model):
    """How clients reach the relays."""

    type: Literal["LoadBalancer", "NodePort", "HostPort", "ClusterIP"] = "LoadBalancer"
    """HostPort needs a namespace whose Pod Security level is privileged."""
    external_traffic_policy: Literal["Local", "Cluster"] = "Local"
    """Local keeps the addresses of clients; Cluster hides them behind those of nodes."""
    load_balancer_class: str | None = Field(default=None, max_length=253)
    """Class of the load balancer."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the Service, for a cloud's load balancer."""
    node_port: int | None = Field(default=None, ge=1, le=65535)
    """Node port of the first listener; further listeners get what the cluster chooses."""
    advertised_addresses: list[str] = Field(default_factory=list, max_length=16)
    """IPs or host names that answers name instead of what Service or nodes tell, each with an optional `:PORT`."""


class TransceiverSelection(Model):
    """Which transceivers these relays serve."""

    selector: FreeForm = Field(default_factory=dict)
    """Label selector over transceiver pods; pods carry `usher.fleet/pool`. Empty: all."""
    namespaces: list[str] = Field(default_factory=list, max_length=16)
    """Namespaces of the pods. Empty: that of the pool. Another one needs a RoleBinding there."""


class Datapath(Model):
    """The engine that moves packets."""

    engine: Literal["Auto", "Native", "Python"] = "Auto"
    """Native fails where it is missing; Auto falls back to Python."""
    max_flows: int = Field(default=100_000, ge=10, le=10_000_000)
    """Client addresses that one relay remembers."""
    hop_mtu: int = Field(default=0, ge=0, le=65535, alias="hopMTU")
    """Bytes of an IP packet on the way to transceivers; 0 asks the kernel."""


class Drain(Model):
    """How a relay ends."""

    grace_period: Duration = "90s"
    """Seconds between SIGTERM and the end. At least what the load balancer takes to notice plus 30 s."""


class RelayPoolSpec(Model):
    """The wanted state of a RelayPool."""

    replicas: int = Field(default=2, ge=0, le=1000)
    """Number of relays; the scale subresource writes it. Without meaning for a DaemonSet."""
    workload: Literal["Deployment", "DaemonSet"] = "Deployment"
    """Deployment runs `replicas` pods, DaemonSet one on every node. Can't be changed."""
    image: str = Field(default="", max_length=512)
    """Image of the relay. Empty: the operator's default."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    image_pull_secrets: list[LocalReference] = Field(default_factory=list, max_length=16)
    """Secrets for the registry."""
    region: Region = ""
    """Region that these relays are near to, such as `eu-west`. Empty: near to everybody."""
    listeners: list[Listener] = Field(default_factory=lambda: [Listener()], min_length=1, max_length=8)
    """Public UDP ports."""
    exposure: Exposure = Field(default_factory=Exposure)
    """How clients reach the relays."""
    transceivers: TransceiverSelection = Field(default_factory=TransceiverSelection)
    """Which transceivers these relays serve."""
    datapath: Datapath = Field(default_factory=Datapath)
    """The engine that moves packets."""
    drain: Drain = Field(default_factory=Drain)
    """How a relay ends."""
    keys: Keys = Field(default_factory=Keys)
    """Keys of ufrags and hop datagrams."""
    strategy: Strategy = Field(default_factory=lambda: Strategy(max_surge=1, max_unavailable=0))
    """How a rollout replaces pods."""
    disruption: Disruption = Field(default_factory=lambda: Disruption(max_unavailable=1))
    """How many pods a node drain may take at a time."""
    placement: Placement = Field(default_factory=Placement)
    """Where pods may run."""
    resources: Resources = Field(default_factory=lambda: Resources(requests={"cpu": "500m", "memory": "256Mi"}))
    """CPU and memory of a relay."""
    pod_template: FreeForm = Field(default_factory=dict)
    """Merged into the pod last: metadata and spec of what no field here covers."""
    paused: bool = False
    """Leave everything as it is until this is false again."""


class Address(Model):
    """A public address that answers name."""

    listener: int
    """Id of the listener."""
    ip: str = Field(max_length=45)
    """IP address."""
    port: int
    """UDP port."""


class RelayPoolStatus(Model):
    """The observed state of a RelayPool."""

    observed_generation: int | None = None
    """Generation of the spec that this status is about."""
    replicas: int = 0
    """Relays that exist and are not ending."""
    ready_replicas: int = 0
    """Relays that are ready."""
    updated_replicas: int = 0
    """Relays of the newest template."""
    selector: str = ""
    """Label selector of the pods, for the scale subresource."""
    addresses: list[Address] = Field(default_factory=list, max_length=64)
    """Public addresses that answers name."""
    key_ids: list[str] = Field(default_factory=list, max_length=64)
    """Keys in use and their state, such as `ice/A active 12d`; never the keys."""
    conditions: list[Condition] = Field(default_factory=list, max_length=16)
    """Accepted, Available, Exposed, KeysReady, Progressing, Ready."""


class RelayPool(Model):
    """Relays that share one public address: stateless, any of them can carry any packet."""

    kind: ClassVar[str] = "RelayPool"
    plural: ClassVar[str] = "relaypools"

    metadata: Metadata
    spec: RelayPoolSpec = Field(default_factory=RelayPoolSpec)
    status: RelayPoolStatus = Field(default_factory=RelayPoolStatus)
