"""How a port of relays is reached from outside the cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from usher_operator.api.common import Model
from usher_operator.api.fields import IS_ADDRESS, IS_NO_WILDCARD, Rule, rules

AdvertisedAddress = Annotated[
    str,
    Field(
        min_length=1,
        max_length=260,
        json_schema_extra=rules(
            Rule(
                IS_ADDRESS,
                "write an IP or a host name, with :PORT if it is not the listener's, such as 203.0.113.7, "
                "[2001:db8::7]:3478 or media.example.com",
            ),
            Rule(IS_NO_WILDCARD, "0.0.0.0 and :: are no addresses that clients can reach"),
        ),
    ),
]


class PortExposure(Model):
    """A Service, or ports of nodes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.nodePort) || self.type in ['NodePort', 'LoadBalancer']",
                "nodePort has a meaning only with type NodePort or LoadBalancer: leave it out",
            ),
            Rule(
                "!has(self.loadBalancerClass) || self.type == 'LoadBalancer'",
                "loadBalancerClass has a meaning only with type LoadBalancer: leave it out",
            ),
        )
    )

    type: Literal["LoadBalancer", "NodePort", "HostPort", "ClusterIP"] = "LoadBalancer"
    """A Service of that type, or HostPort: the ports of each node that runs a relay. HostPort needs a namespace
    whose Pod Security level is privileged."""
    external_traffic_policy: Literal["Local", "Cluster"] = "Local"
    """Local keeps the addresses of clients; Cluster hides them behind those of nodes."""
    load_balancer_class: str | None = Field(default=None, min_length=1, max_length=253)
    """Class of the load balancer. Left out: the cluster's default."""
    annotations: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Annotations of the Service, for a cloud's load balancer."""
    node_port: int | None = Field(default=None, ge=1, le=65535)
    """Node port of the first port; further ones get what the cluster chooses."""


class Exposure(PortExposure):
    """How clients reach the relays."""

    advertised_addresses: list[AdvertisedAddress] = Field(
        default_factory=list, max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """IPs or host names that answers name instead of what Service or nodes tell, each with an optional `:PORT`. Without
    one: the node port with NodePort, else the port of the listener."""
