"""The chart's NetworkPolicies: taken by the API server, and right for the pods, ports and connections that there are.

Few clusters for tests enforce any, so what they admit is worked out (tests/network_policies.py) from the policies and
pods as the API server has them. That nodes reach their own pods, as for probes, holds whatever policies say.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from tests.e2e.conftest import Figure
from tests.e2e.fleet import (
    CHART,
    OPERATOR_PODS,
    RELAY_PODS,
    RELAY_SERVICE,
    RELEASE,
    SIGNALING_PODS,
    TRANSCEIVER_PODS,
    Fleet,
    values,
)
from tests.e2e.kube import Json, Namespace, kubectl
from tests.network_policies import TCP, UDP, End, Flow, admits

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(300)]

OUTSIDE = End("a client outside", "203.0.113.5")
PROMETHEUS = End("Prometheus", "10.255.0.1", "monitoring", {}, {"kubernetes.io/metadata.name": "monitoring"})
STRANGER = End(
    "a pod of another namespace", "10.255.0.2", "other", {"app": "x"}, {"kubernetes.io/metadata.name": "other"}
)
METRICS_FROM = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
ANY_UDP, ANY_TCP = 41234, 8443
POLICIES = {"deny", "operator", "signaling", "relay", "transceiver", "uninstall", "test"}
PROGRAMS = {
    "operator": OPERATOR_PODS,
    "signaling": SIGNALING_PODS,
    "relay": RELAY_PODS,
    "transceiver": TRANSCEIVER_PODS,
}

SOCKETS = """
import json
def read(name):
    with open(f"/proc/1/net/{name}") as lines:
        next(lines)
        for line in lines:
            local, remote, state = line.split()[1:4]
            yield [*map(end, (local, remote)), state]
def end(text):
    ip, port = text.split(":")
    ip = ip[-8:]
    return [".".join(str(int(ip[i:i + 2], 16)) for i in (6, 4, 2, 0)), int(port, 16)]
print(json.dumps({"tcp": [*read("tcp"), *read("tcp6")], "udp": [*read("udp"), *read("udp6")]}))
"""
"""Sockets of a pod as Linux shows them; IPv4 addresses also where they are mapped into IPv6."""
LISTENING = "0A"


@dataclass(frozen=True)
class Sockets:
    """`bound`: UDP ports. `listening`: TCP ports. `connections`: local port, remote address and port of TCP."""

    bound: frozenset[int]
    listening: frozenset[int]
    connections: frozenset[tuple[int, str, int]]


@dataclass(frozen=True)
class Network:
    """Policies, and what is there to open flows.

    `pods`: by program. `sockets`: by name of the pod. `hooks`: pods of `helm test` and `helm uninstall`, which are not
    there now. `relay_ports`: behind the relays' Service. `node_addresses`: also those within the networks of pods.
    `pod_networks`: of all nodes.
    """

    policies: list[Json]
    pods: dict[str, list[End]]
    sockets: dict[str, Sockets]
    hooks: dict[str, End]
    relay_ports: list[int]
    api_server: list[tuple[End, int]]
    dns: list[tuple[End, int]]
    node_addresses: set[str]
    pod_networks: list[str]

    def flows(
        self, what: str, source: str | End, target: str | End, port: str | int, protocol: str = TCP
    ) -> list[Flow]:
        """The flows between all pods of programs, or other ends; a port may be a name."""
        pairs = itertools.product(self._ends(source), self._ends(target))
        return [
            Flow(what, one, other, port if isinstance(port, int) else other.ports[port], protocol)
            for one, other in pairs
            if one.ip != other.ip
        ]

    def _ends(self, which: str | End) -> list[End]:
        return [which] if isinstance(which, End) else self.pods[which]

    def end_of(self, ip: str) -> End:
        """The pod with an address, or the address."""
        return next((pod for pods in self.pods.values() for pod in pods if pod.ip == ip), End(ip, ip))

    def is_of_pod(self, ip: str) -> bool:
        """Whether an address is one that pods get."""
        return any(ipaddress.ip_address(ip) in ipaddress.ip_network(network) for network in self.pod_networks)


@pytest.fixture(scope="module")
def network(small: Fleet) -> Iterator[Network]:
    """The install with policies. What is open was looked up while calls went on."""
    small.until_settled()
    given = values(small.namespace.name, small.images)
    dns = {port for _, port in service(Namespace("kube-system"), "kube-dns")}
    given["networkPolicy"] = {"enabled": True, "metricsFrom": METRICS_FROM, "dnsPorts": sorted(dns)}
    small.helm("upgrade", RELEASE, CHART, given=given)
    try:
        with small.calls(4, light=True) as calls:
            calls.until_up()
            found = look(small)
        yield found
    finally:
        small.helm("upgrade", RELEASE, CHART, given=values(small.namespace.name, small.images))


def look(fleet: Fleet) -> Network:
    name = fleet.namespace.name
    labels = json.loads(kubectl("get", "namespace", name, "--output=json"))["metadata"]["labels"]
    found = {program: fleet.pods(selector) for program, selector in PROGRAMS.items()}
    manifests = [each for each in yaml.safe_load_all(fleet.helm("get", "hooks", RELEASE)) if each]
    hooks = {"test": one(manifests, "Pod"), "uninstall": one(manifests, "Job")["spec"]["template"]}
    nodes = json.loads(kubectl("get", "nodes", "--output=json"))["items"]
    system = Namespace("kube-system")
    return Network(
        policies=fleet.namespace.list("networkpolicies"),
        pods={program: [end_of(pod, labels) for pod in pods] for program, pods in found.items()},
        sockets={pod["metadata"]["name"]: sockets(fleet, pod) for pods in found.values() for pod in pods},
        hooks={
            program: End(program, "10.255.0.3", name, pod["metadata"]["labels"], labels)
            for program, pod in hooks.items()
        },
        relay_ports=target_ports(fleet),
        api_server=service(Namespace("default"), "kubernetes"),
        dns=service(system, "kube-dns"),
        node_addresses={ip for node in nodes for ip in addresses_of(node)},
        pod_networks=[network for node in nodes for network in node["spec"].get("podCIDRs", ())],
    )


def one(manifests: list[Json], kind: str) -> Json:
    (found,) = (each for each in manifests if each["kind"] == kind)
    return found


def end_of(pod: Json, namespace_labels: dict[str, str]) -> End:
    metadata = pod["metadata"]
    named = (port for container in pod["spec"]["containers"] for port in container.get("ports", ()))
    ports = {port["name"]: port["containerPort"] for port in named if "name" in port}
    ip = pod["status"]["podIP"]
    return End(metadata["name"], ip, metadata["namespace"], metadata["labels"], namespace_labels, ports)


def target_ports(fleet: Fleet) -> list[int]:
    """Where packets arrive that clients send to the relays' Service."""
    spec = fleet.namespace.get(f"service/{RELAY_SERVICE}")["spec"]
    relay = end_of(fleet.pods(RELAY_PODS)[0], {})
    return [relay.ports[port["targetPort"]] for port in spec["ports"]]


