"""RelayPool: relays that share one public address."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from usher_core.peers import MAX_PEERS
from usher_operator.api.common import (
    Condition,
    Disruption,
    Duration,
    Keys,
    LocalReference,
    Metadata,
    Model,
    Placement,
    Resources,
    SecretKeyReference,
    Strategy,
)
from usher_operator.api.exposure import Exposure, PortExposure
from usher_operator.api.fields import (
    NAME_RULE,
    NONE,
    Image,
    LabelSelector,
    PodTemplate,
    Region,
    Rule,
    keyed_by,
    lasting,
    rules,
)
from usher_operator.api.trunk import Peer, Trunk

NamespaceName = Annotated[
    str,
    Field(
        max_length=63,
        json_schema_extra=rules(
            Rule(
                "self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",
                "write the name of a namespace: lower-case letters, digits and hyphens between them",
            )
        ),
    ),
]


_PORT_NAME = rules(
    Rule(
        "self.matches('^[a-z][a-z0-9]*(-[a-z0-9]+)*$') && !(self in ['admin', 'trunk'])",
        "write a port name: lower-case letters, digits and single hyphens, beginning with a letter; admin and trunk "
        "are taken",
    )
)


class Listener(Model):
    """A public port."""

    name: str = Field(default="media", max_length=15, json_schema_extra=_PORT_NAME)
    """Name of the port in Services and pods."""
    id: int = Field(default=1, ge=0, le=65535)
    """Number of this listener in hop datagrams: one per port and public address, never used for another one later."""
    port: int = Field(default=3478, ge=1, le=65535)
    """Public port."""
    protocol: Literal["UDP"] = "UDP"
    """Transport of clients."""


class TransceiverSelection(Model):
    """Which transceivers these relays serve."""

    selector: LabelSelector = Field(default_factory=dict)
    """Labels of the transceiver pods; each carries the name of its pool as `usher.fleet/pool`. Empty: all."""
    namespaces: list[NamespaceName] = Field(
        default_factory=list, max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """Namespaces of the pods. Empty: that of the pool. Another one needs a RoleBinding there."""


class Datapath(Model):
    """The engine that moves packets."""

    engine: Literal["Auto", "Native", "Python"] = "Auto"
    """Native fails where it is missing; Auto falls back to Python."""
    max_flows: int = Field(default=100_000, ge=10, le=10_000_000)
    """Client addresses that one relay remembers."""
    hop_mtu: int = Field(
        default=0,
        ge=0,
        le=65535,
        alias="hopMTU",
        json_schema_extra=rules(
            Rule("self == 0 || self >= 1280", "no link carries less than 1280 bytes (RFC 8200); 0 asks the kernel")
        ),
    )
    """Bytes of an IP packet on the way to transceivers; 0 asks the kernel."""


class Redis(Model):
    """A Redis by which relays know each other's clients, for fleets too large to ask all transceivers."""

    url_secret_ref: SecretKeyReference
    """Its URL, `rediss://:PASSWORD@HOST:6379/0` or `redis+sentinel://…`, in a Secret of yours. Relays read it when they
    start."""
    ca_secret_ref: SecretKeyReference | None = None
    """Certificates in PEM of who has signed its own, beside those that the image trusts; in a Secret of yours."""


class Drain(Model):
    """How a relay ends."""

    grace_period: Duration = Field(default="90s", json_schema_extra=lasting("30s", "24h"))
    """Time between SIGTERM and the end. At least what the load balancer takes to notice plus 30 s;
    30s to 24h. A pool that is deleted waits as long for its flows to end."""


def _usual_strategy(spec: dict[str, Any]) -> Strategy:
    """A node has each port once, and a DaemonSet one pod per node: the old one has to go first."""
    ways = [spec.get("exposure", Exposure()), *([trunk.exposure] if (trunk := spec.get("trunk")) else [])]
    is_bound_to_node = spec.get("workload") == "DaemonSet" or any(way.type == "HostPort" for way in ways)
    return Strategy(max_surge=0, max_unavailable=1) if is_bound_to_node else Strategy(max_surge=1, max_unavailable=0)


