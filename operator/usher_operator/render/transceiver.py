"""The children of a TransceiverPool: a Deployment whose pods wait for an id, and what they need."""

from __future__ import annotations

import json
from typing import Any

from usher_operator.api.common import seconds
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.names import (
    ACTIVE,
    CLUSTER_ID_LABEL,
    HOP_PORT_NAME,
    HTTP_PORT_NAME,
    KEYS_FILE,
    POD_ID_GATE,
    POD_ID_LABEL,
    REGION_LABEL,
    REVISION_LABEL,
    ROUND_ANNOTATION,
    STATE_LABEL,
    TOKEN_FILE,
    TOKEN_SECRET,
    TRANSCEIVER,
    TRANSCEIVER_KEYS_SECRET,
    pool_labels,
)
from usher_operator.plan.defaults import Defaults
from usher_operator.render import pod
from usher_operator.render.realtime import realtime_environment, realtime_mounts
from usher_operator.render.revision import revision_of, with_revision

Json = dict[str, Any]

BACKEND_PATH = "/etc/usher/backend"
BACKEND_FILE = "config.json"
BACKEND_ANNOTATION = "usher.fleet/backend-config"
"""On pods: hash of the backend's configuration, which is read once; another one is a rollout."""
END_MARGIN_S = 10
"""Seconds a pod has after its last call was ended: to close clients and observers in order."""


def keys_secret(pool: TransceiverPool) -> str:
    """Return the name of the Secret with the keys."""
    reference = pool.spec.keys.secret_ref
    return reference.name if reference else TRANSCEIVER_KEYS_SECRET


def token_secret(pool: TransceiverPool | None) -> str:
    """Return the name of the Secret with the token of the internal API; None: of transceivers whose pool is gone."""
    reference = pool.spec.internal_token_secret_ref if pool else None
    return reference.name if reference else TOKEN_SECRET


def image_of(pool: TransceiverPool, defaults: Defaults) -> str:
    """Return the image; "" when neither pool nor operator names one."""
    return pool.spec.image or defaults.transceiver_image


def transceiver_children(pool: TransceiverPool) -> list[Json]:
    """Return all children but the Deployment, each labelled with its revision."""
    children = [
        pod.service_account(pool, TRANSCEIVER),
        _service(pool),
        pod.disruption_budget(pool, TRANSCEIVER, pool.spec.disruption),
    ]
    if pool.spec.backend.config:
        children.append(_backend_config(pool))
    return [with_revision(child) for child in children]


def transceiver_deployment(pool: TransceiverPool, cluster: int, defaults: Defaults) -> Json:
    """Return the Deployment without `replicas`, labelled with its revision, and its pods with theirs."""
    template = _template(pool, cluster, defaults)
    template["metadata"]["labels"][REVISION_LABEL] = revision_of(template)
    strategy = pool.spec.strategy
    return with_revision(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {**pod.child_metadata(pool, TRANSCEIVER), "annotations": {ROUND_ANNOTATION: "0"}},
            "spec": {
                "selector": {"matchLabels": pool_labels(TRANSCEIVER, pool.metadata.name)},
                "revisionHistoryLimit": pod.HISTORY,
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": strategy.max_surge, "maxUnavailable": strategy.max_unavailable},
                },
                "template": template,
            },
        }
    )


