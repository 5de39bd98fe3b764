"""One operator for the whole cluster (`operator.clusterWide`), with pools in two namespaces that are not its own."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import (
    CHART,
    OPERATOR_PODS,
    RELAY_PODS,
    RELEASE,
    TRANSCEIVER_PODS,
    TRANSCEIVERS,
    Fleet,
    pod_id,
    values,
)
from tests.e2e.images import Images
from tests.e2e.inventory import CRDS, OF_EVERY_NAMESPACE, of_cluster, of_namespace
from tests.e2e.kube import Json, Namespace, kubectl, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(500)]

OPERATOR_PORT = 7290
OF_THE_USER = {"secret/usher-api-keys"}
COPIED = {"keysSecret": "usher-signaling-keys", "tokenSecret": "usher-internal-token"}
"""Secrets that the operator makes beside the pools, by the value that tells signaling of a copy."""


@dataclass
class Cluster:
    """The install, and the namespaces of two teams, each with pools that have the same names."""

    home: Fleet
    teams: list[Fleet]
    before: set[str]
    """Objects of the cluster before the install."""

    @property
    def namespaces(self) -> list[str]:
        return [fleet.namespace.name for fleet in (self.home, *self.teams)]


def cluster_wide(images: Images, home: str, serves: Fleet | None = None) -> Json:
    """Values of the chart. `serves`: whose pools take the calls, from copies of the Secrets that were made there."""
    given = values(home, images)
    del given["operator"]["watchNamespaces"]
    given["operator"]["clusterWide"] = True
    given["signaling"]["enabled"] = serves is not None
    if serves is not None:
        given["signaling"]["poolsNamespace"] = serves.namespace.name
        given["signaling"] |= {value: copy_of(name, serves) for value, name in COPIED.items()}
    return given


def copy_of(secret: str, team: Fleet) -> str:
    return f"{team.namespace.name}-{secret}"


@pytest.fixture(scope="module")
def cluster(provided: Images) -> Iterator[Cluster]:
    """The install and its pools, all of them ready."""
    if kubectl("get", "crd", "transceiverpools.usher.fleet", "--ignore-not-found") and (
        others := kubectl("get", "usher", "--all-namespaces", "--output=name")
    ):
        pytest.skip(f"this operator would take pools that are no test's ({others.split()[0]}). To enable: delete them")
    before = of_cluster()
    end = uuid.uuid4().hex[:6]
    home, *teams = (Fleet(Namespace(f"usher-e2e-{name}-{end}"), provided) for name in ("home", "red", "blue"))
    try:
        for fleet in (home, *teams):
            fleet.make_namespace()
        home.helm("install", RELEASE, CHART, "--take-ownership", given=cluster_wide(provided, home.namespace.name))
        for team in teams:
            team.make_pools(small=True)
        for team in teams:
            team.until_ready()
        yield Cluster(home, teams, before)
    finally:
        for fleet in (*teams, home):
            fleet.remove()


def status(team: Fleet) -> Json:
    found: Json = team.namespace.get(TRANSCEIVERS)["status"]
    return found


def data(secret: str, fleet: Fleet) -> dict[str, str]:
    found: dict[str, str] = fleet.namespace.get(f"secret/{secret}")["data"]
    return found


def test_each_namespace_has_a_cluster_id_and_keys_of_its_own(cluster: Cluster) -> None:
    red, blue = cluster.teams
    assert status(red)["clusterID"] != status(blue)["clusterID"]
    for team in cluster.teams:
        pods = team.pods(TRANSCEIVER_PODS)
        assert {pod["metadata"]["labels"]["usher.fleet/cluster-id"] for pod in pods} == {str(status(team)["clusterID"])}
        assert None not in {pod_id(pod) for pod in pods}
        assert len({pod_id(pod) for pod in pods}) == len(pods) == 2
        assert len(team.pods(RELAY_PODS)) == 2
    for secret in ("usher-relay-keys", "usher-transceiver-keys", "usher-internal-token"):
        assert data(secret, red) != data(secret, blue)
    secrets = cluster.home.namespace.kubectl("get", "secrets", "--output=name").split()
    assert not {f"secret/{name}" for name in COPIED.values()} & set(secrets), "no pool is there, so no keys are needed"


def test_calls_reach_the_pools_of_the_namespace_that_signaling_serves(cluster: Cluster, figure: Figure) -> None:
    home = cluster.home
    for team in cluster.teams:
        for name in COPIED.values():
            metadata = {"name": copy_of(name, team)}
            home.namespace.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data(name, team)})
        home.helm("upgrade", RELEASE, CHART, given=cluster_wide(home.images, home.namespace.name, serves=team))
        home.until_calls_can_be_placed()
        home.url = home.signaling_url()
        outcome = home.call(seconds=3, count=4)
        figure(f"calls to {team.namespace.name}", outcome)
        assert outcome.is_unbroken
        assert not outcome.wrong
        clusters = {route.partition("/")[0] for route in outcome.transceivers}
        assert clusters == {str(status(team)["clusterID"])}


def reviews(account: str, *asked: tuple[str, str, str]) -> list[bool]:
    """Ask the API server what a ServiceAccount (`namespace:name`) may do.

    `asked`: verb, resource as `plural.group/subresource:name`, and namespace.
    """
    objects = []
    for verb, what, namespace in asked:
        kind, _, name = what.partition(":")
        resource, _, subresource = kind.partition("/")
        plural, _, group = resource.partition(".")
        attributes = {
            "verb": verb, "group": group, "resource": plural, "subresource": subresource, "name": name,
            "namespace": namespace,
        }  # fmt: skip
        spec = {"user": f"system:serviceaccount:{account}", "resourceAttributes": attributes}
        objects.append({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
    given = "\n---\n".join(map(json.dumps, objects))
    told = kubectl("create", "--filename=-", "--output=jsonpath={.status.allowed}{'\\n'}", given=given)
    return [line == "true" for line in told.split()]


def test_the_operator_may_do_what_it_needs_and_nothing_else(cluster: Cluster) -> None:
    home, red, _ = cluster.namespaces
    account = f"{home}:usher-operator"
    for each in cluster.teams:
        for pod in cluster.home.pods(OPERATOR_PODS):
            assert not re.search(r'code="403"', cluster.home.metrics(pod, OPERATOR_PORT)), "a right is missing"
        assert status(each)["observedGeneration"] >= 1
    may = [
        ("patch", "transceiverpools.usher.fleet/status", red),
        ("patch", "pods:any", red),
        ("create", "deployments.apps", red),
        ("create", "secrets", red),
        ("get", "secrets:usher-keys", red),
        ("update", "leases.coordination.k8s.io", home),
        ("list", "nodes", ""),
        ("get", "namespaces", red),
    ]
    may_not = [
        # Secrets: the five that are its own, by name; none by a list, in whatever namespace.
        ("get", "secrets:usher-api-keys", red),
        ("get", "secrets:another", home),
        ("get", "secrets:another", "kube-system"),
        ("list", "secrets", red),
        ("watch", "secrets", ""),
        ("create", "pods", red),
        ("delete", "pods", red),
        ("create", "pods/exec", red),
        ("delete", "deployments.apps", red),
        ("delete", "transceiverpools.usher.fleet", red),
        ("create", "transceiverpools.usher.fleet", red),
        ("update", "leases.coordination.k8s.io", red),
        ("delete", "leases.coordination.k8s.io", home),
        ("create", "clusterroles.rbac.authorization.k8s.io", ""),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
        ("escalate", "roles.rbac.authorization.k8s.io", red),
        ("bind", "roles.rbac.authorization.k8s.io", red),
        ("impersonate", "serviceaccounts", red),
        ("patch", "nodes", ""),
        ("list", "namespaces", ""),
    ]
    assert dict(zip(may, reviews(account, *may), strict=True)) == dict.fromkeys(may, True)
    assert dict(zip(may_not, reviews(account, *may_not), strict=True)) == dict.fromkeys(may_not, False)


def test_relays_and_signaling_may_read_pods_of_one_namespace_and_transceivers_nothing(cluster: Cluster) -> None:
    home, red, blue = cluster.namespaces
    relay = f"{red}:edge-relay"
    assert reviews(relay, ("list", "pods", red), ("watch", "pods", red)) == [True, True]
    others = [
        ("list", "pods", blue),
        ("list", "pods", home),
        ("get", "secrets:usher-relay-keys", red),
        ("list", "nodes", ""),
    ]
    assert not any(reviews(relay, *others))
    # The test of calls has left it serving the second team.
    signaling = f"{home}:usher-signaling"
    assert reviews(signaling, ("watch", "pods", blue), ("watch", "relaypools.usher.fleet", blue)) == [True, True]
    others = [("list", "pods", red), ("list", "pods", home), ("get", "secrets:usher-signaling-keys", blue)]
    assert not any(reviews(signaling, *others))
    assert not any(reviews(f"{red}:voice-transceiver", ("list", "pods", red), ("get", "secrets:usher-keys", red)))
    for pod in cluster.teams[0].pods(TRANSCEIVER_PODS):
        assert pod["spec"]["automountServiceAccountToken"] is False


def test_uninstalling_takes_the_pools_of_all_namespaces_and_leaves_only_what_users_made(
    cluster: Cluster, figure: Figure
) -> None:
    home = cluster.home
    said = home.helm("uninstall", RELEASE, "--timeout=200s", limit=220)
    assert "uninstalled" in said
    copies = {f"secret/{copy_of(name, team)}" for team in cluster.teams for name in COPIED.values()}
    for fleet in (home, *cluster.teams):
        name = fleet.namespace.name
        own = OF_EVERY_NAMESPACE | OF_THE_USER | (copies if fleet is home else set())
        wait_for(f"what belonged to others in {name} is collected", lambda: of_namespace(name) <= own, 60)  # noqa: B023
        assert of_namespace(name) == own
    assert of_cluster() - cluster.before - CRDS == set()
    figure("objects left in three namespaces", "Secrets that users made")
