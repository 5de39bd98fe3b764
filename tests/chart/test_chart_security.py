"""Pods run under Pod Security `restricted`, and each ServiceAccount may do what is in this table and no more."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chart.rendering import NAMESPACE, SCENARIOS, Object, by_name, name_of, objects, pods, template
from usher_operator import kube, names
from usher_operator.keys.secrets import ALL as KEY_SECRETS

pytestmark = pytest.mark.needs("helm")


def faults(pod: Object) -> Iterator[str]:
    """Yield what Pod Security `restricted` (Kubernetes 1.32) and our own rules have against a pod."""
    for flag in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(flag):
            yield flag
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in pod.get("volumes", ()):
        if not set(volume) - {"name"} <= allowed | {"secret"}:
            yield f"volume {volume['name']}"
    security = pod.get("securityContext", {})
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "seccomp"
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        yield "may run as root, or a kubelet can't tell"
    if pod.get("enableServiceLinks") is not False:
        yield "environment of other Services"
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        yield from container_faults(container)


def container_faults(container: Object) -> Iterator[str]:
    security = container.get("securityContext", {})
    if security.get("privileged") or security.get("allowPrivilegeEscalation") is not False:
        yield "privileges"
    if security.get("capabilities") != {"drop": ["ALL"]}:
        yield "capabilities"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "root file system"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield "host port"
    if not container.get("resources", {}).get("requests"):
        yield "no requests"
    if container["image"].endswith((":latest", ":")):
        yield "no version of the image"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_pod_is_restricted(scenario: str) -> None:
    found = {name_of(one): list(faults(pod)) for one in objects(scenario) for pod in pods(one)}
    assert found
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_only_what_talks_with_the_api_server_gets_a_token(scenario: str) -> None:
    found = objects(scenario)
    off = {
        one["metadata"]["name"]
        for one in found
        if one["kind"] == "ServiceAccount" and one.get("automountServiceAccountToken") is False
    }
    with_token = {
        name_of(one).rpartition("-")[2]
        for one in found
        for pod in pods(one)
        if pod.get("automountServiceAccountToken", True) and pod.get("serviceAccountName") not in off
    }
    assert with_token <= {"operator", "signaling", "uninstall"}


INTERNAL = {"http", 7280, 9478}
"""Ports of the internal API, of relays' admin pages and of metrics."""


def reached(policy: Object) -> Iterator[tuple[Any, list[Object] | None]]:
    """Yield each port that a policy opens, and to whom; None: everybody."""
    for rule in policy["spec"].get("ingress", ()):
        for port in rule["ports"]:
            # An empty list opens to everybody, too.
            yield port.get("port"), rule.get("from") or None


def policies(*arguments: str) -> dict[str, Object]:
    found = by_name("defaults", "--set=networkPolicy.enabled=true", *arguments)
    return {name.removeprefix("NetworkPolicy/fleet-usher-"): one for name, one in found.items() if "NetworkP" in name}


@pytest.mark.parametrize("more", [(), ("--set=signaling.enabled=false", "--set=redis.enabled=true")])
def test_internal_ports_are_open_to_named_pods_alone(more: tuple[str, ...]) -> None:
    found = {
        (component, port): peers
        for component, policy in policies(*more).items()
        if component != "signaling"
        for port, peers in reached(policy)
        if port in INTERNAL
    }
    assert set(found) == {("relay", 9478), ("transceiver", 7280)}
    for peers in found.values():
        assert peers is not None
        for peer in peers:
            assert set(peer) == {"podSelector"}
            assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] in ("operator", "signaling")


def test_metrics_are_open_to_those_that_are_named() -> None:
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    label = r"networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=monitoring"
    found = policies(f"--set={label}")
    for component, port in (("operator", "http"), ("relay", 9478), ("transceiver", 7280)):
        assert monitoring in (dict(reached(found[component]))[port] or [])


