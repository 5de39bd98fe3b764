"""What a transceiver pod means for routing and placement, and how label selectors are evaluated."""

import copy
import random
from typing import Any

import pytest

from usher_core.errors import RemoteError
from usher_core.ids import Route
from usher_core.label_selectors import matches
from usher_core.pod_routes import REASONS, RoutablePod, parse_pod, routes_of

Json = dict[str, Any]


def pod_json(**changes: Any) -> Json:
    """A Ready transceiver pod as the API server sends it; `changes` by path, such as `status__podIP`."""
    body: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "voice-transceiver-x",
            "namespace": "voice",
            "uid": "uid-1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "resourceVersion": "5",
            "labels": {
                "app.kubernetes.io/component": "transceiver",
                "usher.fleet/cluster-id": "7",
                "usher.fleet/pod-id": "60431872",
                "usher.fleet/state": "active",
                "usher.fleet/region": "eu-west",
            },
        },
        "spec": {
            "containers": [
                {"name": "side", "ports": [{"containerPort": 9000}]},
                {
                    "name": "transceiver",
                    "ports": [
                        {"name": "hop", "containerPort": 7200, "protocol": "UDP"},
                        {"name": "http", "containerPort": 7280, "protocol": "TCP"},
                    ],
                },
            ]
        },
        "status": {"phase": "Running", "podIP": "10.1.2.3", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        where = body
        for parent in parents:
            where = where[parent]
        where[last] = value
    return body


def labels(**changes: str | None) -> Json:
    names = {"cluster": "usher.fleet/cluster-id", "pod": "usher.fleet/pod-id", "state": "usher.fleet/state"}
    wanted = copy.deepcopy(pod_json()["metadata"]["labels"])
    for name, value in changes.items():
        if value is None:
            del wanted[names[name]]
        else:
            wanted[names[name]] = value
    return {"metadata__labels": wanted}


def parsed(**changes: Any) -> RoutablePod:
    pod = parse_pod(pod_json(**changes))
    assert pod is not None
    return pod


def test_a_ready_pod_has_a_route_and_takes_calls() -> None:
    pod = parsed()
    assert pod.route == Route(7, 60431872)
    entry = pod.transceiver
    assert (entry.udp, entry.http, entry.region) == ("10.1.2.3:7200", "http://10.1.2.3:7280", "eu-west")
    assert pod.takes_calls
    assert entry.placeable


def test_an_ipv6_pod_has_its_address_in_brackets() -> None:
    entry = parsed(status__podIP="2001:db8::7").transceiver
    assert (entry.udp, entry.http) == ("[2001:db8::7]:7200", "http://[2001:db8::7]:7280")


@pytest.mark.parametrize(
    "changes",
    [
        {"status__conditions": [{"type": "Ready", "status": "False"}]},
        {"status__conditions": []},
        {"status__conditions": None},
        {"status__phase": "Pending"} | {"status__conditions": []},
        {"status__phase": "Unknown"} | {"status__conditions": []},
        {"metadata__deletionTimestamp": "2026-01-01T01:00:00Z"},
        labels(state="draining"),
        labels(state=None),
    ],
    ids=["unready", "no-ready", "no-conditions", "pending", "node-lost", "terminating", "draining", "no-state"],
)
def test_a_pod_that_takes_no_calls_keeps_its_route(changes: Json) -> None:
    pod = parsed(**changes)
    assert pod.route == Route(7, 60431872)
    assert not pod.takes_calls
    assert not pod.transceiver.placeable


def test_unready_and_being_deleted_at_once_still_has_its_route() -> None:
    pod = parsed(
        status__conditions=[{"type": "Ready", "status": "False"}], metadata__deletionTimestamp="2026-01-01T01:00:00Z"
    )
    assert not pod.takes_calls


@pytest.mark.parametrize(
    "changes",
    [
        {"status__podIP": ""},
        {"status": {"phase": "Pending"}},
        {"status": None},
        labels(pod=None),
        {"metadata__labels": None},
        {"status__phase": "Succeeded"},
        {"status__phase": "Failed"},
    ],
    ids=["no-ip", "pending", "no-status", "no-id", "no-labels", "succeeded", "failed"],
)
def test_a_pod_without_id_or_address_or_that_has_ended_has_no_route(changes: Json) -> None:
    assert parse_pod(pod_json(**changes)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (labels(cluster="0"), "cluster_id"),
        (labels(cluster="65536"), "cluster_id"),
        (labels(cluster="x"), "cluster_id"),
        (labels(cluster="-1"), "cluster_id"),
        (labels(cluster=None), "cluster_id"),
        (labels(pod=""), "pod_id"),
        (labels(pod="4294967296"), "pod_id"),
        (labels(pod="1" * 63), "pod_id"),
        (labels(pod="007"), "pod_id"),
        (labels(pod="1.5"), "pod_id"),
        (labels(pod="٣"), "pod_id"),  # a digit to Python
        ({"spec__containers": [{"name": "transceiver"}]}, "port"),
        ({"spec__containers": []}, "port"),
        ({"spec__containers": [{"ports": [{"name": "hop", "containerPort": 0}]}]}, "address"),
        ({"spec__containers": [{"ports": [{"name": "hop", "containerPort": 70000}]}]}, "address"),
        ({"spec__containers": [{"ports": [{"name": "hop", "containerPort": None}]}]}, "address"),
        ({"status__podIP": "nonsense"}, "address"),
        ({"status__podIP": "fe80::1%eth0"}, "address"),
        ({"spec__containers": None}, "shape"),
        ({"spec": None}, "shape"),
        ({"status": "x"}, "shape"),
        ({"status__conditions": ["x"]}, "shape"),
        ({"status__podIP": 7}, "shape"),
        ({"metadata": None}, "shape"),
        (labels(pod=7), "shape"),  # type: ignore[arg-type]
    ],
)
def test_a_pod_that_makes_no_sense_is_refused_with_a_reason(changes: Json, reason: str) -> None:
    with pytest.raises(RemoteError) as refused:
        parse_pod(pod_json(**changes))
    assert refused.value.reason == reason
    assert reason in REASONS


