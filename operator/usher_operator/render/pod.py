"""What the pods and children of both kinds of pools have in common: they run under Pod Security `restricted`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from usher_operator.api.common import Disruption, LocalReference, Placement, Resources
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.names import API_VERSION, KEYS_FILE, TOKEN_FILE, child_labels, pool_labels
from usher_operator.plan.defaults import Defaults
from usher_operator.render.merge import merge

USER = 65_532
"""The user and group `nonroot` of our images; numeric, since a kubelet can't check a name."""
KEYS_PATH = "/etc/usher/keys"
TOKEN_PATH = "/etc/usher/token"
HISTORY = 3
"""Old ReplicaSets that are kept for `kubectl rollout undo` and for looking back."""
PROBE_TIMEOUT_S = 5
"""A program under full load answers late; one that shall not be used any more says so at once."""
CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"

Json = dict[str, Any]


def child_name(component: str, pool: str) -> str:
    """Return the name of a pool's children. A relay pool and a transceiver pool may have the same name."""
    return f"{pool}-{component}"


def owner_reference(pool: RelayPool | TransceiverPool) -> Json:
    """Return the reference that lets Kubernetes remove a child once its pool is gone."""
    return {
        "apiVersion": API_VERSION,
        "kind": pool.kind,
        "name": pool.metadata.name,
        "uid": pool.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def child_metadata(pool: RelayPool | TransceiverPool, component: str, name: str | None = None) -> Json:
    """Return the metadata of a child, named `<pool>-<component>` unless `name` says otherwise."""
    return {
        "name": name or child_name(component, pool.metadata.name),
        "namespace": pool.metadata.namespace,
        "labels": child_labels(component, pool.metadata.name),
        "ownerReferences": [owner_reference(pool)],
    }


def service_account(pool: RelayPool | TransceiverPool, component: str) -> Json:
    """Return the ServiceAccount of a pool's pods; no token unless a pod asks for it."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": child_metadata(pool, component),
        "automountServiceAccountToken": False,
    }


def disruption_budget(pool: RelayPool | TransceiverPool, component: str, disruption: Disruption) -> Json:
    """Return the PodDisruptionBudget. Pods that aren't ready never block a node drain (KEP-3017)."""
    limit = (
        {"minAvailable": disruption.min_available}
        if disruption.min_available is not None
        else {"maxUnavailable": 1 if disruption.max_unavailable is None else disruption.max_unavailable}
    )
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(pool, component),
        "spec": {
            "selector": {"matchLabels": pool_labels(component, pool.metadata.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            **limit,
        },
    }


@dataclass(frozen=True, slots=True)
class Mount:
    """A Secret or ConfigMap as a read-only directory; a directory, since a single file is never updated."""

    name: str
    path: str
    source: Mapping[str, Any]


def secret_mount(name: str, path: str, secret: str, key: str, file: str | None = None) -> Mount:
    """Return a mount of one key of a Secret as a file, named as the key unless `file` says so; for our group only."""
    items = [{"key": key, "path": file or key}]
    return Mount(name, path, {"secret": {"secretName": secret, "defaultMode": 0o440, "items": items}})


def keys_mount(secret: str) -> Mount:
    """Return the mount of `keys.json`."""
    return secret_mount("keys", KEYS_PATH, secret, KEYS_FILE)


def token_mount(secret: str) -> Mount:
    """Return the mount of `token`."""
    return secret_mount("token", TOKEN_PATH, secret, TOKEN_FILE)


def startup_probe(port: str, usual: int) -> Json:
    """Return the probe that tells when a program has started: within a minute.

    Args:
        port: by its name.
        usual: seconds that starts take. A kubelet posts a Warning for each answer that it misses, so none is asked for
            sooner.
    """
    return {**http_probe("/livez", port, period=1, failures=60), "initialDelaySeconds": usual}


def http_probe(path: str, port: str, period: int, failures: int) -> Json:
    """Return a probe by HTTP on a named port. `period` in seconds."""
    return {
        "httpGet": {"path": path, "port": port, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": PROBE_TIMEOUT_S,
        "failureThreshold": failures,
    }


def environment(values: Mapping[str, str]) -> list[Json]:
    """Return environment variables in the order of their names, so that the same ones hash alike."""
    return [{"name": name, "value": value} for name, value in sorted(values.items())]


def pull_secrets(of_pool: Sequence[LocalReference], defaults: Defaults) -> list[str]:
    """Return the names of the Secrets for the registry: those of the pool, or else the operator's."""
    return [reference.name for reference in of_pool] or list(defaults.image_pull_secrets)


@dataclass(frozen=True, slots=True)
class PodParts:
    """What differs between pods; `pod_template` adds what does not.

    Attributes:
        component: `relay` or `transceiver`: name of the container and the command `usher <component>`.
        labels: beside those of the pool.
        env, ports, probes: of the container; probes by their field, such as `readinessProbe`.
        grace: seconds between SIGTERM and SIGKILL.
        token: whether the pod talks with the API server.
        spec: further fields of the pod's spec.
        spread: whether pods are spread over zones and nodes where the pool does not say how.
    """

    component: str
    image: str
    pull_policy: str
    pull_secrets: Sequence[str]
    placement: Placement
    resources: Resources
    env: Sequence[Mapping[str, Any]]
    ports: Sequence[Mapping[str, Any]]
    probes: Mapping[str, Any]
    mounts: Sequence[Mount]
    grace: int
    labels: Mapping[str, str] = field(default_factory=dict)
    token: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict)
    spread: bool = True


def pod_template(pool: str, parts: PodParts, extra: Mapping[str, Any]) -> Json:
    """Return the pod template, with `extra` (a pool's `podTemplate`) merged in last.

    Labels that selectors and routes rely on stay as they are, whatever `extra` says.
    """
    fixed = {**child_labels(parts.component, pool), **parts.labels}
    rendered: Json = {
        # One annotation is always there, so that a JSON patch may add others beside it.
        "metadata": {"labels": fixed, "annotations": {CONTAINER_ANNOTATION: parts.component}},
        "spec": {
            "serviceAccountName": child_name(parts.component, pool),
            "automountServiceAccountToken": parts.token,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": parts.grace,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(parts)],
            "volumes": [{"name": mount.name, **mount.source} for mount in parts.mounts],
            **_placement(pool, parts),
            **parts.spec,
        },
    }
    if parts.pull_secrets:
        rendered["spec"]["imagePullSecrets"] = [{"name": secret} for secret in parts.pull_secrets]
    merged = merge(rendered, {part: extra[part] for part in ("metadata", "spec") if part in extra})
    return merge(merged, {"metadata": {"labels": fixed}})


def _container(parts: PodParts) -> Json:
    resources = {
        kind: values
        for kind, values in (("requests", parts.resources.requests), ("limits", parts.resources.limits))
        if values
    }
    return {
        "name": parts.component,
        "image": parts.image,
        "imagePullPolicy": parts.pull_policy,
        "args": [parts.component],
        "env": list(parts.env),
        "ports": list(parts.ports),
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": mount.name, "mountPath": mount.path, "readOnly": True} for mount in parts.mounts],
        **parts.probes,
    }


def _placement(pool: str, parts: PodParts) -> Json:
    placement = parts.placement
    constraints = placement.topology_spread_constraints
    if constraints is None and parts.spread:
        constraints = [_spread(pool, parts.component, f"{prefix}/{key}") for prefix, key in _TOPOLOGIES]
    fields = {
        "nodeSelector": placement.node_selector,
        "tolerations": placement.tolerations,
        "affinity": placement.affinity,
        "topologySpreadConstraints": constraints,
        "priorityClassName": placement.priority_class_name,
    }
    return {name: value for name, value in fields.items() if value}


_TOPOLOGIES = (("topology.kubernetes.io", "zone"), ("kubernetes.io", "hostname"))


def _spread(pool: str, component: str, topology: str) -> Json:
    return {
        "maxSkew": 1,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": pool_labels(component, pool)},
        # Old pods that drain for an hour are no reason to crowd the new ones.
        "matchLabelKeys": ["pod-template-hash"],
    }
