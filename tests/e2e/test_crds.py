"""RelayPool and TransceiverPool on a real API server: what it refuses and says, its defaults, scale, columns, explain.

No operator runs here. The CRDs stay: they belong to the whole cluster, and other tests use them.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.pages import ROOT
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes")]

Spec = dict[str, Any]

RELAYS = "RelayPool"
TRANSCEIVERS = "TransceiverPool"


def kubectl(*arguments: str, given: str = "", fails: bool = False) -> str:
    """Run kubectl; return what it prints, or what it complains of where it has to fail."""
    command = ["kubectl", "--request-timeout=20s", *arguments]
    ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode != 0) == fails, f"{' '.join(arguments)}\n{ended.stdout}{ended.stderr}"
    return ended.stderr if fails else ended.stdout


class Namespace:
    """A namespace of one test module, and kubectl within it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *arguments: str, given: str = "", fails: bool = False) -> str:
        return kubectl("--namespace", self.name, *arguments, given=given, fails=fails)

    def get(self, what: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", what, "--output=json"))
        return found


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={ROOT / 'crds'}")
    kubectl("wait", "--for=condition=Established", "--timeout=30s", f"--filename={ROOT / 'crds'}")
    name = f"usher-crds-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield Namespace(name)
    kubectl("delete", "namespace", name, "--wait=false")


def pool(kind: str, spec: Spec, name: str = "pool") -> str:
    metadata = {"name": name}
    return json.dumps({"apiVersion": "usher.fleet/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})


def listeners(*ports: Spec) -> Spec:
    return {"listeners": list(ports)}


def advertised(*addresses: str) -> Spec:
    return {"exposure": {"advertisedAddresses": list(addresses)}}


def selector(value: Spec) -> Spec:
    return {"transceivers": {"selector": value}}


def expression(**fields: Any) -> Spec:
    return selector({"matchExpressions": [fields]})


def upstream(**fields: Any) -> Spec:
    return {"backend": {"type": "realtime", "realtime": fields}}


def peers(*addresses: str, cluster: int = 1, **more: Any) -> Spec:
    return {"peers": [{"clusterID": cluster, "endpoints": [{"address": each} for each in addresses], **more}]}


def neighbours(*clusters: int) -> Spec:
    return {"trunk": {"neighbours": [{"clusterID": each} for each in clusters]}}


def node_ports(clients: int, trunk: int) -> Spec:
    return {"exposure": {"nodePort": clients}, "trunk": {"exposure": {"nodePort": trunk}}}


ENDPOINT = "write IP:PORT or NAME:PORT of the peer's trunk"
WEBSOCKET = "write a URL that begins with ws:// or wss://, without user, password, # or blanks"
ADDRESS = "write an IP or a host name, with :PORT if it is not the listener's"
REPLACE = "maxSurge and maxUnavailable can't both be 0: no pod could ever be replaced"
PODS = "write a number of pods, 0 or more, or a percentage from 0% to 100%, such as 25%"
PORT_NAME = "write a port name: lower-case letters, digits and single hyphens, beginning with a letter"
FREE_THE_PORT = "with exposure.type HostPort an old relay has to free the port first"

INVALID: list[tuple[str, Spec, str]] = [
    (RELAYS, {"replicas": -1}, "spec.replicas in body should be greater than or equal to 0"),
    (RELAYS, {"replicas": 1001}, "spec.replicas in body should be less than or equal to 1000"),
    (RELAYS, {"workload": "StatefulSet"}, 'supported values: "Deployment", "DaemonSet"'),
    (RELAYS, {"image": "https://example.com/relay"}, "no https:// or blanks"),
    (RELAYS, {"image": "usher relay:1"}, "no https:// or blanks"),
    (RELAYS, {"imagePullPolicy": "Sometimes"}, 'supported values: "Always", "IfNotPresent", "Never"'),
    (RELAYS, {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}, 'Duplicate value: {"name":"a"}'),
    (RELAYS, {"region": "eu west"}, "letters, digits and . _ - between them, such as eu-west"),
    (RELAYS, {"region": "-eu"}, "such as eu-west"),
    (RELAYS, listeners(), "spec.listeners in body should have at least 1 items"),
    (RELAYS, listeners(*[{"name": f"p{n}", "id": n, "port": n} for n in range(1, 10)]), "must have at most 8 items"),
    (RELAYS, listeners({"port": 0}), "port in body should be greater than or equal to 1"),
    (RELAYS, listeners({"port": 65536}), "port in body should be less than or equal to 65535"),
    (RELAYS, listeners({"id": 65536}), "id in body should be less than or equal to 65535"),
    (RELAYS, listeners({"name": "a", "id": 1}, {"name": "b", "id": 2}), "each listener needs a port of its own"),
    (RELAYS, listeners({"name": "a"}, {"name": "b", "port": 443}), "each listener needs an id of its own"),
    (RELAYS, listeners({"name": "a"}, {"name": "a", "port": 443}), 'Duplicate value: {"name":"a"}'),
    (RELAYS, listeners({"name": "Media"}), PORT_NAME),
    (RELAYS, listeners({"name": "a--b"}), PORT_NAME),
    (RELAYS, listeners({"name": "3478"}), PORT_NAME),
    (RELAYS, listeners({"name": "admin"}), "admin and trunk are taken"),
    (RELAYS, listeners({"name": "trunk"}), "admin and trunk are taken"),
    (RELAYS, listeners({"name": "more-than-15-letters"}), "may not be more than 15"),
    (RELAYS, listeners({"protocol": "TCP"}), 'supported values: "UDP"'),
    (
        RELAYS,
        {"exposure": {"type": "Ingress"}},
        'supported values: "LoadBalancer", "NodePort", "HostPort", "ClusterIP"',
    ),
    (RELAYS, {"exposure": {"type": "HostPort", "nodePort": 30000}}, "only with type NodePort or LoadBalancer"),
    (RELAYS, {"exposure": {"type": "ClusterIP", "nodePort": 30000}}, "only with type NodePort or LoadBalancer"),
    (RELAYS, {"exposure": {"type": "NodePort", "loadBalancerClass": "a"}}, "only with type LoadBalancer: leave it out"),
    (RELAYS, {"exposure": {"externalTrafficPolicy": "None"}}, 'supported values: "Local", "Cluster"'),
    (RELAYS, advertised("203.0.113.256"), ADDRESS),
    (RELAYS, advertised("203.0.113.7:0"), ADDRESS),
    (RELAYS, advertised("203.0.113.7:65536"), ADDRESS),
    (RELAYS, advertised("[2001:db8::g]:3478"), ADDRESS),
    (RELAYS, advertised("[2001:db8::7"), ADDRESS),
    (RELAYS, advertised("media_1.example.com"), ADDRESS),
    (RELAYS, advertised("udp://media.example.com"), ADDRESS),
    (RELAYS, advertised(""), "at least 1 chars long"),
    (RELAYS, advertised("0.0.0.0"), "no addresses that clients can reach"),
    (RELAYS, advertised("[::]:3478"), "no addresses that clients can reach"),
    (RELAYS, advertised("203.0.113.7", "203.0.113.7"), 'Duplicate value: "203.0.113.7"'),
    (RELAYS, peers("198.51.100.7"), ENDPOINT),
    (RELAYS, peers("2001:db8::7"), ENDPOINT),
    (RELAYS, peers("relays.example.com:0"), ENDPOINT),
    (RELAYS, peers("udp://relays.example.com:3479"), ENDPOINT),
    (RELAYS, peers("0.0.0.0:3479"), "no addresses that relays can reach"),
    (RELAYS, peers("a:1", "a:1"), 'Duplicate value: {"address":"a:1"}'),
    (RELAYS, peers(), "should have at least 1 items"),
    (RELAYS, peers("a:1", cluster=0), "clusterID in body should be greater than or equal to 1"),
    (RELAYS, peers("a:1", keySecretRef={}), "keySecretRef.name: Required value"),
    (RELAYS, {"peers": 2 * peers("a:1")["peers"]}, 'Duplicate value: {"clusterID":1}'),
    (RELAYS, neighbours(9, 9), 'Duplicate value: {"clusterID":9}'),
    (RELAYS, neighbours(65536), "clusterID in body should be less than or equal to 65535"),
    (RELAYS, {"trunk": {"sourceRanges": ["203.0.113.7"]}}, "write a range of addresses, such as 203.0.113.0/24"),
    (
        RELAYS,
        {"trunk": {"sourceRanges": ["203.0.113.0/24"], "exposure": {"type": "NodePort"}}},
        "sourceRanges has a meaning only with exposure.type LoadBalancer",
    ),
    (RELAYS, {"trunk": {"exposure": {"type": "ClusterIP", "nodePort": 1}}}, "only with type NodePort or LoadBalancer"),
    (RELAYS, {"trunk": {"port": 3478}, **listeners({"name": "media"})}, "choose another one than those of listeners"),
    (RELAYS, {"trunk": {"port": 3478}}, "choose another one than those of listeners"),
    (RELAYS, node_ports(30478, 30478), "choose another one than that of exposure"),
    (
        RELAYS,
        {"trunk": {"exposure": {"type": "HostPort"}}, "strategy": {"maxSurge": 1, "maxUnavailable": 0}},
        FREE_THE_PORT,
    ),
    (RELAYS, selector({"app": "voice"}), 'unknown field "spec.transceivers.selector.app"'),
    (RELAYS, expression(key="a", operator="Equals"), 'supported values: "In", "NotIn", "Exists", "DoesNotExist"'),
    (RELAYS, expression(key="a", operator="In"), "In and NotIn need values"),
    (RELAYS, expression(key="a", operator="Exists", values=["b"]), "Exists and DoesNotExist take none"),
    (RELAYS, expression(operator="Exists"), "matchExpressions[0].key: Required value"),
    (RELAYS, {"transceivers": {"namespaces": ["Voice"]}}, "write the name of a namespace"),
    (RELAYS, {"datapath": {"engine": "Rust"}}, 'supported values: "Auto", "Native", "Python"'),
    (RELAYS, {"datapath": {"maxFlows": 0}}, "maxFlows in body should be greater than or equal to 10"),
    (RELAYS, {"datapath": {"hopMTU": 576}}, "no link carries less than 1280 bytes"),
    (RELAYS, {"redis": {}}, "spec.redis.urlSecretRef: Required value"),
    (RELAYS, {"redis": {"url": "redis://a"}}, 'unknown field "spec.redis.url"'),
    (RELAYS, {"redis": {"urlSecretRef": {"name": "a", "key": ""}}}, "at least 1 chars long"),
    (RELAYS, {"redis": {"urlSecretRef": {"name": "a", "key": "a b"}}}, "write a key as a Secret may have it"),
    (RELAYS, {"drain": {"gracePeriod": "29s"}}, "write a duration from 30s to 24h"),
    (RELAYS, {"strategy": {"maxSurge": 0, "maxUnavailable": 0}}, REPLACE),
    (RELAYS, {"strategy": {"maxSurge": "0%", "maxUnavailable": 0}}, REPLACE),
    (RELAYS, {"strategy": {"maxSurge": 1}}, "spec.strategy.maxUnavailable: Required value"),
    (
        RELAYS,
        {"exposure": {"type": "HostPort"}, "strategy": {"maxSurge": 1, "maxUnavailable": 1}},
        FREE_THE_PORT,
    ),
    (
        RELAYS,
        {"exposure": {"type": "HostPort"}, "strategy": {"maxSurge": "25%", "maxUnavailable": 0}},
        FREE_THE_PORT,
    ),
    (RELAYS, {"podTemplate": {"containers": []}}, 'unknown field "spec.podTemplate.containers"'),
    (TRANSCEIVERS, {"replicas": 10_001}, "spec.replicas in body should be less than or equal to 10000"),
    (TRANSCEIVERS, {"replicas": 1.5}, "spec.replicas in body must be of type integer"),
    (TRANSCEIVERS, {"replica": 1}, 'unknown field "spec.replica"'),
    (TRANSCEIVERS, {"clusterID": 0}, "spec.clusterID in body should be greater than or equal to 1"),
    (TRANSCEIVERS, {"clusterID": 65536}, "spec.clusterID in body should be less than or equal to 65535"),
    (TRANSCEIVERS, {"media": {"port": 80}}, "spec.media.port in body should be greater than or equal to 1024"),
    (TRANSCEIVERS, {"media": {"port": 7280}}, "port and httpPort must differ"),
    (TRANSCEIVERS, {"capacity": {"maxSessionsPerPod": 0}}, "should be greater than or equal to 1"),
    (TRANSCEIVERS, {"backend": {"type": "my backend"}}, "write echo, parrot, realtime, or the name of an entry point"),
    (TRANSCEIVERS, {"backend": {"type": "realtime"}}, "type realtime needs the field realtime"),
    (TRANSCEIVERS, {"backend": {"realtime": {"url": "ws://a"}}}, "the field realtime has a meaning only with type"),
    (TRANSCEIVERS, upstream(), "spec.backend.realtime.url: Required value"),
    (TRANSCEIVERS, upstream(url="https://a"), WEBSOCKET),
    (TRANSCEIVERS, upstream(url="wss://user:password@a"), WEBSOCKET),
    (TRANSCEIVERS, upstream(url="wss://a/ b"), WEBSOCKET),
    (TRANSCEIVERS, upstream(url=f"wss://{'a' * 1024}"), "may not be more than 1024"),
    (TRANSCEIVERS, upstream(url="ws://a", model="a b"), "write a model as letters, digits and"),
    (TRANSCEIVERS, upstream(url="ws://a", truncate="usher"), 'supported values: "Usher", "Upstream"'),
    (TRANSCEIVERS, upstream(url="ws://a", apiKeySecretRef={"name": "a"}), "apiKeySecretRef.key: Required value"),
    (TRANSCEIVERS, upstream(url="ws://a", headersSecretRef={"name": "a", "key": "a/b"}), "write a key as a Secret may"),
    (TRANSCEIVERS, {"drain": {"gracePeriod": "25h"}}, "write a duration from 0s to 24h, as 90s, 5m or 1h30m"),
    (TRANSCEIVERS, {"drain": {"gracePeriod": 60}}, "gracePeriod in body must be of type string"),
    (TRANSCEIVERS, {"drain": {"gracePeriod": "60"}}, "write a duration from 0s to 24h"),
    (TRANSCEIVERS, {"drain": {"gracePeriod": ""}}, "write a duration from 0s to 24h"),
    (TRANSCEIVERS, {"drain": {"gracePeriod": "999999h999999m"}}, "write a duration from 0s to 24h"),
    (TRANSCEIVERS, {"maxSessionAge": "59s"}, "write a duration from 1m to 168h"),
    (TRANSCEIVERS, {"maxSessionAge": "7d"}, "write a duration from 1m to 168h"),
    (TRANSCEIVERS, {"idleTimeout": "-1s"}, "write a duration from 0s to 24h"),
    (TRANSCEIVERS, {"keys": {"secretRef": {}}}, "spec.keys.secretRef.name: Required value"),
    (TRANSCEIVERS, {"internalTokenSecretRef": {"name": ""}}, "at least 1 chars long"),
    (TRANSCEIVERS, {"strategy": {"maxSurge": "25", "maxUnavailable": 0}}, PODS),
    (TRANSCEIVERS, {"strategy": {"maxSurge": 1, "maxUnavailable": "101%"}}, PODS),
    (TRANSCEIVERS, {"strategy": {"maxSurge": -1, "maxUnavailable": 1}}, PODS),
    (TRANSCEIVERS, {"disruption": {}}, "set exactly one of minAvailable and maxUnavailable"),
    (TRANSCEIVERS, {"disruption": {"minAvailable": 1, "maxUnavailable": 1}}, "set exactly one of"),
    (TRANSCEIVERS, {"disruption": {"minAvailable": "half"}}, PODS),
    (TRANSCEIVERS, {"resources": {"requests": {"cpu": "one"}}}, "write an amount such as 500m or 256Mi"),
    (TRANSCEIVERS, {"resources": {"requests": {"cpu": "-1"}}}, "write an amount such as 500m or 256Mi"),
    (
        TRANSCEIVERS,
        {"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "256Mi"}}},
        "a request may not be greater than its limit",
    ),
    (TRANSCEIVERS, {"placement": {"tolerations": [{}] * 33}}, "must have at most 32 items"),
]

VALID: list[tuple[str, Spec]] = [
    (RELAYS, {}),
    (RELAYS, {"replicas": 0, "paused": True, "region": "eu-west", "image": "localhost:5000/usher/relay@sha256:0a"}),
    (RELAYS, listeners({"id": 7}, {"name": "web-443", "id": 0, "port": 443})),
    (RELAYS, {"exposure": {"type": "HostPort"}}),
    (RELAYS, {"exposure": {"type": "HostPort"}, "strategy": {"maxSurge": 0, "maxUnavailable": "50%"}}),
    (RELAYS, {"exposure": {"type": "NodePort", "nodePort": 30478}, "workload": "DaemonSet", "replicas": 5}),
    (RELAYS, {"exposure": {"loadBalancerClass": "example.com/nlb", "annotations": {"example.com/a": "b"}}}),
    (RELAYS, advertised("203.0.113.7", "203.0.113.7:443", "2001:db8::7", "[2001:db8::7]", "[2001:db8::7]:65535")),
    (RELAYS, advertised("localhost", "127.0.0.1", "media.example.com", "3com.example:3478", "xn--bcher-kva.example")),
    (RELAYS, peers("198.51.100.7:3479", "[2001:db8::7]:3479", "relays.example.com:65535", "relays.usher.svc:1")),
    (RELAYS, peers("a:1", cluster=65535, keySecretRef={"name": "usher-trunk-1"})),
    (RELAYS, {"trunk": {}}),
    (RELAYS, {"trunk": {"port": 3478}, **listeners({"port": 443})}),
    (RELAYS, node_ports(30478, 30479)),
    (RELAYS, {"trunk": {"exposure": {"nodePort": 30478}}}),
    (RELAYS, {"trunk": {"port": 500, "sourceRanges": ["203.0.113.0/24", "2001:db8::/32"]}, **peers("a:1")}),
    (RELAYS, {**neighbours(1, 2), "exposure": {"type": "ClusterIP"}}),
    (RELAYS, selector({"matchLabels": {"usher.fleet/pool": "voice"}})),
    (RELAYS, expression(key="usher.fleet/pool", operator="In", values=["a", "b"])),
    (RELAYS, expression(key="usher.fleet/region", operator="DoesNotExist")),
    (RELAYS, {"transceivers": {"namespaces": ["voice", "voice-2"]}, "datapath": {"hopMTU": 1280}}),
    (RELAYS, {"drain": {"gracePeriod": "30s"}, "podTemplate": {"spec": {"hostNetwork": False, "containers": []}}}),
    (TRANSCEIVERS, {}),
    (TRANSCEIVERS, {"replicas": 10_000, "clusterID": 65535, "backend": {"type": "parrot", "config": {"a": [1, {}]}}}),
    (TRANSCEIVERS, upstream(url="wss://a.example:8443/v1/realtime?a=b", model="ft:gpt-4o:acme::7p4l")),
    (TRANSCEIVERS, upstream(url="ws://[2001:db8::7]", apiKeySecretRef={"name": "mine", "key": "api-key"})),
    (TRANSCEIVERS, {"drain": {"gracePeriod": "0s"}, "maxSessionAge": "1h30m", "idleTimeout": "24h"}),
    (TRANSCEIVERS, {"disruption": {"minAvailable": "50%"}, "strategy": {"maxSurge": 0, "maxUnavailable": 1}}),
    (TRANSCEIVERS, {"resources": {"requests": {"cpu": 1, "memory": "256Mi"}, "limits": {"memory": "1Gi"}}}),
    (TRANSCEIVERS, {"placement": {"nodeSelector": {"a": "b"}, "affinity": {"nodeAffinity": {}}, "tolerations": [{}]}}),
    (TRANSCEIVERS, {"keys": {"secretRef": {"name": "mine"}}, "internalTokenSecretRef": {"name": "mine"}}),
]


@pytest.mark.parametrize(("kind", "spec", "says"), INVALID)
def test_what_cannot_work_is_refused_in_words(namespace: Namespace, kind: str, spec: Spec, says: str) -> None:
    refused = namespace.kubectl("create", "--dry-run=server", "--filename=-", given=pool(kind, spec), fails=True)
    assert says in " ".join(refused.split()).replace('\\"', '"')
    assert "no such key" not in refused


@pytest.mark.parametrize(("kind", "spec"), VALID)
def test_what_can_work_is_taken(namespace: Namespace, kind: str, spec: Spec) -> None:
    namespace.kubectl("create", "--dry-run=server", "--filename=-", given=pool(kind, spec))


@pytest.mark.parametrize("kind", [RELAYS, TRANSCEIVERS])
@pytest.mark.parametrize("name", ["my.pool", "1st", "a" * 51])
def test_names_that_children_cannot_have_are_refused(namespace: Namespace, kind: str, name: str) -> None:
    given = pool(kind, {}, name)
    refused = namespace.kubectl("create", "--dry-run=server", "--filename=-", given=given, fails=True)
    assert "write at most 50 lower-case letters, digits and hyphens" in refused


def make(namespace: Namespace, kind: str, spec: Spec) -> str:
    """Make a pool; return how kubectl names it."""
    name = f"p{uuid.uuid4().hex[:8]}"
    namespace.kubectl("create", "--filename=-", given=pool(kind, spec, name))
    return f"{kind.lower()}/{name}"


def set_status(namespace: Namespace, what: str, status: Spec) -> None:
    namespace.kubectl(
        "patch", what, "--subresource=status", "--type=merge", f"--patch={json.dumps({'status': status})}"
    )


def patch(namespace: Namespace, what: str, spec: Spec, *, fails: bool = False) -> str:
    return namespace.kubectl("patch", what, "--type=merge", f"--patch={json.dumps({'spec': spec})}", fails=fails)


@pytest.mark.parametrize("value", [8, None])
def test_a_cluster_id_is_never_changed_nor_taken_away(namespace: Namespace, value: int | None) -> None:
    what = make(namespace, TRANSCEIVERS, {"clusterID": 7})
    refused = patch(namespace, what, {"clusterID": value}, fails=True)
    assert "clusterID can't be changed or taken away" in refused
    patch(namespace, what, {"replicas": 3})


def test_a_cluster_id_that_the_operator_gave_can_be_pinned_but_not_changed(namespace: Namespace) -> None:
    what = make(namespace, TRANSCEIVERS, {})
    set_status(namespace, what, {"clusterID": 300})
    assert "spec.clusterID can't differ from the one in use" in patch(namespace, what, {"clusterID": 7}, fails=True)
    patch(namespace, what, {"clusterID": 300})


@pytest.mark.parametrize("value", ["DaemonSet", None])
def test_the_workload_of_relays_is_not_changed(namespace: Namespace, value: str | None) -> None:
    begun = "Deployment" if value else "DaemonSet"
    what = make(namespace, RELAYS, {"workload": begun})
    assert "make a second pool, then delete this one" in patch(namespace, what, {"workload": value}, fails=True)


@pytest.mark.parametrize("model", [RelayPool, TransceiverPool])
def test_the_operator_reads_a_defaulted_pool_as_the_bare_one(
    namespace: Namespace, model: type[RelayPool | TransceiverPool]
) -> None:
    stored = namespace.get(make(namespace, model.__name__, {}))
    read, bare = model.model_validate(stored), model.model_validate({"metadata": stored["metadata"]})
    assert read.spec == bare.spec
    assert {"replicas", "paused", "drain", "imagePullPolicy"} <= set(stored["spec"])


def test_a_budget_can_be_turned_round_by_a_second_apply(namespace: Namespace) -> None:
    """A default of maxUnavailable in the schema would stand beside the minAvailable of the second one."""
    for how in ((), ("--server-side",)):
        name = f"p{uuid.uuid4().hex[:8]}"
        for spec in ({}, {"disruption": {"minAvailable": 1}, "listeners": [{"name": "web", "port": 443}]}):
            namespace.kubectl("apply", *how, "--filename=-", given=pool(RELAYS, spec, name))
        spec = namespace.get(f"relaypool/{name}")["spec"]
        assert spec["disruption"] == {"minAvailable": 1}
        assert [listener["name"] for listener in spec["listeners"]] == ["web"]


@pytest.mark.parametrize("kind", [RELAYS, TRANSCEIVERS])
def test_a_pool_that_no_operator_has_seen_says_so(namespace: Namespace, kind: str) -> None:
    conditions = namespace.get(make(namespace, kind, {}))["status"]["conditions"]
    assert [(each["type"], each["status"], each["reason"], each["message"]) for each in conditions] == [
        ("Accepted", "Unknown", "Pending", "Waiting for the operator"),
        ("Ready", "Unknown", "Pending", "Waiting for the operator"),
    ]


def condition(kind: str, status: str, reason: str, message: str) -> Spec:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }


def test_wait_returns_once_a_pool_is_ready(namespace: Namespace) -> None:
    what = make(namespace, TRANSCEIVERS, {})
    set_status(namespace, what, {"conditions": [condition("Ready", "True", "Ready", "All is well")]})
    namespace.kubectl("wait", "--for=condition=Ready", "--timeout=10s", what)


def test_a_status_with_the_same_condition_twice_is_refused(namespace: Namespace) -> None:
    what = make(namespace, TRANSCEIVERS, {})
    ready = condition("Ready", "True", "Ready", "")
    status = json.dumps({"status": {"conditions": [ready, ready]}})
    refused = namespace.kubectl("patch", what, "--subresource=status", "--type=merge", f"--patch={status}", fails=True)
    assert "Duplicate value" in refused


def table(printed: str) -> dict[str, str]:
    """The row of a table with one, by its columns."""
    heads, row = printed.splitlines()
    starts = [heads.index(name) for name in heads.split()]
    ends = [*starts[1:], None]
    return {name: row[start:end].strip() for name, start, end in zip(heads.split(), starts, ends, strict=True)}


def test_columns_of_a_transceiver_pool(namespace: Namespace) -> None:
    what = make(namespace, TRANSCEIVERS, {"replicas": 4, "region": "eu-west"})
    counts = {"clusterID": 300, "replicas": 3, "readyReplicas": 2, "drainingReplicas": 1, "sessions": 40}
    ready = condition("Ready", "False", "PodsNotReady", "1 of 3 pods is not ready")
    set_status(namespace, what, {**counts, "conditions": [ready]})
    row = table(namespace.kubectl("get", what.replace("transceiverpool", "tpool"), "--output=wide"))
    assert row.pop("AGE")
    assert row == {
        "NAME": what.partition("/")[2],
        "CLUSTER": "300",
        "DESIRED": "4",
        "CURRENT": "3",
        "READY": "2",
        "DRAINING": "1",
        "CALLS": "40",
        "STATUS": "PodsNotReady",
        "REGION": "eu-west",
        "MESSAGE": "1 of 3 pods is not ready",
    }


def test_columns_of_a_relay_pool(namespace: Namespace) -> None:
    what = make(namespace, RELAYS, {})
    addresses = [{"listener": 1, "ip": ip, "port": 3478} for ip in ("203.0.113.7", "203.0.113.8")]
    counts = {"replicas": 2, "desiredReplicas": 3, "readyReplicas": 2}
    set_status(namespace, what, {**counts, "addresses": addresses, "endpoint": "203.0.113.7:3478"})
    row = table(namespace.kubectl("get", what.replace("relaypool", "rpool")))
    assert row.pop("AGE")
    assert row == {
        "NAME": what.partition("/")[2],
        "EXPOSURE": "LoadBalancer",
        "DESIRED": "3",
        "CURRENT": "2",
        "READY": "2",
        "ADDRESS": "203.0.113.7:3478",
        "STATUS": "Pending",
    }


def test_get_usher_lists_both_kinds(namespace: Namespace) -> None:
    made = {make(namespace, kind, {}) for kind in (RELAYS, TRANSCEIVERS)}
    listed = namespace.kubectl("get", "usher", "--output=name").replace(".usher.fleet", "").split()
    assert made <= set(listed)


def test_pools_are_found_by_their_cluster_id(namespace: Namespace) -> None:
    what = make(namespace, TRANSCEIVERS, {})
    set_status(namespace, what, {"clusterID": 777})
    found = namespace.kubectl("get", "tpool", "--field-selector=status.clusterID=777", "--output=name").split()
    assert [name.replace(".usher.fleet", "") for name in found] == [what]


@pytest.mark.parametrize("kind", [RELAYS, TRANSCEIVERS])
def test_scale_writes_the_spec_and_tells_the_selector(namespace: Namespace, kind: str) -> None:
    what = make(namespace, kind, {"replicas": 1})
    labels = "usher.fleet/pool=pool,usher.fleet/state=active"
    set_status(namespace, what, {"replicas": 1, "selector": labels})
    namespace.kubectl("scale", what, "--replicas=3")
    assert namespace.get(what)["spec"]["replicas"] == 3
    plural, name = f"{kind.lower()}s", what.partition("/")[2]
    path = f"/apis/usher.fleet/v1alpha1/namespaces/{namespace.name}/{plural}/{name}/scale"
    scale = json.loads(kubectl("get", "--raw", path))
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 1, "selector": labels})


def test_explain_reads_like_documentation(namespace: Namespace) -> None:
    told = " ".join(kubectl("explain", "tpool.spec.drain").split())
    assert "How a transceiver ends." in told
    assert "gracePeriod <string> How long calls may go on after a pod was told to end; 0s to 24h." in told
    assert "Default: 1h." in told
    told = " ".join(kubectl("explain", "rpool.spec.exposure.type").split())
    assert "ENUM: LoadBalancer NodePort HostPort ClusterIP" in told
    assert "Pod Security level is privileged. Default: LoadBalancer." in told


EXAMPLES = ["relaypool", "relaypool-redis", "transceiverpool", "transceiverpool-realtime", "hpa", "two-regions/home"]


@pytest.mark.parametrize("name", [*EXAMPLES, "two-regions/ingress"])
def test_examples_are_taken(namespace: Namespace, name: str) -> None:
    namespace.kubectl("apply", "--dry-run=server", f"--filename={ROOT / 'examples' / name}.yaml")


def test_the_autoscalers_name_the_example_pool() -> None:
    examples = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "examples").glob("*.yaml")}
    aim = examples["transceiverpool"]
    for scaler in ("hpa", "keda"):
        target = examples[scaler]["spec"]["scaleTargetRef"]
        assert target == {"apiVersion": aim["apiVersion"], "kind": aim["kind"], "name": aim["metadata"]["name"]}