def test_policies_open_every_port_that_pools_may_have() -> None:
    ports = (
        "--set=networkPolicy.transceiverPorts.http={7280,8280}",
        "--set=networkPolicy.transceiverPorts.hop={7200,8200}",
    )
    found = policies(*ports, "--set=networkPolicy.relayPorts={3478,443}")
    assert {port for port, _ in reached(found["transceiver"])} == {7280, 8280, 7200, 8200}
    assert {3478, 443} <= {port for port, _ in reached(found["relay"])}
    for component in ("operator", "signaling"):
        sent = {port.get("port") for rule in found[component]["spec"]["egress"] for port in rule["ports"]}
        assert {7280, 8280} <= sent


def sends(policy: Object) -> Iterator[tuple[Any, list[Object] | None]]:
    """Yield each TCP port that a policy lets its pods connect to, and where; None: anywhere."""
    for rule in policy["spec"].get("egress", ()):
        for port in rule["ports"]:
            if port["protocol"] == "TCP":
                yield port.get("port"), rule.get("to") or None


def test_transceivers_reach_their_realtime_server_at_named_ports_and_addresses_alone() -> None:
    closed = dict(sends(policies()["transceiver"]))
    assert set(closed) == {53, 5353}
    opened = dict(sends(policies("--set=networkPolicy.realtimePorts={443,8443}")["transceiver"]))
    assert opened == {**closed, 443: None, 8443: None}
    where = "--set=networkPolicy.realtimeTo[0].ipBlock.cidr=203.0.113.0/24"
    named = dict(sends(policies("--set=networkPolicy.realtimePorts={443}", where)["transceiver"]))
    assert named == {**closed, 443: [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}


def test_relays_reach_their_redis_at_named_ports_and_addresses_alone() -> None:
    closed = dict(sends(policies()["relay"]))
    assert set(closed) == {443, 6443}
    opened = dict(sends(policies("--set=networkPolicy.relayRedisPorts={6379}")["relay"]))
    assert opened == {**closed, 53: None, 5353: None, 6379: None}
    where = "--set=networkPolicy.relayRedisTo[0].podSelector.matchLabels.app=redis"
    named = dict(sends(policies("--set=networkPolicy.relayRedisPorts={6379}", where)["relay"]))
    assert named[6379] == [{"podSelector": {"matchLabels": {"app": "redis"}}}]


def test_a_pool_that_its_policy_would_cut_off_from_its_redis_is_refused() -> None:
    pool = (
        "--set=relay.pool.create=true",
        "--set=relay.pool.spec.redis.urlSecretRef.name=redis",
        "--set=relay.pool.spec.redis.urlSecretRef.key=url",
    )
    assert template(*pool).returncode == 0
    outcome = template(*pool, "--set=networkPolicy.enabled=true")
    assert outcome.returncode != 0
    assert "set networkPolicy.relayRedisPorts to its port" in outcome.stderr
    ports = "--set=networkPolicy.relayRedisPorts={6379}"
    assert template(*pool, "--set=networkPolicy.enabled=true", ports).returncode == 0


def ports_of(policy: Object) -> dict[Any, list[Object] | None]:
    """Return the ports that a policy opens by number, and to whom."""
    return {port: peers for port, peers in reached(policy) if port is not None}


def test_relays_of_other_clusters_reach_the_trunk_alone_and_only_where_it_is_opened() -> None:
    closed = ports_of(policies()["relay"])
    assert set(closed) == {3478, 9478}
    opened = ports_of(policies("--set=networkPolicy.trunkPorts={3479}")["relay"])
    assert opened == {**closed, 3479: None}
    where = "--set=networkPolicy.trunkFrom[0].ipBlock.cidr=203.0.113.0/24"
    named = ports_of(policies("--set=networkPolicy.trunkPorts={3479}", where)["relay"])
    assert named[3479] == [{"ipBlock": {"cidr": "203.0.113.0/24"}}]
    pool = ("--set=relay.pool.create=true", "--set=relay.pool.spec.trunk.port=3479", "--set=networkPolicy.enabled=true")
    assert "set networkPolicy.trunkPorts to its port" in template(*pool).stderr
    assert template(*pool, "--set=networkPolicy.trunkPorts={3479}").returncode == 0


def test_a_pool_that_its_policy_would_cut_off_from_its_realtime_server_is_refused() -> None:
    pool = (
        "--set=transceiver.pool.create=true",
        "--set=transceiver.pool.spec.backend.type=realtime",
        "--set=transceiver.pool.spec.backend.realtime.url=wss://api.example.com",
    )
    assert template(*pool).returncode == 0
    outcome = template(*pool, "--set=networkPolicy.enabled=true")
    assert outcome.returncode != 0
    assert "set networkPolicy.realtimePorts to its port" in outcome.stderr
    for rule in ("networkPolicy.realtimePorts={443}", "networkPolicy.transceiverEgress[0].ports[0].port=443"):
        assert template(*pool, "--set=networkPolicy.enabled=true", f"--set={rule}").returncode == 0


POOLS = "relaypools, transceiverpools"
OF_POOLS = {
    f"usher.fleet: {POOLS}": "get list watch patch",
    "usher.fleet: relaypools/status, transceiverpools/status": "patch",
    "usher.fleet: relaypools/finalizers, transceiverpools/finalizers": "update",
    "pods": "get list watch patch",
    "apps: deployments, daemonsets": "get list watch create patch",
    "services": "get list watch create patch",
    "serviceaccounts": "get create patch",
    "configmaps": "get create patch",
    "services, configmaps": "delete",
    "policy: poddisruptionbudgets": "get create patch",
    "rbac.authorization.k8s.io: roles, rolebindings": "get create patch",
    "events": "create",
    "secrets": "create",
    f"secrets {', '.join(KEY_SECRETS)}": "get update delete",
}
OF_LEASES = {"coordination.k8s.io: leases": "get list create update"}
OF_SIGNALING = {"pods": "list watch", "usher.fleet: relaypools": "list watch"}
OF_KEYS = {f"secrets {', '.join(KEY_SECRETS)}": "get delete"}
OF_UNINSTALL = {
    "apps: deployments fleet-usher-operator": "get delete",
    "pods": "list",
    "pods fleet-usher-test": "get delete",
    "coordination.k8s.io: leases fleet-usher-operator": "get delete",
    **OF_KEYS,
}
DELETE_POOLS = {f"usher.fleet: {POOLS}": "list delete", "pods": "list", **OF_KEYS}
DELETE_LEASES = {"coordination.k8s.io: leases": "list delete"}

ALLOWED: dict[str, dict[str, dict[str, dict[str, str]]]] = {
    "defaults": {
        "fleet-usher-operator": {
            "everywhere": {"nodes": "list", f"namespaces {NAMESPACE}": "get"},
            NAMESPACE: {**OF_POOLS, **OF_LEASES},
        },
        "fleet-usher-signaling": {NAMESPACE: OF_SIGNALING},
        "fleet-usher-uninstall": {NAMESPACE: {**DELETE_POOLS, **OF_UNINSTALL, **DELETE_LEASES}},
    },
    "everything": {
        "my-operator": {
            "everywhere": {**OF_POOLS, "secrets my-keys": "get", "nodes": "list", "namespaces": "get"},
            NAMESPACE: OF_LEASES,
        },
        "fleet-usher-signaling": {NAMESPACE: OF_SIGNALING},
        "fleet-usher-uninstall": {"everywhere": DELETE_POOLS, NAMESPACE: {**OF_UNINSTALL, **DELETE_LEASES}},
    },
    "namespaced": {
        "fleet-usher-operator": {"voice": OF_POOLS, "calls": OF_POOLS, NAMESPACE: OF_LEASES, "shared": OF_LEASES},
        "fleet-usher-signaling": {"voice": OF_SIGNALING},
        "fleet-usher-uninstall": {
            "voice": DELETE_POOLS,
            "calls": DELETE_POOLS,
            NAMESPACE: OF_UNINSTALL,
            "shared": DELETE_LEASES,
        },
    },
    "minimal": {"fleet-usher-operator": {NAMESPACE: {**OF_POOLS, **OF_LEASES}}},
}
"""Per scenario: what a ServiceAccount may do, and where."""


def told(rule: Object) -> tuple[str, str]:
    (group,) = rule["apiGroups"]
    what = ", ".join(rule["resources"])
    named = f" {', '.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
    return (f"{group}: " if group else "") + what + named, " ".join(rule["verbs"])


def rights(scenario: str) -> dict[str, dict[str, dict[str, str]]]:
    found = objects(scenario)
    roles = {
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one["rules"]
        for one in found
        if one["kind"] in ("Role", "ClusterRole")
    }
    given: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for one in found:
        if one["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        namespace = one["metadata"].get("namespace")
        for subject in one["subjects"]:
            assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", NAMESPACE)
            for rule in roles[one["roleRef"]["kind"], namespace, one["roleRef"]["name"]]:
                what, verbs = told(rule)
                assert given[subject["name"]][namespace or "everywhere"].get(what, verbs) == verbs
                given[subject["name"]][namespace or "everywhere"][what] = verbs
    return {account: {**places} for account, places in given.items()}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_service_accounts_may_do_this_and_no_more(scenario: str) -> None:
    assert rights(scenario) == ALLOWED[scenario]


@pytest.mark.parametrize("scenario", sorted({*SCENARIOS} - {"everything"}))
def test_without_cluster_wide_nobody_writes_or_reads_a_secret_outside_the_named_namespaces(scenario: str) -> None:
    """What the operator may do, whoever holds it may do: with all namespaces that is the whole cluster."""
    for places in rights(scenario).values():
        assert set(places.get("everywhere", {}).values()) <= {"list", "get"}
        assert {what.partition(" ")[0] for what in places.get("everywhere", {})} <= {"nodes", "namespaces"}


def test_all_namespaces_and_named_ones_exclude_each_other() -> None:
    outcome = template("--set=operator.clusterWide=true", "--set=operator.watchNamespaces={voice}")
    assert outcome.returncode != 0
    assert "operator.clusterWide and operator.watchNamespaces exclude each other" in outcome.stderr


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_operator_the_uninstaller_and_the_monitor_look_after_the_same_namespaces(scenario: str) -> None:
    watched = {"defaults": [NAMESPACE], "minimal": [NAMESPACE], "namespaced": ["voice", "calls"], "everything": []}
    found = by_name(scenario)
    [operator] = found["Deployment/fleet-usher-operator"]["spec"]["template"]["spec"]["containers"]
    given = {each["name"]: each.get("value", "") for each in operator["env"]}.get("USHER_NAMESPACES", "")
    assert given.split(",") == (watched[scenario] or [""])
    if job := found.get("Job/fleet-usher-uninstall"):
        [container] = job["spec"]["template"]["spec"]["containers"]
        told = [each.partition("=")[2] for each in container["args"] if each.startswith("--namespace=")]
        assert told == watched[scenario]
    monitor = by_name(scenario, "--set=metrics.renderMode=Always", "--set=metrics.podMonitor.enabled=true")
    selector = monitor["PodMonitor/fleet-usher-pools"]["spec"]["namespaceSelector"]
    assert selector == ({"matchNames": watched[scenario]} if watched[scenario] else {"any": True})


@pytest.mark.parametrize("scenario", ["namespaced"])
def test_with_namespaces_nothing_of_the_cluster_is_made(scenario: str) -> None:
    of_cluster = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace"}
    assert {one["kind"] for one in objects(scenario)} & of_cluster == set()


def test_the_operator_may_get_whatever_its_client_knows() -> None:
    may = {**OF_POOLS, **OF_LEASES, "nodes": "list", "namespaces": "get"}
    known = {plural for (_, _), plural in kube._PLURALS.items()}
    named = {plural.strip() for what in may for plural in what.rpartition(": ")[2].split(" usher-")[0].split(",")}
    assert known <= named


def test_people_get_pools_with_the_roles_of_the_cluster() -> None:
    aggregated: dict[str, list[Any]] = {}
    for one in objects("defaults"):
        for label in one["metadata"].get("labels", {}):
            if label.startswith("rbac.authorization.k8s.io/aggregate-to-"):
                aggregated[label.rpartition("-")[2]] = [told(rule) for rule in one["rules"]]
    assert set(aggregated) == {"view", "edit", "admin"}
    assert aggregated["view"] == [
        (f"usher.fleet: {POOLS}, relaypools/status, transceiverpools/status", "get list watch")
    ]
    assert aggregated["edit"] == aggregated["admin"]
    assert not any("status" in what for what, _ in aggregated["edit"])
    assert names.GROUP == "usher.fleet"
