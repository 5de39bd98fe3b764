"""Two namespaces as two clusters: callers enter at the relays of one, and are served by transceivers of the other."""

from __future__ import annotations

import ipaddress
import json
import os
import random
import re
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.calls import HEARD_S
from tests.e2e.conftest import Figure
from tests.e2e.fleet import (
    CHART,
    RELAY_PODS,
    RELAYS,
    RELEASE,
    SMALL_RELAYS,
    SMALL_TRANSCEIVERS,
    TRANSCEIVERS,
    Fleet,
    is_ready,
    values,
)
from tests.e2e.images import Images
from tests.e2e.kube import Json, Namespace, kubectl, run, wait_for
from tests.e2e.test_crds import table

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(300)]

ADMIN_PORT = 9478
HOME, AWAY = 7001, 7009
"""Cluster ids."""
LISTENER = 9
NODE_PORT = 30978
MAX_MOVE_MS = 5_000
"""docs/wire.md section 6: a relay pod behind a Service that is killed."""
STARTS_IN_S = 15
READY_S = 120
LOOKS_S = 75
"""The operator looks after keys every 30 s, with its looks at pools, every 30 s too."""


@dataclass
class Clusters:
    """`home` has the transceivers, signaling and the operator of both, `away` only relays. `keys`: of the trunk."""

    home: Fleet
    away: Fleet
    keys: Path

    def relays(self, fleet: Fleet) -> list[Json]:
        return [pod for pod in fleet.pods(RELAY_PODS) if is_ready(pod)]

    def share_keys(self, *more: str) -> None:
        """What people do with two contexts of kubectl: export, make, apply."""
        exported = self.keys / "relay-keys.json"
        exported.write_text(self.home.namespace.kubectl("get", "secret", "usher-relay-keys", "--output=json"))
        command = [sys.executable, "-m", "usher_cli", "keys", "trunk-secrets", str(self.keys), f"--home={exported}"]
        run(*command, f"--home-cluster={HOME}", f"--ingress-cluster={AWAY}", *more)
        for fleet, side in ((self.home, "home"), (self.away, "ingress")):
            fleet.namespace.kubectl("apply", f"--filename={self.keys / side}.json")


def condition(fleet: Fleet, pool: str, kind: str) -> tuple[str, str]:
    found = fleet.namespace.get(pool).get("status", {}).get("conditions", ())
    return next(((each["status"], each["reason"]) for each in found if each["type"] == kind), ("", ""))


def metric(fleet: Fleet, relay: Json, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} ([0-9.e+]+)$", fleet.metrics(relay, ADMIN_PORT), re.MULTILINE)
    return float(found[1]) if found else 0.0


def from_clients(fleet: Fleet, relay: Json) -> float:
    return metric(fleet, relay, 'usher_relay_packets_total{direction="uplink"}')


def entrance() -> tuple[str, Json]:
    """Address and exposure of the relays of `away`: signaling of the other cluster has to be told where they are."""
    if network := os.environ.get("USHER_E2E_ADDRESSES"):
        address = random.choice([str(ip) for ip in ipaddress.ip_network(network).hosts()])
        # Nobody gives out addresses there: the tests play the load balancer.
        return f"{address}:3478", {"type": "LoadBalancer"}
    nodes = json.loads(kubectl("get", "nodes", "--output=json"))["items"]
    host = next(each["address"] for each in nodes[0]["status"]["addresses"] if each["type"] == "InternalIP")
    return f"{host}:{NODE_PORT}", {"type": "NodePort", "externalTrafficPolicy": "Cluster", "nodePort": NODE_PORT}


