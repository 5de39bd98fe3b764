"""The children of a RelayPool: a Deployment or DaemonSet, the Service in front of it, and the right to watch pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from usher_operator.api.common import seconds
from usher_operator.api.relay_pool import Listener, RelayPool
from usher_operator.names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    APP,
    COMPONENT_LABEL,
    KEYS_FILE,
    NAME_LABEL,
    POD_ID_LABEL,
    RELAY,
    RELAY_KEYS_SECRET,
    REVISION_LABEL,
    TRANSCEIVER,
    pool_labels,
)
from usher_operator.plan.defaults import Defaults
from usher_operator.render import pod
from usher_operator.render.merge import merge
from usher_operator.render.revision import revision_of, with_revision
from usher_operator.render.trunk import service_of, trunk_children, trunk_env, trunk_mounts, trunk_ports

Json = dict[str, Any]

REDIS_CA_PATH = "/etc/usher/redis-ca"
REDIS_CA_FILE = "ca.crt"
_UNPRIVILEGED_FROM = 1024
"""Lower ports need a sysctl before a process without privileges may bind them."""


def keys_secret(pool: RelayPool) -> str:
    """Return the name of the Secret with the keys."""
    reference = pool.spec.keys.secret_ref
    return reference.name if reference else RELAY_KEYS_SECRET


def image_of(pool: RelayPool, defaults: Defaults) -> str:
    """Return the image; "" when neither pool nor operator names one."""
    return pool.spec.image or defaults.relay_image


def is_host_port(pool: RelayPool) -> bool:
    """Return whether clients reach the relays by the ports of nodes that they run on."""
    return pool.spec.exposure.type == "HostPort"


def has_host_ports(pool: RelayPool) -> bool:
    """Return whether clients or relays of other clusters do."""
    return any(each.type == "HostPort" for each in pool.spec.exposures)


def namespaces(pool: RelayPool) -> tuple[str, ...]:
    """Return the namespaces of the transceivers."""
    return tuple(pool.spec.transceivers.namespaces) or (pool.metadata.namespace,)


def relay_children(pool: RelayPool) -> list[Json]:
    """Return all children but the workload, each labelled with its revision."""
    children = [pod.service_account(pool, RELAY), _role(pool), _role_binding(pool), _service(pool)]
    children += trunk_children(pool)
    if pool.spec.workload == "Deployment":
        # A budget counts by the scale subresource, which a DaemonSet has not; node drains pass over its pods.
        children.append(pod.disruption_budget(pool, RELAY, pool.spec.disruption))
    return [with_revision(child) for child in children]


def relay_workload(pool: RelayPool, defaults: Defaults) -> Json:
    """Return the Deployment or DaemonSet, labelled with its revision, and its pods with theirs."""
    template = _template(pool, defaults)
    template["metadata"]["labels"][REVISION_LABEL] = revision_of(template)
    strategy = pool.spec.strategy
    rollout = {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": strategy.max_surge, "maxUnavailable": strategy.max_unavailable},
    }
    is_deployment = pool.spec.workload == "Deployment"
    fields = {"replicas": pool.spec.replicas, "strategy": rollout} if is_deployment else {"updateStrategy": rollout}
    return with_revision(
        {
            "apiVersion": "apps/v1",
            "kind": pool.spec.workload,
            "metadata": pod.child_metadata(pool, RELAY),
            "spec": {
                "selector": {"matchLabels": pool_labels(RELAY, pool.metadata.name)},
                "revisionHistoryLimit": pod.HISTORY,
                "template": template,
                **fields,
            },
        }
    )


def _template(pool: RelayPool, defaults: Defaults) -> Json:
    spec = pool.spec
    parts = pod.PodParts(
        component=RELAY,
        image=image_of(pool, defaults),
        pull_policy=spec.image_pull_policy,
        pull_secrets=pod.pull_secrets(spec.image_pull_secrets, defaults),
        placement=spec.placement,
        resources=spec.resources,
        env=[*pod.environment(_env(pool)), *_redis_url(pool)],
        ports=(
            *(_container_port(listener, on_host=is_host_port(pool)) for listener in spec.listeners),
            *trunk_ports(pool),
            {"name": ADMIN_PORT_NAME, "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ),
        probes={
            "startupProbe": pod.startup_probe(ADMIN_PORT_NAME, usual=2),
            "livenessProbe": pod.http_probe("/livez", ADMIN_PORT_NAME, period=10, failures=3),
            # Design D15: a relay that turns unready still forwards, so that flows move before it ends.
            "readinessProbe": pod.http_probe("/readyz", ADMIN_PORT_NAME, period=1, failures=1),
        },
        mounts=[pod.keys_mount(keys_secret(pool)), *_redis_ca(pool), *trunk_mounts(pool)],
        grace=seconds(spec.drain.grace_period),
        token=True,
        # A DaemonSet has one pod on each node: there is nothing to spread.
        spread=spec.workload == "Deployment",
    )
    return pod.pod_template(pool.metadata.name, parts, merge(_low_ports(pool), spec.pod_template))


def _env(pool: RelayPool) -> dict[str, str]:
    spec = pool.spec
    # What OpenSSL trusts, beside its folder of certificates, where nobody says otherwise: only the client of Redis.
    trust = {"SSL_CERT_FILE": f"{REDIS_CA_PATH}/{REDIS_CA_FILE}"} if _redis_ca(pool) else {}
    return trust | {
        "USHER_LISTEN": ",".join(f"{listener.id}=0.0.0.0:{listener.port}" for listener in spec.listeners),
        "USHER_ADMIN": f"0.0.0.0:{ADMIN_PORT}",
        "USHER_KEYS_FILE": f"{pod.KEYS_PATH}/{KEYS_FILE}",
        "USHER_PODS_NAMESPACE": ",".join(namespaces(pool)),
        "USHER_PODS_SELECTOR": pods_selector(spec.transceivers.selector),
        "USHER_ENGINE": spec.datapath.engine.lower(),
        "USHER_MAX_FLOWS": str(spec.datapath.max_flows),
        "USHER_HOP_MTU": str(spec.datapath.hop_mtu),
        "USHER_GRACE": str(seconds(spec.drain.grace_period)),
        "USHER_LOG_FORMAT": "json",
        **trunk_env(pool),
    }


def _redis_url(pool: RelayPool) -> list[Json]:
    """Return the variable with the URL, which holds a password: so its value stands in a Secret alone."""
    if pool.spec.redis is None:
        return []
    url = pool.spec.redis.url_secret_ref
    return [{"name": "USHER_REDIS_URL", "valueFrom": {"secretKeyRef": {"name": url.name, "key": url.key}}}]


def _redis_ca(pool: RelayPool) -> list[pod.Mount]:
    ca = pool.spec.redis.ca_secret_ref if pool.spec.redis else None
    return [] if ca is None else [pod.secret_mount("redis-ca", REDIS_CA_PATH, ca.name, ca.key, REDIS_CA_FILE)]


def pods_selector(selector: Mapping[str, Any]) -> str:
    """Return a label selector as the text of an API request: that of a pool, among transceivers that have an id."""
    terms = [f"{NAME_LABEL}={APP}", f"{COMPONENT_LABEL}={TRANSCEIVER}", POD_ID_LABEL]
    terms += [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or ():
        key, values = term["key"], ",".join(term.get("values") or ())
        forms = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        terms.append(forms.get(term["operator"], f"!{key}"))
    return ",".join(terms)


def _container_port(listener: Listener, *, on_host: bool) -> Json:
    port = {"name": listener.name, "containerPort": listener.port, "protocol": listener.protocol}
    return {**port, "hostPort": listener.port} if on_host else port


def _low_ports(pool: RelayPool) -> Json:
    ports = [listener.port for listener in pool.spec.listeners]
    ports += [pool.spec.trunk.port] if pool.spec.trunk else []
    if all(port >= _UNPRIVILEGED_FROM for port in ports):
        return {}
    # One of the sysctls that Pod Security `restricted` calls safe.
    sysctls = [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]
    return {"spec": {"securityContext": {"sysctls": sysctls}}}


def _service(pool: RelayPool) -> Json:
    ports: list[Json] = [
        {"name": each.name, "port": each.port, "targetPort": each.name, "protocol": each.protocol}
        for each in pool.spec.listeners
    ]
    return service_of(pool, pool.spec.exposure, ports)


def _role(pool: RelayPool) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": pod.child_metadata(pool, RELAY),
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
    }


def _role_binding(pool: RelayPool) -> Json:
    name = pod.child_name(RELAY, pool.metadata.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": pod.child_metadata(pool, RELAY),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": pool.metadata.namespace}],
    }
