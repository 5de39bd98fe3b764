"""What NetworkPolicies admit, worked out here: many clusters take policies and enforce none.

The rules are those of networking.k8s.io/v1: a pod that no policy of a direction selects is open in that direction;
otherwise some rule of some policy has to admit the other end and the port. Services play no part: what counts is the
pod and the port behind them. That nodes reach their own pods, whatever policies say, is not looked at here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from usher_core.label_selectors import matches

Json = Mapping[str, Any]

TCP, UDP = "TCP", "UDP"
_PEERS = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}


@dataclass(frozen=True, slots=True)
class End:
    """One end of a flow: a pod, or an address that is none of a pod.

    Attributes:
        name: for people.
        ip: its address.
        namespace: of the pod; "" for what is no pod.
        labels: of the pod.
        namespace_labels: of its namespace.
        ports: numbers of the pod's ports by their name.
    """

    name: str
    ip: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flow:
    """Who opens it, to whom and where; `what` for people."""

    what: str
    source: End
    target: End
    port: int
    protocol: str = TCP

    def __str__(self) -> str:
        return f"{self.what}: {self.source.name} to {self.target.name}, {self.protocol} {self.port}"


def admits(policies: Sequence[Json], flow: Flow) -> bool:
    """Return whether policies let a flow out of its source and into its target."""
    return _opens(policies, "Egress", flow.source, flow.target, flow) and _opens(
        policies, "Ingress", flow.target, flow.source, flow
    )


def _opens(policies: Iterable[Json], direction: str, pod: End, peer: End, flow: Flow) -> bool:
    chosen = [policy for policy in policies if direction in _types(policy["spec"]) and _selects(policy, pod)]
    rules, peers = _PEERS[direction]
    return not chosen or any(
        _has_peer(rule.get(peers), policy["metadata"]["namespace"], peer) and _has_port(rule.get("ports"), flow)
        for policy in chosen
        for rule in policy["spec"].get(rules) or ()
    )


def _types(spec: Json) -> Sequence[str]:
    return spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _selects(policy: Json, pod: End) -> bool:
    is_there = policy["metadata"]["namespace"] == pod.namespace
    return is_there and matches(policy["spec"].get("podSelector") or {}, pod.labels)


def _has_peer(peers: Sequence[Json] | None, namespace: str, end: End) -> bool:
    return not peers or any(_is_peer(peer, namespace, end) for peer in peers)


def _is_peer(peer: Json, namespace: str, end: End) -> bool:
    if block := peer.get("ipBlock"):
        return _within(end.ip, block["cidr"]) and not any(_within(end.ip, each) for each in block.get("except") or ())
    if not end.namespace:
        return False
    there = peer.get("namespaceSelector")
    is_there = end.namespace == namespace if there is None else matches(there, end.namespace_labels)
    return is_there and matches(peer.get("podSelector") or {}, end.labels)


def _within(ip: str, network: str) -> bool:
    return ipaddress.ip_address(ip) in ipaddress.ip_network(network)


def _has_port(ports: Sequence[Json] | None, flow: Flow) -> bool:
    return not ports or any(_is_port(port, flow) for port in ports)


def _is_port(port: Json, flow: Flow) -> bool:
    if port.get("protocol", TCP) != flow.protocol:
        return False
    number = port.get("port")
    if isinstance(number, str):
        number = flow.target.ports.get(number, -1)
    return number is None or number <= flow.port <= port.get("endPort", number)