def pool(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "usher.fleet/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def peers(address: str) -> list[Json]:
    return [
        {"clusterID": HOME, "endpoints": [{"address": address}], "keySecretRef": {"name": f"usher-trunk-{HOME}"}},
    ]


@pytest.fixture(scope="module")
def clusters(provided: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """Both, with pools that reach each other."""
    end = uuid.uuid4().hex[:6]
    home, away = (Fleet(Namespace(f"usher-e2e-{name}-{end}"), provided) for name in ("near", "away"))
    made = Clusters(home, away, tmp_path_factory.mktemp("trunk"))
    address, exposure = entrance()
    try:
        for fleet in (home, away):
            fleet.make_namespace()
        given = values(home.namespace.name, provided)
        given["operator"] |= {"watchNamespaces": [home.namespace.name, away.namespace.name], "replicaCount": 1}
        given["rbac"] = {"secretNames": [f"usher-trunk-{AWAY}", f"usher-trunk-{HOME}"]}
        given["signaling"]["replicaCount"] = 1
        # Callers are of the region of `away`, so answers name the relays there alone.
        given["signaling"]["settings"] |= {
            "region": "away", "regionFallback": ["*"], "advertise": [f"{LISTENER}={address}@away"],
        }  # fmt: skip
        home.helm("install", RELEASE, CHART, "--take-ownership", given=given)
        home.namespace.apply(pool("TransceiverPool", "voice", {**SMALL_TRANSCEIVERS, "clusterID": HOME}))
        secrets = home.namespace
        wait_for("keys", lambda: "usher-relay-keys" in secrets.kubectl("get", "secrets", "--output=name"), READY_S)
        made.share_keys()
        neighbours = [{"clusterID": AWAY, "keySecretRef": {"name": f"usher-trunk-{AWAY}"}}]
        trunk = {"exposure": {"type": "ClusterIP"}, "neighbours": neighbours}
        inside = {"type": "ClusterIP"}
        home.namespace.apply(
            pool("RelayPool", "edge", {**SMALL_RELAYS, "region": "home", "exposure": inside, "trunk": trunk})
        )
        wait_for("the trunk's address", lambda: home.namespace.get(RELAYS).get("status", {}).get("trunkAddresses"))
        (there,) = home.namespace.get(RELAYS)["status"]["trunkAddresses"]
        listeners = [{"name": "media", "id": LISTENER}]
        spec = {**SMALL_RELAYS, "region": "away", "exposure": exposure, "listeners": listeners, "peers": peers(there)}
        away.namespace.apply(pool("RelayPool", "edge", spec))
        if exposure["type"] == "LoadBalancer":
            wait_for("its Service", lambda: "edge-relay" in away.namespace.kubectl("get", "services"))
            status = {"status": {"loadBalancer": {"ingress": [{"ip": address.partition(":")[0]}]}}}
            away.namespace.patch("service/edge-relay", status, "--subresource=status")
        for fleet, wanted in ((home, (RELAYS, TRANSCEIVERS)), (away, (RELAYS,))):
            for each in wanted:
                fleet.namespace.kubectl(
                    "wait", "--for=condition=Ready", f"--timeout={READY_S}s", each, limit=READY_S + 5
                )
        for fleet, kind in ((home, "TrunkReady"), (away, "PeersReachable")):
            fleet.namespace.kubectl(
                "wait", f"--for=condition={kind}", f"--timeout={READY_S}s", RELAYS, limit=READY_S + 5
            )
        home.adopt()
        yield made
    except BaseException:
        for fleet in (home, away):
            fleet.collect(Path(os.environ.get("USHER_E2E_KEEP", "e2e-failures")) / fleet.namespace.name)
        raise
    finally:
        for fleet in (away, home):
            fleet.remove()


def test_a_call_enters_at_relays_without_transceivers_and_is_served_in_the_other_cluster(
    clusters: Clusters, figure: Figure
) -> None:
    home, away = clusters.home, clusters.away
    assert away.namespace.list("tpool") == []
    outcome = home.call(count=2)
    figure("calls over the trunk", outcome)
    assert outcome.lost == 0
    assert sum(from_clients(away, relay) for relay in clusters.relays(away)) > 100
    assert sum(metric(home, relay, 'usher_relay_flows{state="confirmed"}') for relay in clusters.relays(home)) == 0
    assert sum(from_clients(home, relay) for relay in clusters.relays(home)) > 100, "they came by the trunk"
    assert table(away.namespace.kubectl("get", RELAYS, "--output=wide"))["PEERS"] == "1/1"
    assert table(home.namespace.kubectl("get", RELAYS, "--output=wide"))["TRUNK"].endswith(":3479")
    assert condition(away, RELAYS, "PeersReachable") == ("True", "Reachable")


def test_a_new_key_of_the_trunk_is_not_heard(clusters: Clusters, figure: Figure) -> None:
    with clusters.home.calls(5, light=True) as calls:
        calls.until_up()
        clusters.share_keys("--new-key", f"--starts-in={STARTS_IN_S}")
        asked = time.monotonic()
        for fleet in (clusters.home, clusters.away):
            fleet.bring_files(RELAY_PODS)
        wait_for("all relays hold both keys", lambda: all_hold(clusters, 2), STARTS_IN_S)
        figure("all relays held the new key after", f"{time.monotonic() - asked:.1f} s")
        outcome = calls.end(STARTS_IN_S + HEARD_S)
    figure("calls while it came into use", outcome)
    assert outcome.is_unbroken
    assert not {each for relay in clusters.relays(clusters.away) for each in lacking(clusters.away, relay)}
    for reason in ("hop_key", "hop_mac"):
        name = f'usher_relay_drops_total{{reason="{reason}"}}'
        assert sum(metric(clusters.home, relay, name) for relay in clusters.relays(clusters.home)) == 0
    assert condition(clusters.away, RELAYS, "PeersReachable")[0] == "True"


def all_hold(clusters: Clusters, count: int) -> bool:
    return all(
        len([key for key in held(fleet, relay) if key["list"] == "hop" and key["clusters"]]) == count
        for fleet in (clusters.home, clusters.away)
        for relay in clusters.relays(fleet)
    )


def held(fleet: Fleet, relay: Json) -> list[Json]:
    found: list[Json] = json.loads(fleet.page(relay, ADMIN_PORT, "keys"))["keys"]
    return found


def lacking(fleet: Fleet, relay: Json) -> set[str]:
    """Endpoints that lack a trunk's key which this relay holds."""
    ours = {int(key["id"]) for key in held(fleet, relay) if key["list"] == "hop" and key["clusters"]}
    found = json.loads(fleet.page(relay, ADMIN_PORT, "routes"))["peers"]
    return {each["address"] for each in found if not ours <= set(each["held_hop"])}


def test_a_relay_of_the_other_cluster_is_killed_and_calls_go_on(clusters: Clusters, figure: Figure) -> None:
    home = clusters.home
    with home.calls(5, light=True) as calls:
        calls.until_up()
        victim = max(clusters.relays(home), key=lambda relay: from_clients(home, relay))
        home.kill(victim)
        outcome = calls.end(2 * HEARD_S)
    figure("calls during all of it", outcome)
    assert outcome.lost == 0
    assert outcome.longest_gap_ms <= MAX_MOVE_MS


def test_a_rotation_at_home_waits_for_the_other_cluster_which_people_bring_the_new_key(clusters: Clusters) -> None:
    home, away = clusters.home, clusters.away
    run(sys.executable, "-m", "usher_cli", "keys", "rotate", "--namespace", home.namespace.name)
    (given,) = wait_for("a key is handed out", lambda: letters(home, "given"), LOOKS_S)
    home.bring_files("app.kubernetes.io/managed-by=usher-operator")
    says = f"key {given} is not in use yet: give it to cluster {AWAY} (says nothing)"
    wait_for("the operator waits for the other cluster alone", lambda: says in described(home), LOOKS_S)
    assert letters(home, "active") != [given]
    clusters.share_keys()
    away.bring_files(RELAY_PODS)
    brought = ("ice", given, [HOME])
    for relay in clusters.relays(away):
        wait_for(
            "the relays where clients enter hold it",
            lambda relay=relay: brought in [(key["list"], key["id"], key["clusters"]) for key in held(away, relay)],  # type: ignore[misc]
        )


def letters(fleet: Fleet, state: str) -> list[str]:
    lines = fleet.namespace.get(RELAYS)["status"]["keyIDs"]
    return [found[1] for line in lines if (found := re.match(rf"ice/(\S+) {state}", line))]


def described(fleet: Fleet) -> str:
    return " ".join(fleet.namespace.kubectl("describe", RELAYS).split())


def test_another_cluster_with_an_id_of_ours_is_refused(clusters: Clusters) -> None:
    home = clusters.home
    home.namespace.apply(pool("RelayPool", "wrong", {"replicas": 0, "peers": peers("192.0.2.1:3479")}))
    try:
        wait_for("a refusal", lambda: condition(home, "rpool/wrong", "Accepted") == ("False", "ClusterIDConflict"))
        assert "TransceiverPool voice" in home.namespace.kubectl("describe", "rpool/wrong")
    finally:
        home.namespace.kubectl("delete", "rpool/wrong", "--timeout=30s")