def test_no_body_whatever_its_shape_raises_anything_but_a_remote_error() -> None:
    draw = random.Random(7)
    values: tuple[Any, ...] = (None, "", "x", 0, -1, 1.5, [], {}, [None], {"x": None}, True, ["x"], [[]])

    def spoil(value: Any) -> Any:
        if draw.random() < 0.08:
            return draw.choice(values)
        if isinstance(value, dict):
            return {key: spoil(inner) for key, inner in value.items() if draw.random() > 0.04}
        return [spoil(inner) for inner in value] if isinstance(value, list) else value

    outcomes: set[type] = set()
    for _ in range(3000):
        try:
            outcomes.add(type(parse_pod(spoil(pod_json()))))
        except RemoteError as error:
            assert error.reason in REASONS
            outcomes.add(RemoteError)
    assert outcomes == {RoutablePod, RemoteError, type(None)}


def test_only_pods_that_are_settled_are_placeable() -> None:
    pods = [parsed(), parsed(metadata__uid="2", metadata__name="b", **labels(pod="8"))]
    routes = routes_of(pods, lambda pod: pod.uid == "2")
    assert [(entry.pod, entry.placeable) for entry in routes.table.values()] == [(60431872, False), (8, True)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_of_two_pods_with_one_route_the_older_one_has_it_in_whatever_order_they_come(order: tuple[int, ...]) -> None:
    twins = [
        parsed(metadata__uid="c", metadata__creationTimestamp="2026-01-01T00:00:09Z", status__podIP="10.0.0.3"),
        parsed(metadata__uid="b", metadata__creationTimestamp="2026-01-01T00:00:10Z", status__podIP="10.0.0.2"),
        parsed(metadata__uid="a", metadata__creationTimestamp="2026-01-01T00:00:10Z", status__podIP="10.0.0.1"),
    ]
    routes = routes_of([twins[index] for index in order], lambda _pod: True)
    assert [entry.udp for entry in routes.table.values()] == ["10.0.0.3:7200"]
    assert routes.conflicts == 2
    later = routes_of([twin for index, twin in enumerate(twins) if index], lambda _pod: True)
    assert [entry.udp for entry in later.table.values()] == ["10.0.0.1:7200"]


def test_pods_of_two_clusters_may_have_the_same_pod_id() -> None:
    routes = routes_of([parsed(), parsed(metadata__uid="2", **labels(cluster="8"))], lambda _pod: True)
    assert (len(routes.table), routes.conflicts) == (2, 0)


HAS = {"app": "x", "tier": "gold"}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        ({"matchLabels": {}}, True),
        ({"matchLabels": None, "matchExpressions": None}, True),
        ({"matchLabels": {"app": "x"}}, True),
        ({"matchLabels": {"app": "x", "tier": "silver"}}, False),
        ({"matchLabels": {"missing": "x"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["y"]}]}, False),
        ({"matchExpressions": [{"key": "missing", "operator": "In", "values": ["y"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "missing", "operator": "NotIn", "values": ["x"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "missing", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "missing", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_label_selectors_mean_what_they_mean_in_kubernetes(selector: Json, expected: bool) -> None:
    assert matches(selector, HAS) is expected


@pytest.mark.parametrize(
    "selector", [{"matchLabels": "x"}, {"matchExpressions": [{}]}, {"matchExpressions": ["x"]}, "x", None,
                 {"matchExpressions": [{"key": "a", "operator": "Near"}]}],
)  # fmt: skip
def test_what_is_no_selector_is_refused(selector: Any) -> None:
    with pytest.raises(RemoteError):
        matches(selector, HAS)
