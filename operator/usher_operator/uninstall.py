"""What has to happen before the operator goes, in order: `python -m usher_operator.uninstall`, a hook of the chart.

Pools are deleted while an operator is there to drain them: transceivers first, since their last calls need the relays.
Then the operator is stopped, and its Leases and keys are removed; a deleted Lease gives no pod id twice (design D13).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import click
import structlog

from usher_core.errors import UsherError
from usher_core.logs import configure
from usher_operator import names
from usher_operator.actions import Reference
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.identity.lease import read_leases
from usher_operator.keys import secrets
from usher_operator.kube import HttpKubeApi, KubeApi, UnavailableError, load_configuration, reference
from usher_operator.observe import pod_seen

log = structlog.get_logger()

LOOK_EVERY_S = 2.0
SAY_EVERY = 15
"""Looks between two lines about what is still there."""


class Uninstaller:
    """Deletes pools, the operator and its Leases.

    Args:
        api: the API server.
        namespaces: that the operator looks after; none: all.
        own_namespace: of the operator.
        identity_namespace: of the Leases of cluster ids.
        pause: seconds between two looks.
    """

    def __init__(
        self,
        api: KubeApi,
        namespaces: tuple[str, ...],
        own_namespace: str,
        identity_namespace: str,
        pause: float = LOOK_EVERY_S,
    ) -> None:
        self._api = api
        self._namespaces = namespaces
        self._own_namespace = own_namespace
        self._identity_namespace = identity_namespace
        self._pause = pause
        self._used = {own_namespace, *namespaces}
        """Namespaces that had pools, as far as we know."""

    async def run(self, deployment: str, lease: str, pods: tuple[str, ...] = ()) -> None:
        """Do all of it; waits as long as calls last. Raises KubeError.

        Args:
            deployment: of the operator.
            lease: that elects one of its replicas.
            pods: further pods to delete.
        """
        for model in (TransceiverPool, RelayPool):
            await self._delete_pools(model.kind)
        for namespace in sorted(self._used):
            await self._until_gone(namespace, f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}")
        await self._stop(deployment)
        await self._delete_leases(lease)
        await self._delete_keys()
        for pod in pods:
            await self._delete(Reference("v1", "Pod", self._own_namespace, pod))

    async def _delete_pools(self, kind: str) -> None:
        looks = 0
        while pools := await self._pools(kind):
            for pool in pools:
                self._used.add(pool["metadata"]["namespace"])
                if "deletionTimestamp" not in pool["metadata"]:
                    log.info("deleting", kind=kind, pool=_name(pool))
                    await self._api.delete(reference(pool), pool["metadata"]["uid"])
            if looks % SAY_EVERY == 0:
                left = {_name(pool): (pool.get("status") or {}).get("sessions", 0) for pool in pools}
                log.info("waiting for pools to drain", kind=kind, calls_left=left)
            looks += 1
            await asyncio.sleep(self._pause)

    async def _pools(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for namespace in self._namespaces or ("",):
            found += await self._list(names.API_VERSION, kind, namespace)
        return found

    async def _list(self, api_version: str, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """List, however long the API server is away: the Job has a deadline of its own."""
        while True:
            try:
                return await self._api.select(api_version, kind, namespace, labels)
            except UnavailableError as error:
                log.warning("the API server does not answer; trying again", error=str(error))
                await asyncio.sleep(self._pause)

    async def _stop(self, deployment: str) -> None:
        target = Reference("apps/v1", "Deployment", self._own_namespace, deployment)
        found = await self._api.get(target)
        if found is None:
            return
        log.info("stopping the operator", deployment=deployment)
        await self._api.delete(target, found["metadata"]["uid"])
        await self._until_gone(self._own_namespace, names.selector_of(found["spec"]["selector"]["matchLabels"]))

    async def _until_gone(self, namespace: str, selector: str) -> None:
        """Wait for pods that something ends; one that a person has taken out of its ReplicaSet stays, and is named."""
        while found := [pod_seen(body) for body in await self._list("v1", "Pod", namespace, selector)]:
            pods = [pod for pod in found if pod.has_controller]
            if not pods:
                left = ", ".join(sorted(pod.name for pod in found))
                log.warning("nobody ends these pods; delete them", namespace=namespace, pods=left)
                return
            log.info("waiting for the last pods", namespace=namespace, pods=len(pods))
            await asyncio.sleep(self._pause)

    async def _delete(self, target: Reference) -> None:
        if found := await self._api.get(target):
            await self._api.delete(target, found["metadata"]["uid"])

    async def _delete_keys(self) -> None:
        """Delete what the operator made; Secrets of people stay, whatever their name."""
        for namespace in sorted(self._used):
            for name in secrets.ALL:
                target = Reference("v1", "Secret", namespace, name)
                found = await self._api.get(target)
                if found is not None and secrets.is_ours(found):
                    await self._api.delete(target, found["metadata"]["uid"])

    async def _delete_leases(self, lease: str) -> None:
        leases = await self._list("coordination.k8s.io/v1", "Lease", self._identity_namespace)
        for found in read_leases(leases).values():
            if self._served(found.holder):
                await self._api.delete(reference(found.manifest), found.manifest["metadata"]["uid"])
        await self._delete(Reference("coordination.k8s.io/v1", "Lease", self._own_namespace, lease))

    def _served(self, holder: str) -> bool:
        """Whether the holder was a pool of ours: other operators may keep theirs beside them."""
        return not self._namespaces or holder.partition("/")[0] in self._namespaces


def _name(pool: Mapping[str, Any]) -> str:
    return f"{pool['metadata']['namespace']}/{pool['metadata']['name']}"


@click.command()
@click.option("--namespace", "namespaces", multiple=True, help="Namespace with pools (repeatable); none: all.")
@click.option("--own-namespace", required=True, help="Namespace of the operator.")
@click.option("--identity-namespace", required=True, help="Namespace of the Leases of cluster ids.")
@click.option("--deployment", required=True, help="Deployment of the operator.")
@click.option("--lease", required=True, help="Lease that elects one of its replicas.")
@click.option("--pod", "pods", multiple=True, help="Pod that tests left (repeatable).")
def main(
    namespaces: tuple[str, ...],
    own_namespace: str,
    identity_namespace: str,
    deployment: str,
    lease: str,
    pods: tuple[str, ...],
) -> None:
    """Delete all pools, wait until their calls have ended, and stop the operator."""

    async def work() -> None:
        api = HttpKubeApi(await load_configuration())
        try:
            await Uninstaller(api, namespaces, own_namespace, identity_namespace).run(deployment, lease, pods)
        finally:
            await api.close()

    configure("json", "info")
    try:
        asyncio.run(work())
    except UsherError as error:
        sys.exit(f"usher uninstall: {error}")


if __name__ == "__main__":
    main()
