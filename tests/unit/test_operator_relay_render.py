"""The children of a RelayPool, as the API server gets them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator_relays import DEFAULTS, relay_pool
from usher_operator import names
from usher_operator.render.relay import pods_selector, relay_children, relay_workload
from usher_relay.settings import RelaySettings

DaemonSet: dict[str, Any] = {"workload": "DaemonSet"}


def workload(**spec: Any) -> Any:
    return relay_workload(relay_pool(**spec), DEFAULTS)


def container(**spec: Any) -> Any:
    return workload(**spec)["spec"]["template"]["spec"]["containers"][0]


def env(**spec: Any) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(**spec)["env"]}


def child(kind: str, **spec: Any) -> Any:
    (found,) = (each for each in relay_children(relay_pool(**spec)) if each["kind"] == kind)
    return found


def test_every_child_is_owned_named_and_labelled() -> None:
    for each in [*relay_children(relay_pool()), workload()]:
        metadata = each["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == ("RelayPool", True, True)
        assert metadata["name"] == "edge-relay"
        assert names.child_labels("relay", "edge").items() <= metadata["labels"].items()


def test_what_the_relay_is_told_is_what_its_settings_take(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = [{"name": "media", "id": 1, "port": 3478}, {"name": "tls", "id": 7, "port": 443}]
    told = env(
        listeners=listeners,
        datapath={"engine": "Native", "maxFlows": 5000, "hopMTU": 1400},
        drain={"gracePeriod": "2m"},
    )
    fields = {name.removeprefix("USHER_").lower() for name in told}
    assert fields <= set(RelaySettings.model_fields)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    settings = RelaySettings()
    assert [(each.id, each.port) for each in settings.listeners] == [(1, 3478), (7, 443)]
    assert (settings.engine, settings.max_flows, settings.hop_mtu, settings.grace) == ("native", 5000, 1400, 120)
    assert settings.admin == "0.0.0.0:9478"
    assert (settings.pods_namespace, settings.routes_file) == (("calls",), None)
    assert settings.pods_selector == told["USHER_PODS_SELECTOR"]


def test_pods_watch_their_own_namespace_or_those_that_are_named() -> None:
    assert env()["USHER_PODS_NAMESPACE"] == "calls"
    assert env(transceivers={"namespaces": ["a", "b"]})["USHER_PODS_NAMESPACE"] == "a,b"


def test_a_label_selector_becomes_the_text_of_a_request() -> None:
    base = "app.kubernetes.io/name=usher,app.kubernetes.io/component=transceiver,usher.fleet/pod-id"
    assert pods_selector({}) == base
    selector = {
        "matchLabels": {"b": "2", "a": "1"},
        "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["x", "y"]},
            {"key": "d", "operator": "NotIn", "values": ["z"]},
            {"key": "e", "operator": "Exists"},
            {"key": "f", "operator": "DoesNotExist"},
        ],
    }
    assert pods_selector(selector) == base + ",a=1,b=2,c in (x,y),d notin (z),e,!f"


def test_relays_may_watch_pods_and_nothing_else() -> None:
    (rule,) = child("Role")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    binding = child("RoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "edge-relay", "namespace": "calls"}]
    spec = workload()["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "edge-relay"
    assert spec["automountServiceAccountToken"] is True


def test_readiness_is_looked_at_every_second_and_one_failure_is_enough() -> None:
    probe = container()["readinessProbe"]
    assert (probe["periodSeconds"], probe["failureThreshold"], probe["httpGet"]["path"]) == (1, 1, "/readyz")
    assert workload(drain={"gracePeriod": "5m"})["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 300


def test_a_relay_that_starts_is_not_asked_before_it_can_answer_and_has_a_minute() -> None:
    probe = container()["startupProbe"]
    assert (probe["initialDelaySeconds"], probe["periodSeconds"], probe["failureThreshold"]) == (2, 1, 60)


def test_a_relay_under_load_has_time_to_answer_its_probes() -> None:
    probes = [container()[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
    assert [probe["timeoutSeconds"] for probe in probes] == [5, 5, 5]


def test_keys_are_a_directory_so_that_they_change_while_it_runs() -> None:
    spec = workload()["spec"]["template"]["spec"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert (mount["mountPath"], mount["readOnly"], "subPath" in mount) == ("/etc/usher/keys", True, False)
    assert spec["volumes"][0]["secret"]["secretName"] == names.RELAY_KEYS_SECRET
    spec = workload(keys={"secretRef": {"name": "mine"}})["spec"]["template"]["spec"]
    assert spec["volumes"][0]["secret"]["secretName"] == "mine"


def test_only_host_port_binds_ports_of_the_node() -> None:
    ports = container(exposure={"type": "HostPort"})["ports"]
    assert [port.get("hostPort") for port in ports] == [3478, None]
    for kind in ("LoadBalancer", "NodePort", "ClusterIP"):
        assert not any("hostPort" in port for port in container(exposure={"type": kind})["ports"])


def test_a_low_port_is_bound_without_privileges_and_what_people_set_comes_last() -> None:
    listeners = [{"port": 443}]
    spec = workload(listeners=listeners)["spec"]["template"]["spec"]
    assert spec["securityContext"]["sysctls"] == [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert "sysctls" not in workload()["spec"]["template"]["spec"]["securityContext"]
    extra = {"metadata": {"annotations": {"mine": "1"}}, "spec": {"hostNetwork": True}}
    template = workload(listeners=listeners, podTemplate=extra)["spec"]["template"]
    assert template["metadata"]["annotations"]["mine"] == "1"
    assert template["spec"]["hostNetwork"] is True
    assert template["spec"]["securityContext"]["sysctls"]


@pytest.mark.parametrize(
    "spec", [{"exposure": {"type": "HostPort"}}, DaemonSet, {"workload": "DaemonSet", "exposure": {"type": "HostPort"}}]
)
def test_where_a_node_has_one_relay_the_old_one_goes_first(spec: Any) -> None:
    found = workload(**spec)["spec"]
    rollout = found.get("strategy") or found["updateStrategy"]
    assert rollout["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_elsewhere_a_new_relay_comes_first() -> None:
    assert workload()["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_daemon_set_has_no_replicas_and_is_not_spread() -> None:
    found = workload(**DaemonSet)
    assert found["kind"] == "DaemonSet"
    assert "replicas" not in found["spec"]
    assert "topologySpreadConstraints" not in found["spec"]["template"]["spec"]
    assert len(workload()["spec"]["template"]["spec"]["topologySpreadConstraints"]) == 2


def test_only_a_deployment_has_a_disruption_budget() -> None:
    assert child("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    kinds = [each["kind"] for each in relay_children(relay_pool(**DaemonSet))]
    assert sorted(kinds) == ["Role", "RoleBinding", "Service", "ServiceAccount"]


@pytest.mark.parametrize("kind", ["LoadBalancer", "NodePort"])
def test_a_service_keeps_the_addresses_of_clients(kind: str) -> None:
    spec = child("Service", exposure={"type": kind, "nodePort": 30478})["spec"]
    assert (spec["type"], spec["externalTrafficPolicy"]) == (kind, "Local")
    (port,) = spec["ports"]
    assert port == {"name": "media", "port": 3478, "targetPort": "media", "protocol": "UDP", "nodePort": 30478}


@pytest.mark.parametrize("kind", ["HostPort", "ClusterIP"])
def test_inside_the_cluster_the_service_has_none_of_the_fields_of_outside(kind: str) -> None:
    spec = child("Service", exposure={"type": kind})["spec"]
    assert spec["type"] == "ClusterIP"
    assert set(spec) == {"type", "selector", "ports"}


def test_a_load_balancer_gets_class_and_annotations() -> None:
    exposure = {"loadBalancerClass": "example.com/nlb", "annotations": {"cloud/scheme": "internet"}}
    service = child("Service", exposure=exposure)
    assert service["spec"]["loadBalancerClass"] == "example.com/nlb"
    assert service["metadata"]["annotations"] == {"cloud/scheme": "internet"}


def test_a_change_of_replicas_is_no_new_template() -> None:
    label = ("spec", "template", "metadata", "labels", names.REVISION_LABEL)

    def revision(**spec: Any) -> Any:
        found = workload(**spec)
        for part in label:
            found = found[part]
        return found

    assert revision(replicas=2) == revision(replicas=5) != revision(image="other")
