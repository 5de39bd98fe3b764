"""`usher operator` as processes: one works, one stands by, and a lost lease ends the one that had it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.kube_fake import KubeFake
from tests.kube_objects import Json
from tests.kube_workloads import Workloads

pytestmark = pytest.mark.programs  # leases of seconds

LEASE = ("Lease", "usher", "usher-operator")
MANY = 3_000
"""Enough that work which grows with their square would outlast the lease."""
FAST = ("--lease-duration", "3", "--lease-renew-deadline", "2", "--lease-retry", "0.2")


class Replica:
    """A process, and what it announced."""

    def __init__(self, process: asyncio.subprocess.Process, http: str, log: Path) -> None:
        self.process = process
        self.http = http
        self.log = log

    async def page(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await http.get(self.http + path)

    async def leads(self) -> bool:
        return "usher_operator_leader 1.0" in (await self.page("/metrics")).text

    async def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 20)


@pytest.fixture
async def api() -> AsyncIterator[KubeFake]:
    async with KubeFake() as server:
        for name in ("voice", "usher"):
            server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        Workloads(server)
        yield server


@pytest.fixture
async def start(api, tmp_path):
    replicas: list[Replica] = []
    config = {
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))

    async def start_one(*flags: str) -> Replica:
        log = tmp_path / f"log-{len(replicas)}"
        arguments = ["operator", "--namespaces", "voice", "--own-namespace", "usher", "--http", "127.0.0.1:0"]
        images = ["--relay-image", "relay:1", "--transceiver-image", "transceiver:1"]
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "usher_cli", *arguments, *images, *FAST, *flags),
                env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        assert line, log.read_text()
        replicas.append(Replica(process, json.loads(line)["http"], log))
        return replicas[-1]

    yield start_one
    for replica in replicas:
        if replica.process.returncode is None:
            replica.process.kill()
            await replica.process.wait()


def pool(name: str, replicas: int) -> Json:
    return {
        "apiVersion": "usher.fleet/v1alpha1",
        "kind": "TransceiverPool",
        "metadata": {"name": name, "namespace": "voice"},
        "spec": {"replicas": replicas},
    }


def ids(api: KubeFake) -> set[str]:
    return {i for pod in api.all("Pod") if (i := pod["metadata"]["labels"].get("usher.fleet/pod-id"))}


async def test_the_standby_takes_over_from_a_leader_that_is_killed_and_all_ids_are_distinct(api, start):
    leader, standby = await start(), await start()
    api.create(pool("p", 2))
    await api.until(lambda: len(ids(api)) == 2, "the leader works", 20)
    holder = api.get(*LEASE)["spec"]["holderIdentity"]
    if await standby.leads():
        leader, standby = standby, leader
    assert (await standby.page("/readyz")).status_code == 200
    assert (await standby.page("/livez")).status_code == 200
    await leader.end(signal.SIGKILL)
    api.change("TransceiverPool", "voice", "p", lambda body: body["spec"].update(replicas=5))
    await api.until(lambda: len(ids(api)) == 5, "the standby works", 30)
    lease = api.get(*LEASE)["spec"]
    assert lease["holderIdentity"] != holder
    assert lease["leaseTransitions"] == 1
    assert await standby.leads()


async def test_a_clean_end_hands_over_at_once_and_is_quiet(api, start):
    """Also at a second signal. Kopf gives what hangs 5 s."""
    leader = await start("--lease-duration", "120")
    await api.until(lambda: api.get(*LEASE), "there is a leader", 20)
    standby = await start()
    began = asyncio.get_running_loop().time()
    leader.process.send_signal(signal.SIGTERM)
    assert await leader.end() == 0
    assert asyncio.get_running_loop().time() - began < 4
    assert "Traceback" not in leader.log.read_text()
    assert "Exception" not in leader.log.read_text()
    api.create(pool("p", 1))
    await api.until(lambda: len(ids(api)) == 1, "the standby works", 20)
    assert await standby.end() == 0
    assert api.get(*LEASE)["spec"]["holderIdentity"] == ""


async def test_it_ends_while_it_waits_for_the_crds(api, start):
    del api.resources["relaypools.usher.fleet"]
    leader = await start()
    await api.until(lambda: "waiting for the CRDs" in leader.log.read_text(), "it waits", 20)
    assert await leader.end() == 0
    assert api.get(*LEASE)["spec"]["holderIdentity"] == ""


async def test_a_leader_that_lost_its_lease_ends_hard(api, start):
    leader = await start()
    await api.until(lambda: api.get(*LEASE), "there is a leader", 20)
    # The API server is away for it; or another one has taken the lease by force.
    api.change(*LEASE, lambda body: body["spec"].update(holderIdentity="somebody else"))
    assert await asyncio.wait_for(leader.process.wait(), 10) == 1
    assert "the lease is lost" in leader.log.read_text()


async def test_a_leader_that_was_paused_beyond_its_lease_ends_before_it_does_anything(api, start):
    paused = await start()
    api.create(pool("p", 1))
    await api.until(lambda: len(ids(api)) == 1, "it works", 20)
    paused.process.send_signal(signal.SIGSTOP)
    other = await start()
    await api.until(lambda: api.get(*LEASE)["spec"]["leaseTransitions"] == 1, "another one leads", 20)
    assert await other.end() == 0
    api.change(*LEASE, lambda body: body["spec"].update(holderIdentity="somebody else"))
    api.change("TransceiverPool", "voice", "p", lambda body: body["spec"].update(replicas=3))
    before = len(api.writes())
    paused.process.send_signal(signal.SIGCONT)
    assert await asyncio.wait_for(paused.process.wait(), 10) == 1
    assert api.writes()[before:] == []


async def test_without_an_api_server_it_says_so_in_one_line(tmp_path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "usher_cli", "operator", "--http", "127.0.0.1:0"),
        env={**os.environ, "KUBECONFIG": str(tmp_path / "missing"), "KUBERNETES_SERVICE_HOST": ""},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert error.decode().splitlines()[-1].startswith("usher: no way to the Kubernetes API")
    assert b"Traceback" not in error


async def test_a_leader_that_finds_thousands_of_pods_keeps_its_lease_and_works(api, start):
    labels = {"app.kubernetes.io/managed-by": "usher-operator", "app.kubernetes.io/component": "transceiver"}
    labels |= {"usher.fleet/pool": "p", "usher.fleet/cluster-id": "1"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    for number in range(MANY):
        metadata = {"name": f"p-{number}", "namespace": "voice", "labels": labels, "ownerReferences": [owner]}
        spec = {"containers": [], "schedulingGates": [{"name": "usher.fleet/pod-id"}]}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    # Paused, it makes no pods of its own.
    body = pool("p", MANY)
    body["spec"]["paused"] = True
    api.create(body)
    leader = await start()
    await api.until(lambda: api.get("TransceiverPool", "voice", "p").get("status"), "a look at the pool", 40)
    assert leader.process.returncode is None
    assert api.get(*LEASE)["spec"]["leaseTransitions"] == 0