def service(namespace: Namespace, name: str) -> list[tuple[End, int]]:
    """The address of a Service and those behind it, none of which is a pod of ours."""
    spec = namespace.get(f"service/{name}")["spec"]
    ports = {port["port"] for port in spec["ports"] if port["port"] in (53, 443)}
    found = [(End(name, spec["clusterIP"]), port) for port in ports]
    for part in namespace.list("endpointslices", f"kubernetes.io/service-name={name}"):
        for endpoint in part["endpoints"]:
            behind = {port["port"] for port in part["ports"] if port.get("name") != "metrics"}
            found += [(End(name, ip), port) for ip in endpoint["addresses"] for port in behind]
    return found


def addresses_of(node: Json) -> Iterator[str]:
    yield from (each["address"] for each in node["status"]["addresses"] if each["type"].endswith("IP"))
    for network in node["spec"].get("podCIDRs", ()):
        # Where the node has an address in the network of its pods, this is the usual one.
        yield str(ipaddress.ip_network(network)[1])


def sockets(fleet: Fleet, pod: Json) -> Sockets:
    found = json.loads(fleet.namespace.kubectl("exec", pod["metadata"]["name"], "--", "python", "-c", SOCKETS))
    listening = frozenset(port for (_, port), _, state in found["tcp"] if state == LISTENING)
    return Sockets(
        bound=frozenset(port for (_, port), _, _ in found["udp"]),
        listening=listening,
        connections=frozenset(
            (port, *remote)
            for (ip, port), remote, state in found["tcp"]
            if state != LISTENING and not ipaddress.ip_address(ip).is_loopback
        ),
    )


