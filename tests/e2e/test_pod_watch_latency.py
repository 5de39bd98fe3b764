"""How soon a relay knows a pod, on a real API server: from writing its status to the published table.

The pods are objects only: gated, so that no scheduler takes them; the test writes their status as a kubelet would.
"""

import asyncio
import contextlib
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.pod_objects import transceiver_pod, write_kubeconfig
from usher_core.ids import Route
from usher_core.routes import RouteTable
from usher_operator.actions import Reference
from usher_operator.kube import HttpKubeApi, load_configuration
from usher_relay.routes.pods import PodRoutes

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes")]

CLUSTER = 7
ONE_BY_ONE = 150
AT_ONCE = 100
REQUIRED_S = 0.3


class Known:
    """When each route was first published."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self.news = asyncio.Event()

    def __call__(self, table: RouteTable) -> None:
        now = time.perf_counter()
        for route in table:
            self.at.setdefault(route.pod, now)
        self.news.set()

    async def has(self, pods: range) -> None:
        async with asyncio.timeout(10):
            while not all(pod in self.at for pod in pods):
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def api() -> AsyncIterator[HttpKubeApi]:
    api = HttpKubeApi(await load_configuration())
    yield api
    await api.close()


@pytest.fixture
async def namespace(api: HttpKubeApi) -> AsyncIterator[str]:
    name = f"usher-latency-{uuid.uuid4().hex[:8]}"
    made = await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    async with asyncio.timeout(20):
        # Pods are refused until the controller manager has made the namespace's ServiceAccount.
        while await api.get(Reference("v1", "ServiceAccount", name, "default")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    yield name
    await api.delete(Reference("v1", "Namespace", "", name), made["metadata"]["uid"])


async def create(api: HttpKubeApi, namespace: str, pod: int) -> None:
    body = transceiver_pod(f"p{pod}", pod, namespace=namespace, cluster=CLUSTER)
    del body["status"], body["spec"]["nodeName"]
    body["spec"]["schedulingGates"] = [{"name": "usher.fleet/test"}]
    await api.create(body)


async def become_ready(api: HttpKubeApi, namespace: str, pod: int) -> tuple[float, float]:
    """Write the status of a running pod; return when it was sent and when the API server had taken it."""
    sent = time.perf_counter()
    ip = f"10.250.{pod // 250}.{pod % 250 + 1}"
    status = {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await api.apply_status(Reference("v1", "Pod", namespace, f"p{pod}"), status)
    return sent, time.perf_counter()


def percentiles(name: str, seconds: list[float], record: Callable[[str, object], None]) -> float:
    """Record and print p50 and p99 of durations; return the latter."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    record(f"{name}_p50_ms", round(cuts[49] * 1000, 1))
    record(f"{name}_p99_ms", round(cuts[98] * 1000, 1))
    print(f"{name}: p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms, n {len(seconds)}")
    return cuts[98]


async def test_a_relay_knows_a_pod_within_300_ms_of_its_status(
    api: HttpKubeApi, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    known = Known()
    source = PodRoutes((namespace,), "usher.fleet/pool=voice")
    task = asyncio.create_task(source.run(known))
    try:
        for pod in range(ONE_BY_ONE + AT_ONCE):
            await create(api, namespace, pod)
        async with asyncio.timeout(20):
            await known.news.wait()
        assert not known.at
        assert source.status().loaded
        since_sent, since_taken = [], []
        for pod in range(ONE_BY_ONE):
            sent, taken = await become_ready(api, namespace, pod)
            await known.has(range(pod, pod + 1))
            since_sent.append(known.at[pod] - sent)
            # The watch may tell it before the writer has its answer.
            since_taken.append(max(0.0, known.at[pod] - taken))
        percentiles("sent_to_known", since_sent, record_property)
        one = percentiles("taken_to_known", since_taken, record_property)

        burst = range(ONE_BY_ONE, ONE_BY_ONE + AT_ONCE)
        times = await asyncio.gather(*(become_ready(api, namespace, pod) for pod in burst))
        await known.has(burst)
        all_at_once = [max(0.0, known.at[pod] - taken) for pod, (_, taken) in zip(burst, times, strict=True)]
        many = percentiles("burst_taken_to_known", all_at_once, record_property)
        assert one <= REQUIRED_S
        assert many <= REQUIRED_S

        await api.delete(Reference("v1", "Pod", namespace, "p0"), await uid_of(api, namespace, 0))
        tables: list[RouteTable] = []
        gone = asyncio.create_task(PodRoutes((namespace,), "").run(tables.append))
        try:
            async with asyncio.timeout(10):
                while not tables:  # noqa: ASYNC110 - a list has no event
                    await asyncio.sleep(0.01)
            assert len(tables[0]) == ONE_BY_ONE + AT_ONCE - 1, "more than two pages of a real list"
            assert Route(CLUSTER, 0) not in tables[0]
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def uid_of(api: HttpKubeApi, namespace: str, pod: int) -> str:
    found = await api.get(Reference("v1", "Pod", namespace, f"p{pod}"))
    assert found is not None
    return str(found["metadata"]["uid"])


async def test_a_role_of_one_namespace_is_enough_and_a_missing_one_is_named(
    api: HttpKubeApi, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = await load_configuration()
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "relay", "namespace": namespace}}
    await api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": rbac["metadata"]})
    command = ["kubectl", "--namespace", namespace, "create", "token", "relay"]
    asked = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    token = (await asked.communicate())[0].decode()
    assert asked.returncode == 0
    write_kubeconfig(tmp_path / "kubeconfig", configuration.host, token, configuration.ssl_ca_cert)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    known = Known()
    source = PodRoutes((namespace,), "")
    task = asyncio.create_task(source.run(known))
    try:
        async with asyncio.timeout(20):
            while "pods is forbidden" not in source.status().fault:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert not source.status().loaded
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
        await api.create({**rbac, "kind": "Role", "rules": rules})
        subject = {"kind": "ServiceAccount", "name": "relay", "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "relay"}
        await api.create({**rbac, "kind": "RoleBinding", "subjects": [subject], "roleRef": role})
        await create(api, namespace, 1)
        await become_ready(api, namespace, 1)
        await known.has(range(1, 2))
        assert source.status().fault == ""
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
