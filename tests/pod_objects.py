"""Objects of transceiver pods and RelayPools as the API server has them, and a connection to the fake one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes.aio.client import Configuration

from usher_shell.kubernetes_client import KubernetesReader
from usher_shell.object_watch import Connect

Json = dict[str, Any]


def connect_to(url: Callable[[], str]) -> Connect:
    """Connections without any login."""

    async def connect() -> KubernetesReader:
        return KubernetesReader(Configuration(host=url()))

    return connect


def transceiver_pod(
    name: str,
    pod: int | str,
    ip: str = "10.0.0.1",
    *,
    namespace: str = "voice",
    cluster: int = 7,
    pool: str = "voice",
    region: str = "",
) -> Json:
    """A Ready pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/component": "transceiver",
                "usher.fleet/pool": pool,
                "usher.fleet/cluster-id": str(cluster),
                "usher.fleet/pod-id": str(pod),
                "usher.fleet/state": "active",
                **({"usher.fleet/region": region} if region else {}),
            },
        },
        "spec": {
            "nodeName": "fake",
            "containers": [
                {
                    "name": "transceiver",
                    "image": "none",
                    "ports": [
                        {"name": "hop", "containerPort": 7200, "protocol": "UDP"},
                        {"name": "http", "containerPort": 7280, "protocol": "TCP"},
                    ],
                }
            ],
        },
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def relay_pool(
    name: str,
    *addresses: str,
    namespace: str = "voice",
    region: str = "",
    listener: int = 1,
    transceivers: Json | None = None,
) -> Json:
    """A RelayPool whose status has these `IP:PORT`."""
    found = [{"listener": listener, "ip": text.split(":")[0], "port": int(text.split(":")[1])} for text in addresses]
    return {
        "apiVersion": "usher.fleet/v1alpha1",
        "kind": "RelayPool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"region": region, "transceivers": transceivers or {}},
        "status": {"addresses": found},
    }


def write_kubeconfig(path: Path, url: str, token: str = "", authority: str | None = None) -> None:
    """A kubeconfig with a token, or without any login."""
    cluster = {"server": url}
    if authority:
        cluster["certificate-authority"] = authority
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": cluster}],
        "users": [{"name": "nobody", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "nobody"}}],
        "current-context": "fake",
    }
    path.write_text(json.dumps(config))