def needed(network: Network) -> Iterator[Flow]:
    """Every flow that a fleet lives by."""
    flows = network.flows
    for port in network.relay_ports:
        yield from flows("media and checks of clients", OUTSIDE, "relay", port, UDP)
        yield from flows("media of the chart's test", network.hooks["test"], "relay", port, UDP)
    yield from flows("answers to clients", "relay", OUTSIDE, ANY_UDP, UDP)
    yield from flows("hop datagrams", "relay", "transceiver", "hop", UDP)
    for relay in network.pods["relay"]:
        upstream = network.sockets[relay.name].bound - set(network.relay_ports)
        assert upstream, "a relay sends to transceivers from a socket of its own"
        for port in upstream:
            yield from flows("answers of transceivers", "transceiver", relay, port, UDP)
    yield from flows("new calls", OUTSIDE, "signaling", "http")
    yield from flows("new calls of a pod", STRANGER, "signaling", "http")
    yield from flows("the chart's test", network.hooks["test"], "signaling", "http")
    yield from flows("internal API", "signaling", "transceiver", "http")
    yield from flows("loads, drains, keys", "operator", "transceiver", "http")
    yield from flows("keys, flows", "operator", "relay", "admin")
    yield from flows("how relays are", "signaling", "relay", "admin")
    watchers: list[str | End] = ["operator", "signaling", "relay", network.hooks["uninstall"]]
    for who, (target, port) in itertools.product(watchers, network.api_server):
        yield from flows("API server", who, target, port)
    askers: list[str | End] = ["operator", "signaling", "transceiver", *network.hooks.values()]
    for who, (target, port), protocol in itertools.product(askers, network.dns, (UDP, TCP)):
        yield from flows("DNS", who, target, port, protocol)
    for program, name in (("operator", "http"), ("signaling", "http"), ("relay", "admin"), ("transceiver", "http")):
        yield from flows("metrics", PROMETHEUS, program, name)


def unwanted(network: Network) -> Iterator[Flow]:
    """Flows that nobody needs, and somebody who broke in anywhere would try."""
    flows = network.flows
    for source in (OUTSIDE, STRANGER):
        for program, name in (("operator", "http"), ("relay", "admin"), ("transceiver", "http")):
            yield from flows("past signaling", source, program, name)
        yield from flows("past relays", source, "transceiver", "hop", UDP)
        yield from flows("no listener of a relay", source, "relay", ANY_UDP, UDP)
    yield from flows("no metrics", PROMETHEUS, "transceiver", "hop", UDP)
    for program in ("signaling", "operator"):
        yield from flows("media", program, "transceiver", "hop", UDP)
        yield from flows("to the world", program, OUTSIDE, ANY_TCP)
        yield from flows("to the world", program, OUTSIDE, ANY_UDP, UDP)
    yield from flows("callers only", "operator", "signaling", "http")
    yield from flows("the other way", "signaling", "operator", "http")
    for program, name in (("operator", "http"), ("signaling", "http"), ("transceiver", "http"), ("relay", "admin")):
        yield from flows("from a relay", "relay", program, name)
        yield from flows("from a transceiver", "transceiver", program, name)
    yield from flows("to the world", "relay", OUTSIDE, ANY_TCP)
    for target, port in (*network.api_server, (OUTSIDE, 443), (OUTSIDE, ANY_TCP)):
        yield from flows("from what runs the model's code", "transceiver", target, port)
    yield from flows("from what runs the model's code", "transceiver", OUTSIDE, ANY_UDP, UDP)
    yield from flows("to another transceiver", "transceiver", "transceiver", "hop", UDP)


def test_every_policy_is_taken_and_every_pod_is_under_one(network: Network) -> None:
    assert {policy["metadata"]["name"] for policy in network.policies} == {f"usher-{name}" for name in POLICIES}
    for program, pods in network.pods.items():
        assert len(pods) == 2
        for pod in (*pods, *network.hooks.values()):
            lonely = End("nobody", "10.255.0.9", pod.namespace, {}, pod.namespace_labels)
            flow = Flow("unknown", lonely, pod, ANY_TCP)
            assert not admits(network.policies, flow), f"{program} is open: {flow}"


def test_every_flow_that_a_fleet_needs_is_admitted(network: Network, figure: Figure) -> None:
    flows = list(needed(network))
    assert [str(flow) for flow in flows if not admits(network.policies, flow)] == []
    figure("flows admitted", len(flows))


def test_other_flows_are_not(network: Network, figure: Figure) -> None:
    flows = list(unwanted(network))
    assert [str(flow) for flow in flows if admits(network.policies, flow)] == []
    figure("flows refused", len(flows))


def test_every_connection_that_is_open_amid_calls_is_admitted(network: Network, figure: Figure) -> None:
    """What we did not think of: the connections that the kernel knows of in each pod."""
    seen: dict[str, Flow] = {}
    for pods in network.pods.values():
        for pod in pods:
            own = network.sockets[pod.name]
            for port, ip, remote_port in own.connections:
                other = network.end_of(ip)
                if ip in network.node_addresses and port in own.listening:
                    continue  # probes, and what comes in by a node port
                if not other.namespace and network.is_of_pod(ip):
                    continue  # one that is gone
                flow = (
                    Flow("seen", other, pod, port) if port in own.listening else Flow("seen", pod, other, remote_port)
                )
                seen[str(flow)] = flow
    assert len(seen) >= 4, "at least operators, relays and signaling hold watches"
    assert [each for each, flow in seen.items() if not admits(network.policies, flow)] == []
    figure("connections seen", len(seen))
