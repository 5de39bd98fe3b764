"""Objects of transceiver pods and RelayPools as the API server has them, and a connection to the fake one."""

from collections.abc import Callable
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
