"""The public addresses of a RelayPool, for answers: IPs only (design D11).

A name that does not resolve keeps the IPs that it has in the status: they outlive the operator that looked them up.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from usher_core.errors import LocalError
from usher_core.ids import join_host_port, split_host_port
from usher_operator.api.exposure import PortExposure
from usher_operator.api.relay_pool import Address, Listener, RelayPool
from usher_operator.render.trunk import trunk_service_name
from usher_operator.seen import Json, NodeSeen, PodSeen, RelayPoolSeen

MAX_ADDRESSES = 64
MAX_TRUNK_ADDRESSES = 16


def find_addresses(pool: RelayPool, seen: RelayPoolSeen) -> list[Address]:
    """Return where clients can reach the relays, each address once, in a lasting order."""
    found = list(_advertised(pool, seen) if pool.spec.exposure.advertised_addresses else _told(pool, seen))
    usable = {(each.listener, each.ip, each.port): each for each in found if _is_usable(each.ip)}
    return [usable[key] for key in sorted(usable)][:MAX_ADDRESSES]


def _advertised(pool: RelayPool, seen: RelayPoolSeen) -> Iterator[Address]:
    for text in pool.spec.exposure.advertised_addresses:
        try:
            host, port = split_host_port(text, default_port=0)
        except LocalError:
            continue  # the API server refuses such a text
        listeners = _public(pool, seen)
        if port:
            # The first where something maps the port.
            behind = [each for each in listeners if port in (each.port, each.listener.port)] or listeners[:1]
            listeners = [_Public(each.listener, port) for each in behind]
        yield from _by_host(listeners, host, pool, seen)


@dataclass(frozen=True, slots=True)
class _Public:
    """A listener and the port at which clients reach it."""

    listener: Listener
    port: int


def _public(pool: RelayPool, seen: RelayPoolSeen) -> list[_Public]:
    """Return the listeners with their public ports: the Service's node ports with NodePort, else their own."""
    if pool.spec.exposure.type != "NodePort":
        return [_Public(each, each.port) for each in pool.spec.listeners]
    spec = (seen.service or {}).get("spec") or {}
    ports = {each.get("name"): each.get("nodePort", 0) for each in spec.get("ports") or ()}
    return [_Public(each, ports[each.name]) for each in pool.spec.listeners if ports.get(each.name)]


def _told(pool: RelayPool, seen: RelayPoolSeen) -> Iterator[Address]:
    """What Service and nodes tell."""
    listeners = _public(pool, seen)
    for host in _hosts(pool.spec.exposure, seen.service or {}, seen):
        yield from _by_host(listeners, host, pool, seen)


def _by_host(listeners: Iterable[_Public], host: str, pool: RelayPool, seen: RelayPoolSeen) -> Iterator[Address]:
    try:
        yield from _on(listeners, str(ipaddress.ip_address(host)))
    except ValueError:
        before = sorted({each.ip for each in pool.status.addresses if each.host == host})
        for ip in seen.resolved.get(host, before):
            yield from _on(listeners, ip, host)


def _on(listeners: Iterable[_Public], ip: str, host: str | None = None) -> Iterator[Address]:
    for each in listeners:
        yield Address(listener=each.listener.id, ip=ip, port=each.port, host=host)


def find_trunk_addresses(pool: RelayPool, seen: RelayPoolSeen) -> list[str]:
    """Return where relays of other clusters reach the trunk: IPs, or the names that a load balancer has."""
    trunk, service = pool.spec.trunk, seen.children.get(f"Service/{trunk_service_name(pool)}") or {}
    if trunk is None:
        return []
    port, hosts = trunk.port, _hosts(trunk.exposure, service, seen)
    if trunk.exposure.type == "NodePort":
        ports = (service.get("spec") or {}).get("ports") or ()
        port = next((each.get("nodePort", 0) for each in ports), 0)
    elif trunk.exposure.type == "ClusterIP":
        # Relays listen on 0.0.0.0 for trunks: the address of a second family leads nowhere.
        hosts = hosts[:1]
    return sorted({join_host_port(host, port) for host in hosts if host and port})[:MAX_TRUNK_ADDRESSES]


def _hosts(exposure: PortExposure, service: Json, seen: RelayPoolSeen) -> list[str]:
    """Return where a port is reached that is exposed so by that Service: IPs, or names of a load balancer."""
    spec, status = service.get("spec") or {}, service.get("status") or {}
    if exposure.type == "HostPort":
        return list(_ips_of_nodes(_with_relay(seen.nodes, seen.pods)))
    if spec.get("type", "ClusterIP") != exposure.type:
        return []
    if exposure.type == "ClusterIP":
        return spec.get("clusterIPs") or [spec.get("clusterIP") or ""]
    if exposure.type == "NodePort":
        # With Local a node without a ready relay drops what it gets.
        is_local = exposure.external_traffic_policy == "Local"
        nodes = _with_relay(seen.nodes, seen.pods) if is_local else [node for node in seen.nodes if node.ready]
        return list(_ips_of_nodes(nodes))
    entries = (status.get("loadBalancer") or {}).get("ingress") or ()
    return [entry.get("ip") or entry.get("hostname") or "" for entry in entries]


def _with_relay(nodes: Iterable[NodeSeen], pods: Iterable[PodSeen]) -> list[NodeSeen]:
    hosts = {each.node for each in pods if each.ready and not each.is_ending}
    return [node for node in nodes if node.ready and node.name in hosts]


def _ips_of_nodes(nodes: Iterable[NodeSeen]) -> Iterator[str]:
    """The IPv4 addresses: relays listen on 0.0.0.0, so an IPv6 address of their node leads nowhere."""
    for node in nodes:
        yield from (ip for ip in node.addresses if ":" not in ip)


def _is_usable(ip: str) -> bool:
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast)
