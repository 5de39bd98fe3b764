"""A TransceiverPool's children: what they hold, and that Pod Security `restricted` admits them."""

import json
from typing import Any

import pytest

from tests.transceiver_pools import CLUSTER, DEFAULTS, make_pool
from usher_operator.names import POD_ID_GATE, POD_ID_LABEL, POOL_LABEL, REVISION_LABEL, STATE_LABEL
from usher_operator.render.revision import is_current
from usher_operator.render.transceiver import transceiver_children, transceiver_deployment
from usher_transceiver.settings import TransceiverSettings


def pod_of(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    template: dict[str, Any] = transceiver_deployment(make_pool(spec), CLUSTER, DEFAULTS)["spec"]["template"]
    return template


def container_of(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = pod_of(spec)["spec"]["containers"][0]
    return found


def child(kind: str, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    return next(found for found in transceiver_children(make_pool(spec)) if found["kind"] == kind)


def complaints(pod: dict[str, Any]) -> list[str]:
    """Return what Pod Security `restricted` (Kubernetes 1.32) would refuse of a pod's spec."""
    wrong = []
    outer = pod.get("securityContext", {})
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        inner = container.get("securityContext", {})
        name = container["name"]
        if inner.get("allowPrivilegeEscalation") is not False:
            wrong.append(f"{name}: allowPrivilegeEscalation")
        if inner.get("capabilities", {}).get("drop") != ["ALL"] or inner["capabilities"].get("add"):
            wrong.append(f"{name}: capabilities")
        if not inner.get("runAsNonRoot", outer.get("runAsNonRoot")):
            wrong.append(f"{name}: runAsNonRoot")
        if inner.get("runAsUser", outer.get("runAsUser")) == 0:
            wrong.append(f"{name}: runAsUser")
        seccomp = inner.get("seccompProfile", outer.get("seccompProfile", {}))
        if seccomp.get("type") not in ("RuntimeDefault", "Localhost"):
            wrong.append(f"{name}: seccompProfile")
        if any(port.get("hostPort") for port in container.get("ports", [])):
            wrong.append(f"{name}: hostPort")
    wrong += [field for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field)]
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
    wrong += [f"volume {volume['name']}" for volume in pod["volumes"] if not set(volume) - {"name"} <= allowed]
    return wrong


FULL: dict[str, Any] = {
    "backend": {"type": "parrot", "config": {"pause": 2}},
    "region": "eu-west",
    "imagePullSecrets": [{"name": "registry"}],
    "podTemplate": {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["model"]}]}},
}

REALTIME: dict[str, Any] = {
    "type": "realtime",
    "realtime": {
        "url": "wss://[2001:db8::7]:8443/v1/realtime?a=b",
        "model": "ft:gpt-4o:acme::7p4l",
        "apiKeySecretRef": {"name": "upstream", "key": "api-key"},
        "headersSecretRef": {"name": "upstream", "key": "headers"},
    },
}


@pytest.mark.parametrize("spec", [{}, FULL, {"backend": REALTIME}], ids=["defaults", "everything set", "realtime"])
def test_pod_security_restricted_admits_the_pods(spec: dict[str, Any]) -> None:
    assert complaints(pod_of(spec)["spec"]) == []


