"""`python -m usher_operator.uninstall` against an API server: nothing is left, and nothing goes before its time."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from tests.kube_fake import KubeFake
from usher_operator import names
from usher_operator.kube import HttpKubeApi
from usher_operator.uninstall import Uninstaller

HOME = "usher-system"
OPERATOR = "usher-operator"
LABELS = {"app.kubernetes.io/component": "operator"}


@pytest.fixture
async def server() -> AsyncIterator[KubeFake]:
    async with KubeFake() as server:
        server.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": OPERATOR, "namespace": HOME},
                "spec": {"selector": {"matchLabels": LABELS}},
            }
        )
        lease(server, OPERATOR, "replica-1")
        yield server


def pool(server: KubeFake, kind: str, namespace: str, name: str = "pool") -> None:
    metadata = {"name": name, "namespace": namespace, "finalizers": [names.FINALIZER]}
    server.create({"apiVersion": names.API_VERSION, "kind": kind, "metadata": metadata, "status": {"sessions": 3}})


def lease(server: KubeFake, name: str, holder: str) -> None:
    metadata = {"name": name, "namespace": HOME}
    spec = {"holderIdentity": holder}
    server.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})


def secret(server: KubeFake, namespace: str, made_by: str, name: str = "usher-keys") -> None:
    metadata = {"name": name, "namespace": namespace, "labels": {names.MANAGED_BY_LABEL: made_by}}
    server.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {}})


def pod(
    server: KubeFake, name: str, labels: dict[str, str] | None = None, namespace: str = HOME, *, owned: bool = True
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "uid-of-rs", "controller": True}
    owners = {"ownerReferences": [owner]} if owned else {}
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}, **owners}
    server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}})


def is_ending(server: KubeFake, kind: str, namespace: str) -> bool:
    return any("deletionTimestamp" in found["metadata"] for found in server.all(kind, namespace))


def drained(server: KubeFake, kind: str, namespace: str) -> None:
    """What the operator does once the last call has ended."""
    server.change(kind, namespace, "pool", lambda body: body["metadata"].update(finalizers=[]))


def uninstalling(server: KubeFake, *namespaces: str) -> "asyncio.Task[None]":
    async def run() -> None:
        configuration = Configuration()
        configuration.host = server.url
        api = HttpKubeApi(configuration)
        try:
            await Uninstaller(api, namespaces, HOME, HOME, pause=0.01).run(OPERATOR, OPERATOR, ("usher-test",))
        finally:
            await api.close()

    return asyncio.create_task(run())


def left(server: KubeFake) -> list[tuple[str, Any]]:
    return sorted((resource, name) for resource, _, name in server.objects if not resource.startswith("namespaces"))


async def test_relays_wait_for_the_last_call_and_the_operator_for_the_relays(server: KubeFake) -> None:
    for kind in ("TransceiverPool", "RelayPool"):
        pool(server, kind, "voice")
    lease(server, "usher-cluster-7", "voice/pool")
    pod(server, "operator-1", LABELS)
    pod(server, "usher-test")
    task = uninstalling(server)

    await server.until(lambda: is_ending(server, "TransceiverPool", "voice"), "transceivers are told to end")
    assert not is_ending(server, "RelayPool", "voice")
    drained(server, "TransceiverPool", "voice")
    await server.until(lambda: is_ending(server, "RelayPool", "voice"), "relays are told to end")
    assert server.get("Deployment", HOME, OPERATOR)
    drained(server, "RelayPool", "voice")
    await server.until(lambda: not server.get("Deployment", HOME, OPERATOR), "the operator is stopped")
    assert server.get("Lease", HOME, OPERATOR), "a replica that ends may still write it"
    server.remove("Pod", HOME, "operator-1", force=True)
    await asyncio.wait_for(task, 10)
    assert left(server) == []


async def test_a_pod_that_somebody_took_out_of_its_replica_set_is_waited_for_no_longer_than_its_pool(
    server: KubeFake,
) -> None:
    pool(server, "TransceiverPool", "voice")
    label = {names.MANAGED_BY_LABEL: names.MANAGED_BY}
    pod(server, "aside", label, "voice", owned=False)
    pod(server, "ends", label, "voice")
    task = uninstalling(server)
    await server.until(lambda: is_ending(server, "TransceiverPool", "voice"), "transceivers are told to end")
    drained(server, "TransceiverPool", "voice")
    await asyncio.sleep(0.1)
    assert server.get("Deployment", HOME, OPERATOR), "the other pod still ends"
    server.remove("Pod", "voice", "ends", force=True)
    await asyncio.wait_for(task, 10)
    assert [name for resource, name in left(server) if resource.startswith("pods")] == ["aside"]


async def test_pools_and_leases_of_other_namespaces_stay(server: KubeFake) -> None:
    pool(server, "TransceiverPool", "theirs")
    secret(server, "theirs", names.MANAGED_BY)
    lease(server, "usher-cluster-1", "ours/pool")
    lease(server, "usher-cluster-2", "theirs/pool")
    await asyncio.wait_for(uninstalling(server, "ours"), 10)
    assert left(server) == [
        ("leases.coordination.k8s.io", "usher-cluster-2"),
        ("secrets", "usher-keys"),
        ("transceiverpools.usher.fleet", "pool"),
    ]


async def test_keys_that_the_operator_made_go_once_no_pod_uses_them_and_others_stay(server: KubeFake) -> None:
    pool(server, "RelayPool", "voice")
    secret(server, "voice", names.MANAGED_BY)
    secret(server, "voice", "somebody", "usher-relay-keys")
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY}
    server.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "r", "namespace": "voice", "labels": labels}}
    )
    task = uninstalling(server)
    await server.until(lambda: is_ending(server, "RelayPool", "voice"), "relays are told to end")
    drained(server, "RelayPool", "voice")
    assert server.get("Secret", "voice", "usher-keys")
    assert server.get("Deployment", HOME, OPERATOR)
    server.remove("Pod", "voice", "r", force=True)
    await asyncio.wait_for(task, 10)
    assert left(server) == [("secrets", "usher-relay-keys")]


async def test_a_second_run_finds_nothing_to_do(server: KubeFake) -> None:
    for _ in range(2):
        await asyncio.wait_for(uninstalling(server), 10)
    assert left(server) == []


async def test_it_waits_out_an_api_server_that_is_away(server: KubeFake) -> None:
    server.fail(503, verb="list", times=3)
    await asyncio.wait_for(uninstalling(server), 10)
    assert left(server) == []


async def test_the_command_of_the_chart_works_with_its_own_flags(server: KubeFake, tmp_path: Path) -> None:
    pod(server, "usher-test")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "fake",
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
                "clusters": [{"name": "fake", "cluster": {"server": server.url}}],
                "users": [{"name": "fake", "user": {}}],
            }
        )
    )
    flags = [f"--own-namespace={HOME}", f"--identity-namespace={HOME}", f"--deployment={OPERATOR}"]
    flags += [f"--lease={OPERATOR}", "--pod=usher-test", "--namespace=voice", "--namespace=calls"]
    ended = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "usher_operator.uninstall", *flags),
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await asyncio.wait_for(ended.communicate(), 30)
    assert ended.returncode == 0, told.decode()
    assert left(server) == []
