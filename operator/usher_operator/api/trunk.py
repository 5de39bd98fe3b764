"""Trunks: how the relays of one cluster pass on what clients send to calls in another (docs/multi-region.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from usher_core.ids import MAX_CLUSTER
from usher_core.peers import MAX_ENDPOINTS, MAX_PEERS, MAX_TRUNKS, MAX_WEIGHT
from usher_operator.api.common import LocalReference, Model
from usher_operator.api.exposure import PortExposure
from usher_operator.api.fields import IS_ADDRESS_WITH_PORT, IS_NO_WILDCARD, Rule, keyed_by, rules

MAX_NEIGHBOURS = MAX_TRUNKS - MAX_PEERS

SourceRange = Annotated[
    str,
    Field(
        max_length=43,
        json_schema_extra=rules(Rule("isCIDR(self)", "write a range of addresses, such as 203.0.113.0/24")),
    ),
]

EndpointAddress = Annotated[
    str,
    Field(
        min_length=1,
        max_length=260,
        json_schema_extra=rules(
            Rule(
                IS_ADDRESS_WITH_PORT,
                "write IP:PORT or NAME:PORT of the peer's trunk, such as 198.51.100.7:3479 or relays.example.com:3479",
            ),
            Rule(IS_NO_WILDCARD, "0.0.0.0 and :: are no addresses that relays can reach"),
        ),
    ),
]


class Neighbour(Model):
    """Another cluster whose relays may use the trunk."""

    cluster_id: int = Field(ge=1, le=MAX_CLUSTER, alias="clusterID")
    """Its id; of relays without transceivers one that nobody else has."""
    key_secret_ref: LocalReference | None = None
    """Secret whose `keys.json` has the `hop` key of this trunk, made by `usher keys trunk-secrets`. Left out: that of
    `keys.secretRef` has it."""


class Trunk(Model):
    """A port for relays of other clusters."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.sourceRanges) || self.sourceRanges.size() == 0 || self.exposure.type == 'LoadBalancer'",
                "sourceRanges has a meaning only with exposure.type LoadBalancer: use a firewall or NetworkPolicies",
            )
        )
    )

    port: int = Field(default=3479, ge=1, le=65535)
    """UDP port."""
    exposure: PortExposure = Field(default_factory=PortExposure)
    """How those relays reach it: by a Service of its own."""
    source_ranges: list[SourceRange] = Field(
        default_factory=list, max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """Addresses that the load balancer lets in: those that the other clusters' relays send from. Empty: all; what is
    not authentic is dropped in any case."""
    neighbours: list[Neighbour] = Field(
        default_factory=list, max_length=MAX_NEIGHBOURS, json_schema_extra=keyed_by("clusterID")
    )
    """Clusters whose relays may use it."""


class PeerEndpoint(Model):
    """One way to a peer."""

    address: EndpointAddress
    """`IP:PORT` or `NAME:PORT` of the trunk of its relays; a name may have several addresses."""
    weight: int = Field(default=1, ge=1, le=MAX_WEIGHT)
    """Its share of the clients beside the other endpoints."""


class Peer(Model):
    """Another cluster, and how its relays are reached."""

    cluster_id: int = Field(ge=1, le=MAX_CLUSTER, alias="clusterID")
    """The id that its ufrags name: `status.clusterID` of its TransceiverPool. None of ours."""
    endpoints: list[PeerEndpoint] = Field(min_length=1, max_length=MAX_ENDPOINTS, json_schema_extra=keyed_by("address"))
    """Its trunks. A change needs no restart."""
    key_secret_ref: LocalReference | None = None
    """Secret whose `keys.json` has the `hop` key of the trunk and the `ice` keys that open the peer's ufrags, made by
    `usher keys trunk-secrets`. Left out: that of `keys.secretRef` has them."""