class RelayPoolSpec(Model):
    """The wanted state of a RelayPool."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                f"self.exposure.type != 'HostPort' && !(has(self.trunk) && self.trunk.exposure.type == 'HostPort') || "
                f"!has(self.strategy) || "
                f"string(self.strategy.maxSurge) in {NONE} && !(string(self.strategy.maxUnavailable) in {NONE})",
                "with exposure.type HostPort an old relay has to free the port first: leave strategy out, or set "
                "maxSurge to 0 and maxUnavailable to 1 or more",
            ),
            Rule(
                "!has(self.trunk) || (has(self.listeners) ? "
                "self.listeners.all(listener, listener.port != self.trunk.port) : "
                f"self.trunk.port != {Listener.model_fields['port'].default})",
                "trunk.port is for relays of other clusters alone: choose another one than those of listeners",
            ),
            Rule(
                "!has(self.trunk) || !has(self.trunk.exposure.nodePort) || !has(self.exposure.nodePort) || "
                "self.trunk.exposure.nodePort != self.exposure.nodePort",
                "trunk.exposure.nodePort is for relays of other clusters alone: choose another one than that of "
                "exposure",
            ),
        )
    )

    replicas: int = Field(default=2, ge=0, le=1000)
    """Number of relays; the scale subresource writes it. A DaemonSet does not look at it."""
    workload: Literal["Deployment", "DaemonSet"] = Field(
        default="Deployment",
        json_schema_extra=rules(
            Rule("self == oldSelf", "workload can't be changed: make a second pool, then delete this one")
        ),
    )
    """Deployment runs `replicas` pods, DaemonSet one on every node. Can't be changed."""
    image: Image = ""
    """Image of the relay. Empty: the operator's default."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    image_pull_secrets: list[LocalReference] = Field(
        default_factory=list, max_length=16, json_schema_extra=keyed_by("name")
    )
    """Secrets for the registry."""
    region: Region = ""
    """Region that these relays are near to, such as `eu-west`. Empty: near to everybody."""
    listeners: list[Listener] = Field(
        default_factory=lambda: [Listener()],
        min_length=1,
        max_length=8,
        json_schema_extra={
            **keyed_by("name"),
            **rules(
                Rule("self.all(a, self.exists_one(b, b.port == a.port))", "each listener needs a port of its own"),
                Rule("self.all(a, self.exists_one(b, b.id == a.id))", "each listener needs an id of its own"),
            ),
        },
    )
    """Public UDP ports. Left out: `media`, with id 1, on port 3478."""
    exposure: Exposure = Field(default_factory=Exposure)
    """How clients reach the relays."""
    transceivers: TransceiverSelection = Field(default_factory=TransceiverSelection)
    """Which transceivers these relays serve."""
    trunk: Trunk | None = None
    """Where relays of other clusters send what their clients send to calls here. Left out: nowhere."""
    peers: list[Peer] = Field(default_factory=list, max_length=MAX_PEERS, json_schema_extra=keyed_by("clusterID"))
    """Other clusters: clients whose calls are there may enter at these relays, also where there are no transceivers."""
    datapath: Datapath = Field(default_factory=Datapath)
    """The engine that moves packets."""
    redis: Redis | None = None
    """A Redis by which relays know each other's clients. Left out: they ask the transceivers."""
    drain: Drain = Field(default_factory=Drain)
    """How a relay ends."""
    keys: Keys = Field(default_factory=Keys)
    """Keys of ufrags and hop datagrams."""
    strategy: Strategy = Field(default_factory=_usual_strategy)
    """How a rollout replaces pods. Left out: a new one first (surge 1, unavailable 0); with HostPort or a DaemonSet the
    old one first (surge 0, unavailable 1), and flows wait until a new relay is there."""
    disruption: Disruption = Field(default_factory=lambda: Disruption(max_unavailable=1))
    """How many pods a node drain may take at a time. Left out: one. A drain passes over a DaemonSet, so that has no
    budget."""
    placement: Placement = Field(default_factory=Placement)
    """Where pods may run."""
    resources: Resources = Field(default_factory=lambda: Resources(requests={"cpu": "500m", "memory": "256Mi"}))
    """CPU and memory of a relay. Left out: requests of 500m CPU and 256Mi memory."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """Merged into the pod last: metadata and spec of what no field here covers."""
    paused: bool = False
    """Leave everything as it is until this is false again."""

    @property
    def exposures(self) -> tuple[PortExposure, ...]:
        """How clients and, with a trunk, relays of other clusters reach the relays."""
        return (self.exposure,) if self.trunk is None else (self.exposure, self.trunk.exposure)


class Address(Model):
    """A public address that answers name."""

    listener: int
    """Id of the listener."""
    ip: str = Field(max_length=45)
    """IP address."""
    port: int
    """UDP port."""
    host: str | None = Field(default=None, max_length=253)
    """Host name that was looked up; its IPs stay while it does not resolve."""


class RelayPoolStatus(Model):
    """The observed state of a RelayPool."""

    observed_generation: int | None = None
    """Generation of the spec that this status is about."""
    desired_replicas: int = 0
    """Relays that shall exist: `spec.replicas`, or with a DaemonSet one for each of its nodes."""
    replicas: int = 0
    """Relays that exist and are not ending."""
    ready_replicas: int = 0
    """Relays that are ready."""
    updated_replicas: int = 0
    """Relays of the newest template."""
    selector: str = ""
    """Label selector of the pods, for the scale subresource."""
    addresses: list[Address] = Field(
        default_factory=list, max_length=64, json_schema_extra=keyed_by("listener", "ip", "port")
    )
    """Public addresses that answers name."""
    endpoint: str = Field(default="", max_length=53)
    """The first of them with its port, such as `203.0.113.7:3478`; the node port with exposure.type NodePort."""
    trunk_addresses: list[str] = Field(default_factory=list, max_length=16)
    """Where relays of other clusters reach the trunk, `IP:PORT` or `NAME:PORT`: what their `peers[].endpoints` name."""
    peers_up: str = Field(default="", max_length=20)
    """Peers that the relays reach, of all, such as `2/2`."""
    key_ids: list[str] = Field(default_factory=list, max_length=64, alias="keyIDs")
    """Keys in use and their state, such as `ice/A active 12d`; never the keys."""
    conditions: list[Condition] = Field(default_factory=list, max_length=16, json_schema_extra=keyed_by("type"))
    """Accepted, Available, Exposed, KeysReady, PeersReachable, Progressing, Ready, RedisReady, TrunkReady."""


class RelayPool(Model):
    """Relays that share one public address: stateless, any of them can carry any packet."""

    model_config = ConfigDict(json_schema_extra=rules(NAME_RULE))

    kind: ClassVar[str] = "RelayPool"
    plural: ClassVar[str] = "relaypools"

    metadata: Metadata
    spec: RelayPoolSpec = Field(default_factory=RelayPoolSpec)
    status: RelayPoolStatus = Field(default_factory=RelayPoolStatus)