def _template(pool: TransceiverPool, cluster: int, defaults: Defaults) -> Json:
    spec = pool.spec
    labels = {CLUSTER_ID_LABEL: str(cluster), STATE_LABEL: ACTIVE}
    if spec.region:
        labels[REGION_LABEL] = spec.region
    mounts = [pod.keys_mount(keys_secret(pool)), pod.token_mount(token_secret(pool))]
    extra = spec.pod_template
    if spec.backend.config:
        config_map = {"configMap": {"name": _backend_config_name(pool)}}
        mounts.append(pod.Mount("backend", BACKEND_PATH, config_map))
    if spec.backend.realtime is not None:
        mounts += realtime_mounts(spec.backend.realtime)
    parts = pod.PodParts(
        component=TRANSCEIVER,
        image=image_of(pool, defaults),
        pull_policy=spec.image_pull_policy,
        pull_secrets=pod.pull_secrets(spec.image_pull_secrets, defaults),
        placement=spec.placement,
        resources=spec.resources,
        env=_env(pool, cluster),
        ports=(
            {"name": HOP_PORT_NAME, "containerPort": spec.media.port, "protocol": "UDP"},
            {"name": HTTP_PORT_NAME, "containerPort": spec.media.http_port, "protocol": "TCP"},
        ),
        probes={
            "startupProbe": pod.startup_probe(HTTP_PORT_NAME, usual=3),
            "livenessProbe": pod.http_probe("/livez", HTTP_PORT_NAME, period=10, failures=3),
            "readinessProbe": pod.http_probe("/readyz", HTTP_PORT_NAME, period=2, failures=2),
        },
        mounts=mounts,
        grace=seconds(spec.drain.grace_period) + END_MARGIN_S,
        labels=labels,
        spec={"schedulingGates": [{"name": POD_ID_GATE}]},
    )
    template = pod.pod_template(pool.metadata.name, parts, extra)
    # One id for all pods of a template is what must never be.
    template["metadata"]["labels"].pop(POD_ID_LABEL, None)
    if spec.backend.config:
        template["metadata"]["annotations"][BACKEND_ANNOTATION] = revision_of(spec.backend.config)
    return template


def _env(pool: TransceiverPool, cluster: int) -> list[Json]:
    spec = pool.spec
    values = {
        "USHER_CLUSTER": str(cluster),
        "USHER_UDP": f"0.0.0.0:{spec.media.port}",
        "USHER_HTTP": f"0.0.0.0:{spec.media.http_port}",
        "USHER_KEYS_FILE": f"{pod.KEYS_PATH}/{KEYS_FILE}",
        "USHER_TOKEN_FILE": f"{pod.TOKEN_PATH}/{TOKEN_FILE}",
        "USHER_MAX_SESSIONS": str(spec.capacity.max_sessions_per_pod),
        "USHER_BACKEND": spec.backend.type,
        "USHER_DRAIN_DEADLINE": str(seconds(spec.drain.grace_period)),
        "USHER_SESSION_MAX_AGE": str(seconds(spec.max_session_age)),
        "USHER_IDLE_TIMEOUT": str(seconds(spec.idle_timeout)),
        "USHER_LOG_FORMAT": "json",
    }
    if spec.backend.config:
        values["USHER_BACKEND_CONFIG_FILE"] = f"{BACKEND_PATH}/{BACKEND_FILE}"
    if spec.backend.realtime is not None:
        values |= realtime_environment(spec.backend.realtime)
    path = f"metadata.labels['{POD_ID_LABEL}']"
    pod_id = {"name": "USHER_POD", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
    return [*pod.environment(values), pod_id]


def _service(pool: TransceiverPool) -> Json:
    media = pool.spec.media
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": pod.child_metadata(pool, TRANSCEIVER),
        "spec": {
            "clusterIP": "None",
            "selector": pool_labels(TRANSCEIVER, pool.metadata.name),
            "ports": [
                {"name": HTTP_PORT_NAME, "port": media.http_port, "targetPort": HTTP_PORT_NAME, "protocol": "TCP"}
            ],
        },
    }


def _backend_config_name(pool: TransceiverPool) -> str:
    return f"{pod.child_name(TRANSCEIVER, pool.metadata.name)}-backend"


def _backend_config(pool: TransceiverPool) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": pod.child_metadata(pool, TRANSCEIVER, _backend_config_name(pool)),
        "data": {BACKEND_FILE: json.dumps(pool.spec.backend.config, sort_keys=True)},
    }
