"""The operator with kopf in this process, a fake API server before it, and pretended pods behind it."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from kubernetes.aio.client import Configuration

from tests.kube_fake import KubeFake
from tests.kube_workloads import Workloads
from usher_core.internal_api import Load
from usher_operator.loads import PodClient
from usher_operator.main import Worker
from usher_operator.metrics import OperatorMetrics
from usher_operator.names import POD_ID_LABEL
from usher_operator.settings import OperatorSettings

NAMESPACE = "voice"


@dataclass
class Transceivers:
    """What the pods answer over HTTP."""

    sessions: dict[str, int] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    flows: list[str] = field(default_factory=list)
    hangs_at: str | None = None
    """Part of the paths that are never answered."""

    async def answer(self, request: httpx.Request) -> httpx.Response:
        host, path = request.url.host, request.url.path
        self.asked.append(f"{request.method} {path}")
        if self.hangs_at is not None and self.hangs_at in path:
            await asyncio.Event().wait()
        if host in self.silent:
            raise httpx.ConnectError("no answer")
        if path.endswith("/keys"):
            return httpx.Response(200, json={"keys": []})
        if path == "/flows":
            return httpx.Response(200, json={"flows": self.flows})
        if path.endswith("/drain"):
            self.draining.add(host)
        if path.endswith("/undrain"):
            self.draining.discard(host)
        draining = host in self.draining
        load = Load(sessions=self.sessions.get(host, 0), max_sessions=50, draining=draining, accepts=not draining)
        return httpx.Response(200, content=load.model_dump_json())


@dataclass
class Rig:
    api: KubeFake
    transceivers: Transceivers
    workloads: Workloads
    settings: OperatorSettings
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    may_write: bool = True

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[None]:
        """Run an operator in a thread, so that kopf has a loop of its own."""
        end = threading.Event()

        async def work() -> None:
            stop = asyncio.Event()
            ending = asyncio.create_task(self._set_when(end, stop))
            configuration = Configuration()
            configuration.host = self.api.url
            client = PodClient(httpx.MockTransport(self.transceivers.answer))
            await Worker(self.settings, configuration, self.metrics, lambda: self.may_write, client).run(stop)
            await ending

        running = asyncio.create_task(asyncio.to_thread(asyncio.run, work()))
        try:
            yield
        finally:
            end.set()
            await asyncio.wait_for(running, 20)

    @staticmethod
    async def _set_when(told: threading.Event, event: asyncio.Event) -> None:
        await asyncio.to_thread(told.wait)
        event.set()

    def pool(self, name: str = "p", **spec: Any) -> None:
        self._create("TransceiverPool", name, {"replicas": 3, **spec})

    def relay_pool(self, name: str = "r", **spec: Any) -> None:
        self._create("RelayPool", name, {"replicas": 2, **spec})

    def _create(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        metadata = {"name": name, "namespace": NAMESPACE}
        self.api.create({"apiVersion": "usher.fleet/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})

    def scale(self, replicas: int) -> None:
        self.api.change("TransceiverPool", NAMESPACE, "p", lambda body: body["spec"].update(replicas=replicas))

    def condition(
        self, type_: str, name: str = "p", kind: str = "TransceiverPool", namespace: str = NAMESPACE
    ) -> tuple[str, str]:
        pool = self.api.get(kind, namespace, name) or {}
        for condition in pool.get("status", {}).get("conditions", ()):
            if condition["type"] == type_:
                return condition["status"], condition["reason"]
        return "", ""

    def status(self) -> Any:
        return (self.api.get("TransceiverPool", NAMESPACE, "p") or {}).get("status", {})

    def ids(self) -> list[int]:
        labels = [pod["metadata"]["labels"].get(POD_ID_LABEL) for pod in self.api.all("Pod", NAMESPACE)]
        return sorted(int(label) for label in labels if label)

    async def ready(self, name: str = "p", within: float = 20.0) -> None:
        await self.api.until(lambda: self.condition("Ready", name)[0] == "True", f"{name} is Ready", within)


@contextlib.asynccontextmanager
async def operator_rig() -> AsyncIterator[Rig]:
    async with KubeFake() as api:
        for namespace in (NAMESPACE, "usher"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        settings = OperatorSettings(
            namespaces=(NAMESPACE,), own_namespace="usher", relay_image="relay:1", transceiver_image="transceiver:1"
        )
        yield Rig(api, Transceivers(), Workloads(api), settings)
