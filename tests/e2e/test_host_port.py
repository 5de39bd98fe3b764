"""Relays as a DaemonSet on ports of their nodes: where the namespace forbids that, and where it does not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import RELAY_PODS, RELAYS, SMALL_RELAYS, Fleet, is_ready
from tests.e2e.kube import Json, kubectl, wait_for
from tests.e2e.test_relays import ADMIN_PORT, flows

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(400)]

POOL = "rpool/host"
PODS = "app.kubernetes.io/component=relay,usher.fleet/pool=host"
PORT = 13478
LISTENER = 2
"""Ids of listeners differ among pools that have transceivers in common."""
GRACE_S = 30
NOWHERE = "192.0.2.1"
"""RFC 5737: leads to nobody."""
KINDS = "daemonsets,deployments,pods,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets"
SPEC: Json = {
    **SMALL_RELAYS,
    "workload": "DaemonSet",
    "listeners": [{"id": LISTENER, "port": PORT}],
    "exposure": {"type": "HostPort"},
    "drain": {"gracePeriod": f"{GRACE_S}s"},
}


def condition(fleet: Fleet, name: str) -> Json:
    found = (fleet.namespace.get(POOL).get("status") or {}).get("conditions") or ()
    return next((each for each in found if each["type"] == name), {})


def addresses(fleet: Fleet) -> set[tuple[str, int]]:
    return {(each["ip"], each["port"]) for each in fleet.namespace.get(POOL)["status"].get("addresses") or ()}


def node_addresses() -> set[tuple[str, int]]:
    nodes = json.loads(kubectl("get", "nodes", "--output=json"))["items"]
    found = (address for node in nodes for address in node["status"]["addresses"])
    return {(each["address"], PORT) for each in found if each["type"] == "InternalIP"}


@pytest.fixture
def refused(fleet: Fleet) -> Iterator[Fleet]:
    """Such a pool in a namespace that admits `restricted` pods only. The other relays are out of the callers' reach."""
    fleet.namespace.patch(RELAYS, {"spec": {"exposure": {"advertisedAddresses": [NOWHERE]}}})
    metadata = {"name": POOL.partition("/")[2]}
    fleet.namespace.apply(
        {"apiVersion": "usher.fleet/v1alpha1", "kind": "RelayPool", "metadata": metadata, "spec": SPEC}
    )
    yield fleet
    fleet.namespace.kubectl("delete", POOL, f"--timeout={GRACE_S + 60}s")
    wait_for("its relays are gone", lambda: not fleet.pods(PODS), GRACE_S + 60)
    fleet.enforce("restricted")
    fleet.namespace.patch(RELAYS, {"spec": {"exposure": {"advertisedAddresses": None}}})
    fleet.until_ready()


@pytest.fixture
def exposed(refused: Fleet) -> Fleet:
    """The same once the namespace is `privileged`, and every node has a relay that clients are told of."""
    refused.enforce("privileged")
    refused.namespace.kubectl("wait", "--for=condition=Ready", "--timeout=120s", POOL, limit=130)
    wait_for("every node's address", lambda: addresses(refused) == node_addresses())
    return refused


def test_where_host_ports_are_forbidden_nothing_is_made_and_the_pool_says_what_to_do(refused: Fleet) -> None:
    fleet = refused
    wait_for("the operator has looked", lambda: condition(fleet, "Exposed").get("status") == "False")
    exposed = condition(fleet, "Exposed")
    assert exposed["reason"] == "HostPortForbidden"
    assert f"Pod Security restricted of namespace {fleet.namespace.name} forbids host ports" in exposed["message"]
    assert "label the namespace pod-security.kubernetes.io/enforce=privileged" in exposed["message"]
    assert condition(fleet, "Ready")["reason"] == "HostPortForbidden"
    made = fleet.namespace.kubectl("get", KINDS, "--selector=usher.fleet/pool=host", "--output=name")
    assert made == ""
    events = fleet.namespace.kubectl("get", "events", "--output=jsonpath={.items[*].message}")
    assert "violates PodSecurity" not in events


def test_calls_come_by_the_host_ports_of_nodes(exposed: Fleet, figure: Figure) -> None:
    fleet = exposed
    assert len([pod for pod in fleet.pods(PODS) if is_ready(pod)]) == len(node_addresses())
    before = flows_made_elsewhere(fleet)
    with fleet.calls(4) as calls:
        calls.until_up()
        assert sum(flows(fleet, pod) for pod in fleet.pods(PODS)) >= 4
        assert flows_made_elsewhere(fleet) == before
        outcome = calls.end()
    figure(f"calls by port {PORT} of {len(node_addresses())} nodes", outcome)
    assert outcome.is_unbroken
    assert not outcome.wrong


def test_a_relay_that_goes_leaves_its_calls_until_another_one_has_the_port(exposed: Fleet, figure: Figure) -> None:
    """No other relay is behind the address of a node, so there is a gap: until the next one is there."""
    fleet = exposed
    with fleet.calls(4) as calls:
        calls.until_up()
        victim = max(fleet.pods(PODS), key=lambda pod: flows(fleet, pod))
        assert flows(fleet, victim) > 0
        fleet.namespace.kubectl("delete", "pod", victim["metadata"]["name"], "--wait=false")
        told = time.monotonic()
        wait_for("another one", lambda: victim["metadata"]["uid"] not in ready_uids(fleet) and all_ready(fleet), 90)
        figure(
            "another relay had the port after", f"{time.monotonic() - told:.1f} s, of which {GRACE_S} s may be grace"
        )
        outcome = calls.end()
    figure("calls during all of it", outcome)
    assert outcome.lost == 0


def flows_made_elsewhere(fleet: Fleet) -> float:
    """How many flows the relays of the other pool have made; of earlier calls they remember some for a while."""
    made = 'usher_relay_flow_events_total{event="created"} '
    pages = [fleet.metrics(pod, ADMIN_PORT) for pod in fleet.pods(RELAY_PODS)]
    return sum(float(line.removeprefix(made)) for page in pages for line in page.splitlines() if line.startswith(made))


def ready_uids(fleet: Fleet) -> set[str]:
    return {pod["metadata"]["uid"] for pod in fleet.pods(PODS) if is_ready(pod)}


def all_ready(fleet: Fleet) -> bool:
    return len(ready_uids(fleet)) == len(node_addresses()) == len(fleet.pods(PODS))
