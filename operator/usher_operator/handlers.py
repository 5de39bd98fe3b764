"""The operator's wiring into kopf: what it watches, and what an event leads to. No decision is made here.

Pods are not kopf's affair, see `watched_pods`.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from usher_operator import names
from usher_operator.reconciler import PoolKey, Reconciler
from usher_operator.watched_pods import SELECTOR

CANCELLED_WITHIN_S = 5.0
DRAIN_STRETCH_S = 600.0
"""Seconds of one call of the deletion handler: kopf writes an annotation after each, and a drain may take an hour."""
POOLS = {"relaypools": "RelayPool", "transceiverpools": "TransceiverPool"}
POOL_OF_COMPONENT = {names.RELAY: "RelayPool", names.TRANSCEIVER: "TransceiverPool"}
CHILDREN = (("apps", "v1", "deployments"), ("apps", "v1", "daemonsets"), ("", "v1", "services"))
"""What we make and somebody else changes: rollouts, load balancers, people."""


class NoDiffBase(kopf.DiffBaseStorage):
    """kopf would keep a copy of each pool's spec in an annotation, to tell what has changed. We never ask."""

    def fetch(self, *, body: kopf.Body) -> None:
        """Know nothing."""

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: Any) -> None:
        """Keep nothing."""


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings, each different from kopf's own for a reason."""
    settings = kopf.OperatorSettings()
    # Ours alone: operators that share kopf's names fight over finalizers and annotations (kopf#372, #664).
    settings.persistence.finalizer = names.FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = NoDiffBase()
    # An object named "default" of another operator would pause us (kopf#734).
    settings.peering.standalone = True
    for child in CHILDREN:
        settings.watching.label_selectors[child] = SELECTOR
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 5.0
    settings.posting.enabled = False  # we post Events ourselves
    # CRDs are there before we begin, so no right to watch CRDs and namespaces is needed.
    settings.scanning.disabled = True
    # All handlers are coroutines.
    settings.execution.executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    return settings


def registry(
    reconciler: Reconciler, configuration: Configuration, on_event: Callable[[], None]
) -> kopf.OperatorRegistry:
    """Return kopf's handlers.

    Args:
        reconciler: does the work.
        configuration: where the API server is.
        on_event: called for each event of any watch.
    """
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(id="login", registry=handlers)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection(configuration)

    for group, version, plural in CHILDREN:

        @kopf.on.event(group, version, plural, id=f"wake_by_{plural}", registry=handlers)
        async def wake_by_child(body: kopf.Body, **_: Any) -> None:
            on_event()
            metadata = body["metadata"]
            wake_owner(reconciler, metadata["namespace"], metadata.get("labels") or {})

    for plural, kind in POOLS.items():
        _register_pool(handlers, plural, kind, reconciler, on_event)
    return handlers


def _register_pool(
    handlers: kopf.OperatorRegistry, plural: str, kind: str, reconciler: Reconciler, on_event: Callable[[], None]
) -> None:
    where = (names.GROUP, names.VERSION, plural)

    @kopf.on.event(*where, id=f"wake_{plural}", registry=handlers)
    async def wake(body: kopf.Body, **_: Any) -> None:
        on_event()
        reconciler.wake(_key(kind, body))

    # Never a permanent error in there: the daemon would not come back.
    @kopf.daemon(*where, id=f"follow_{plural}", registry=handlers, cancellation_timeout=CANCELLED_WITHIN_S)
    async def follow(body: kopf.Body, **_: Any) -> None:
        await reconciler.follow(_key(kind, body))

    @kopf.on.delete(*where, id=f"drain_{plural}", registry=handlers)
    async def drain(body: kopf.Body, **_: Any) -> None:
        if not await reconciler.drain(_key(kind, body), DRAIN_STRETCH_S):
            raise kopf.TemporaryError("the pool drains", delay=1)


def _key(kind: str, body: kopf.Body) -> PoolKey:
    metadata = body["metadata"]
    return PoolKey(kind, metadata["namespace"], metadata["name"])


def wake_owner(reconciler: Reconciler, namespace: str, labels: Mapping[str, str]) -> None:
    """Wake the pool to which an object with these labels belongs, if any."""
    kind = POOL_OF_COMPONENT.get(labels.get(names.COMPONENT_LABEL, ""))
    if kind is not None:
        reconciler.wake(PoolKey(kind, namespace, labels.get(names.POOL_LABEL, "")))


async def connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return how kopf logs in: as our own client does. kopf asks again when the API server says 401."""
    header = await configuration.get_api_key_with_prefix("BearerToken")
    token = header.split(" ", 1)[1].strip() if header and " " in header else header
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
