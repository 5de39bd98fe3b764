"""The checker of NetworkPolicies reads them as Kubernetes does."""

from dataclasses import replace
from typing import Any

import pytest

from tests.network_policies import TCP, UDP, End, Flow, admits

SERVER = End("server", "10.0.0.1", "shop", {"app": "server"}, {"team": "a"}, {"web": 8080})
CLIENT = End("client", "10.0.0.2", "shop", {"app": "client"}, {"team": "a"})
FOREIGN = End("foreign", "10.0.1.2", "bank", {"app": "client"}, {"team": "b"})
OUTSIDE = End("outside", "203.0.113.9")
FLOW = Flow("asks", CLIENT, SERVER, 8080)


def policy(app: str, *types: str, namespace: str = "shop", **rules: Any) -> dict[str, Any]:
    spec = {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": list(types), **rules}
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": spec}


def ingress(*peers: Any, ports: Any = None) -> dict[str, Any]:
    rule = {**({"from": list(peers)} if peers else {}), **({"ports": ports} if ports else {})}
    return policy("server", "Ingress", ingress=[rule])


def test_a_pod_that_no_policy_selects_is_open() -> None:
    assert admits([], FLOW)
    assert admits([policy("server", "Ingress", namespace="bank"), policy("other", "Ingress")], FLOW)
    assert admits([policy("server", "Egress"), policy("client", "Ingress")], FLOW)


def test_a_policy_without_rules_closes_a_pod_in_its_directions() -> None:
    assert not admits([policy("server", "Ingress")], FLOW)
    assert not admits([policy("client", "Egress")], FLOW)


def test_without_types_a_policy_is_about_what_comes_in_and_with_rules_for_it_about_what_goes_out() -> None:
    assert not admits([policy("server")], FLOW)
    assert admits([policy("client")], FLOW)
    assert not admits([policy("client", egress=[{"ports": [{"port": 53}]}])], FLOW)


def test_one_rule_of_one_policy_that_admits_is_enough_but_both_ends_have_to_be_open() -> None:
    assert admits([policy("server", "Ingress"), ingress()], FLOW)
    assert not admits([policy("client", "Egress"), ingress()], FLOW)


@pytest.mark.parametrize(
    ("peer", "admitted"),
    [
        ({"podSelector": {}}, {"client"}),
        ({"podSelector": {"matchLabels": {"app": "client"}}}, {"client"}),
        ({"podSelector": {"matchLabels": {"app": "other"}}}, set()),
        ({"namespaceSelector": {}}, {"client", "foreign"}),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, {"foreign"}),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "client"}}}, {"client", "foreign"}),
        ({"ipBlock": {"cidr": "203.0.113.0/24"}}, {"outside"}),
        ({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["203.0.113.0/24"]}}, {"client", "foreign"}),
    ],
)
def test_peers(peer: Any, admitted: set[str]) -> None:
    found = {end.name for end in (CLIENT, FOREIGN, OUTSIDE) if admits([ingress(peer)], replace(FLOW, source=end))}
    assert found == admitted


@pytest.mark.parametrize(
    ("port", "admitted"),
    [
        ({"port": 8080}, {(8080, TCP)}),
        ({"port": "web", "protocol": "TCP"}, {(8080, TCP)}),
        ({"port": "unknown"}, set()),
        ({"protocol": "UDP"}, {(8080, UDP), (9000, UDP)}),
        ({"port": 8000, "endPort": 9000, "protocol": "UDP"}, {(8080, UDP), (9000, UDP)}),
        ({"port": 8081, "endPort": 9000}, {(9000, TCP)}),
    ],
)
def test_ports(port: Any, admitted: set[tuple[int, str]]) -> None:
    tried = [(number, protocol) for number in (8080, 9000) for protocol in (TCP, UDP)]
    flows = {each: replace(FLOW, port=each[0], protocol=each[1]) for each in tried}
    assert {each for each, flow in flows.items() if admits([ingress(ports=[port])], flow)} == admitted


def test_a_named_port_of_a_way_out_is_that_of_the_target() -> None:
    out = policy("client", "Egress", egress=[{"ports": [{"port": "web"}]}])
    assert admits([out], FLOW)
    assert not admits([out], replace(FLOW, target=replace(SERVER, ports={"web": 80})))
