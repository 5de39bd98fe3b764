"""Plays controllers, scheduler and kubelet for the API server of `kube_fake`."""

from __future__ import annotations

import asyncio
import itertools

from tests.kube_fake import KubeFake
from tests.kube_objects import Json, copied


class Workloads:
    """Plays what makes pods of Deployments: ReplicaSet controller, scheduler, kubelet. One pod template, no rollout.

    A new pod is Pending until it has no scheduling gates; then it gets a node and an IP, and is Running and Ready. A
    Deployment that shrinks loses its unready pods first, then those of the lowest deletion cost. Deleted pods stay
    until `finish` when `hold_ending` is set.
    """

    def __init__(self, api: KubeFake, *, hold_ending: bool = False, ip: str = "127.1.{high}.{low}") -> None:
        self._api = api
        self._hold = hold_ending
        self._ip = ip
        self._numbers = itertools.count(1)
        api.on_change(self._on_change)

    def finish(self, namespace: str, name: str) -> None:
        """The containers of a deleted pod have ended."""
        self._api.remove("Pod", namespace, name, force=True)

    def set_aside(self, namespace: str, name: str) -> None:
        """Somebody takes away the label by which its controller selects a pod, which lets it go and makes another."""
        pod = self._api.get("Pod", namespace, name)
        assert pod is not None
        [owner] = pod["metadata"]["ownerReferences"]
        self._api.change("Pod", namespace, name, lambda body: body["metadata"].pop("ownerReferences"))
        self._scale(namespace, owner["name"])

    def _on_change(self, type_: str, body: Json) -> None:
        loop = asyncio.get_running_loop()
        if body["kind"] == "Deployment" and type_ != "DELETED":
            loop.call_soon(self._scale, body["metadata"]["namespace"], body["metadata"]["name"])
        if body["kind"] == "Pod":
            loop.call_soon(self._run_pod, body["metadata"]["namespace"], body["metadata"]["name"])
            owners = body["metadata"].get("ownerReferences", ())
            if owners:
                loop.call_soon(self._scale, body["metadata"]["namespace"], owners[0]["name"])

    def _scale(self, namespace: str, name: str) -> None:
        deployment = self._api.get("Deployment", namespace, name)
        if deployment is None or "deletionTimestamp" in deployment["metadata"]:
            return
        pods = [
            pod
            for pod in self._api.all("Pod", namespace)
            if any(o["uid"] == deployment["metadata"]["uid"] for o in pod["metadata"].get("ownerReferences", ()))
        ]
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        wanted = deployment["spec"].get("replicas", 1)
        for _ in range(wanted - len(alive)):
            self._make_pod(deployment)
        for pod in sorted(alive, key=_deletion_rank)[: max(0, len(alive) - wanted)]:
            self._api.remove("Pod", namespace, pod["metadata"]["name"])
        ready = sum(map(_is_ready, alive))
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(alive),
            "readyReplicas": ready,
            "updatedReplicas": len(alive),
            "availableReplicas": ready,
            "conditions": [{"type": "Available", "status": "True" if ready >= wanted else "False"}],
        }
        if deployment.get("status") != status and self._api.get("Deployment", namespace, name) is not None:
            self._api.change("Deployment", namespace, name, lambda body: body.update(status=status))

    def _make_pod(self, deployment: Json) -> None:
        template = copied(deployment["spec"]["template"])
        name, uid = deployment["metadata"]["name"], deployment["metadata"]["uid"]
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": uid, "controller": True}
        metadata = {
            **template.get("metadata", {}),
            "name": f"{name}-{next(self._numbers)}",
            "namespace": deployment["metadata"]["namespace"],
            "ownerReferences": [owner],
        }
        self._api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec", {})})

    def _run_pod(self, namespace: str, name: str) -> None:
        pod = self._api.get("Pod", namespace, name)
        if pod is None:
            return
        if "deletionTimestamp" in pod["metadata"]:
            if not self._hold:
                self.finish(namespace, name)
        elif not pod["spec"].get("schedulingGates") and not pod["spec"].get("nodeName"):
            number = next(self._numbers)
            ip = self._ip.format(high=number // 250, low=number % 250 + 1)

            def start(body: Json) -> None:
                body["spec"]["nodeName"] = "node-1"
                body["status"] = {
                    "phase": "Running",
                    "podIP": ip,
                    "podIPs": [{"ip": ip}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "state": {"running": {}}}],
                }

            self._api.change("Pod", namespace, name, start)


def _is_ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


def _deletion_rank(pod: Json) -> tuple[bool, int, str]:
    cost = pod["metadata"].get("annotations", {}).get("controller.kubernetes.io/pod-deletion-cost", "0")
    return _is_ready(pod), int(cost), pod["metadata"]["name"]