def test_a_pod_waits_for_its_id_and_reads_it_from_its_label() -> None:
    pod = pod_of()
    assert pod["spec"]["schedulingGates"] == [{"name": POD_ID_GATE}]
    assert POD_ID_LABEL not in pod["metadata"]["labels"]
    variables = {variable["name"]: variable for variable in container_of()["env"]}
    path = variables["USHER_POD"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['usher.fleet/pod-id']"


def test_the_transceiver_understands_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {**FULL, "drain": {"gracePeriod": "90s"}, "maxSessionAge": "1h30m", "idleTimeout": "5m"}
    for variable in container_of(spec)["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "17"))
    settings = TransceiverSettings(_cli_parse_args=[])
    assert (settings.cluster, settings.pod, settings.backend) == (CLUSTER, 17, "parrot")
    assert (settings.drain_deadline, settings.session_max_age, settings.idle_timeout) == (90, 5400, 300)
    assert (settings.udp, settings.http) == ("0.0.0.0:7200", "0.0.0.0:7280")


@pytest.mark.parametrize("backend", [FULL["backend"], REALTIME])
def test_all_variables_are_settings_of_the_transceiver(backend: dict[str, Any]) -> None:
    known = {f"USHER_{name.upper()}" for name in TransceiverSettings.model_fields}
    assert {variable["name"] for variable in container_of({**FULL, "backend": backend})["env"]} <= known


@pytest.mark.parametrize("truncate", ["Usher", "Upstream"])
def test_the_transceiver_understands_its_upstream(monkeypatch: pytest.MonkeyPatch, truncate: str) -> None:
    spec = {"backend": {"type": "realtime", "realtime": {**REALTIME["realtime"], "truncate": truncate}}}
    for variable in container_of(spec)["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "17"))
    settings = TransceiverSettings(_cli_parse_args=[])
    assert (settings.backend, settings.realtime_url) == ("realtime", "wss://[2001:db8::7]:8443/v1/realtime?a=b")
    assert (settings.realtime_model, settings.realtime_truncate) == ("ft:gpt-4o:acme::7p4l", truncate.lower())
    files = {mount["mountPath"] for mount in container_of(spec)["volumeMounts"]}
    assert {str(settings.realtime_api_key_file.parent), str(settings.realtime_headers_file.parent)} <= files  # type: ignore[union-attr]


def test_the_pod_outlives_the_drain_deadline() -> None:
    pod = pod_of({"drain": {"gracePeriod": "10m"}})
    assert pod["spec"]["terminationGracePeriodSeconds"] == 610


def test_keys_and_token_come_from_the_named_secrets_as_directories() -> None:
    pod = pod_of({"keys": {"secretRef": {"name": "mine"}}, "internalTokenSecretRef": {"name": "my-token"}})
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["spec"]["volumes"]}
    assert secrets == {"keys": "mine", "token": "my-token"}
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    assert all(mount["readOnly"] and "subPath" not in mount for mount in mounts)


def test_no_pod_gets_a_token_of_the_api_server() -> None:
    assert pod_of()["spec"]["automountServiceAccountToken"] is False
    assert child("ServiceAccount")["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    "labels",
    [{POD_ID_LABEL: "5"}, {POOL_LABEL: "other"}, {STATE_LABEL: "draining"}, {REVISION_LABEL: "x"}],
    ids=lambda labels: next(iter(labels)),
)
def test_a_pod_template_can_not_change_labels_that_routes_rely_on(labels: dict[str, str]) -> None:
    changed = pod_of({"podTemplate": {"metadata": {"labels": {**labels, "team": "a"}}}})["metadata"]["labels"]
    plain = pod_of()["metadata"]["labels"]
    assert changed.pop("team") == "a"
    assert {**changed, REVISION_LABEL: ""} == {**plain, REVISION_LABEL: ""}
    assert changed[REVISION_LABEL] != "x"


def test_a_pod_template_adds_containers_volumes_and_variables() -> None:
    extra = {
        "spec": {
            "containers": [
                {"name": "transceiver", "env": [{"name": "MODEL_URL", "value": "wss://model"}]},
                {"name": "side", "image": "side:1"},
            ],
            "schedulingGates": [{"name": "example.test/quota"}],
        }
    }
    pod = pod_of({"podTemplate": extra})["spec"]
    ours, side = pod["containers"]
    names = {variable["name"] for variable in ours["env"]}
    assert {"MODEL_URL", "USHER_POD", "USHER_CLUSTER"} <= names
    assert ours["image"] == DEFAULTS.transceiver_image
    assert side == {"name": "side", "image": "side:1"}
    assert [gate["name"] for gate in pod["schedulingGates"]] == [POD_ID_GATE, "example.test/quota"]


def test_the_backend_configuration_is_a_config_map_and_a_change_is_a_rollout() -> None:
    config_map = child("ConfigMap", FULL)
    assert json.loads(config_map["data"]["config.json"]) == {"pause": 2}
    other = {**FULL, "backend": {"type": "parrot", "config": {"pause": 3}}}
    assert pod_of(FULL)["metadata"] != pod_of(other)["metadata"]


def test_the_disruption_budget_never_protects_pods_that_are_not_ready() -> None:
    budget = child("PodDisruptionBudget")["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["maxUnavailable"] == 1
    assert child("PodDisruptionBudget", {"disruption": {"minAvailable": "50%"}})["spec"]["minAvailable"] == "50%"


def test_scaling_is_no_rollout_and_a_new_image_is_one() -> None:
    def revisions(spec: dict[str, Any]) -> tuple[str, str]:
        deployment = transceiver_deployment(make_pool(spec), CLUSTER, DEFAULTS)
        template = deployment["spec"]["template"]
        return deployment["metadata"]["labels"][REVISION_LABEL], template["metadata"]["labels"][REVISION_LABEL]

    assert revisions({"replicas": 1}) == revisions({"replicas": 9})
    assert revisions({"image": "a:1"})[1] != revisions({"image": "a:2"})[1]
    surge = {"strategy": {"maxSurge": 1, "maxUnavailable": 0}}
    assert revisions({})[0] != revisions(surge)[0]
    assert revisions({})[1] == revisions(surge)[1]


def test_the_selector_of_the_deployment_holds_only_what_never_changes() -> None:
    deployment = transceiver_deployment(make_pool(), CLUSTER, DEFAULTS)["spec"]
    selector = deployment["selector"]["matchLabels"]
    assert set(selector) == {"app.kubernetes.io/name", "app.kubernetes.io/component", POOL_LABEL}
    assert selector.items() <= deployment["template"]["metadata"]["labels"].items()


def test_a_child_is_current_only_with_our_revision() -> None:
    service = child("Service")
    assert is_current(service, service)
    assert not is_current(service, None)
    assert not is_current(service, {"metadata": {}})
    assert not is_current(child("Service", {"media": {"httpPort": 7000}}), service)
