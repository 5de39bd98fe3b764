"""Pod ids of very many pods. They are real but for one thing: no node has what they ask for, so none ever starts."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import OPERATOR_PODS, Fleet
from tests.e2e.kube import Json, kubectl, wait_for
from usher_operator.kube import HttpKubeApi, load_configuration

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm")]

POOL = "many"
MANY_PODS = f"usher.fleet/pool={POOL}"
WITHOUT_ID = f"{MANY_PODS},!usher.fleet/pod-id"
SOME = 100
VERY_MANY = 10_000
AT_A_TIME = 20
"""Requests for new pods that are under way at once."""
MAX_RESIDENT_KIB = 1024 * 1024


@pytest.fixture
def pool(fleet: Fleet) -> Iterator[Fleet]:
    """A second TransceiverPool, empty at first."""
    fleet.namespace.apply(
        {
            "apiVersion": "usher.fleet/v1alpha1",
            "kind": "TransceiverPool",
            "metadata": {"name": POOL},
            "spec": {
                "replicas": 0,
                "backend": {"type": "echo"},
                "placement": {"nodeSelector": {"usher.fleet/test": "no-node-has-it"}},
                # Ten thousand pods that can't be placed would keep the scheduler busy, and it is not what we measure.
                "podTemplate": {"spec": {"schedulerName": "nobody"}},
            },
        }
    )
    wait_for("its ReplicaSet", lambda: fleet.namespace.list("replicasets", MANY_PODS))
    yield fleet
    fleet.namespace.kubectl("delete", f"tpool/{POOL}", "--wait=false")
    wait_for("the pool is gone", lambda: is_removed(fleet), 300)


def pods_path(fleet: Fleet, selector: str, *, limit: int = 0) -> str:
    bound = f"&limit={limit}" if limit else ""
    return f"/api/v1/namespaces/{fleet.namespace.name}/pods?labelSelector={quote(selector)}{bound}"


def is_removed(fleet: Fleet) -> bool:
    """Help along: the garbage collector takes pods one by one."""
    kubectl("delete", "--raw", pods_path(fleet, MANY_PODS), limit=300)
    return not fleet.namespace.kubectl("get", f"tpool/{POOL}", "--ignore-not-found")


def have_ids(fleet: Fleet, count: int) -> bool:
    """Whether so many pods are there, and none waits for its id."""
    waiting = json.loads(kubectl("get", "--raw", pods_path(fleet, WITHOUT_ID, limit=1)))["items"]
    return not waiting and fleet.namespace.get(f"tpool/{POOL}")["status"].get("replicas") == count


def ids(fleet: Fleet) -> list[int]:
    found = json.loads(kubectl("get", "--raw", pods_path(fleet, MANY_PODS), limit=300))["items"]
    return [int(pod["metadata"]["labels"]["usher.fleet/pod-id"]) for pod in found]


def usage(fleet: Fleet) -> dict[str, tuple[float, int]]:
    """Seconds of CPU so far, and the highest resident memory in KiB, of each operator."""
    code = (
        "import os; s = open('/proc/1/stat').read().rpartition(')')[2].split();"
        "m = next(line.split()[1] for line in open('/proc/1/status') if line.startswith('VmHWM'));"
        "print((int(s[11]) + int(s[12])) / os.sysconf('SC_CLK_TCK'), m)"
    )
    found = {}
    for pod in fleet.pods(OPERATOR_PODS):
        name = pod["metadata"]["name"]
        seconds, kib = fleet.namespace.kubectl("exec", name, "--", "python", "-c", code).split()
        found[name] = (float(seconds), int(kib))
    return found


@pytest.mark.timeout(400)
def test_a_hundred_pods_at_once_get_ids_of_their_own(pool: Fleet, figure: Figure) -> None:
    began = time.monotonic()
    pool.namespace.kubectl("scale", f"tpool/{POOL}", f"--replicas={SOME}")
    wait_for("ids for all", lambda: have_ids(pool, SOME), 120)
    figure(f"{SOME} pods were made and had their ids after", f"{time.monotonic() - began:.1f} s")
    given = ids(pool)
    assert len(given) == SOME
    assert max(Counter(given).values()) == 1
    pool.namespace.kubectl("delete", "pods", f"--selector={MANY_PODS}", "--wait=false")
    wait_for("others in their place", lambda: have_ids(pool, SOME) and not set(ids(pool)) & set(given), 120)
    again = ids(pool)
    assert min(again) > max(given), "an id is never given again"
    assert len(set(again)) == SOME


@pytest.mark.long
@pytest.mark.timeout(1500)
async def test_ten_thousand_pods_get_ids_of_their_own(pool: Fleet, figure: Figure) -> None:
    pool.namespace.kubectl("scale", f"tpool/{POOL}", "--replicas=1")
    wait_for("a first pod", lambda: have_ids(pool, 1))
    before = usage(pool)
    began = time.monotonic()
    pool.namespace.kubectl("scale", f"tpool/{POOL}", f"--replicas={VERY_MANY}")
    # The ReplicaSet makes twenty a second; we make the rest in its name.
    await flood(pool, VERY_MANY - 300)
    made = time.monotonic() - began
    wait_for("ids for all", lambda: have_ids(pool, VERY_MANY), 900)
    took = time.monotonic() - began
    figure("time", f"{VERY_MANY} pods: made within {made:.0f} s, steady after {took:.0f} s")
    given = ids(pool)
    assert len(given) == len(set(given)) == VERY_MANY
    after = usage(pool)
    for name, (seconds, kib) in after.items():
        used = seconds - before[name][0]
        figure(f"operator {name}", f"{used:.1f} s of CPU ({100 * used / took:.0f} %), {kib / 1024:.0f} MiB at most")
        assert kib < MAX_RESIDENT_KIB
    idle_from = time.monotonic()
    await asyncio.sleep(30)  # a rate needs a span of time
    idle = time.monotonic() - idle_from
    for name, (seconds, _) in usage(pool).items():
        figure(f"operator {name} at rest", f"{100 * (seconds - after[name][0]) / idle:.0f} % of a core")


async def flood(fleet: Fleet, count: int) -> None:
    """Make pods as the ReplicaSet does."""
    sample = fleet.namespace.list("pods", MANY_PODS)[0]
    body = fresh_copy(sample)
    api = HttpKubeApi(await load_configuration())
    try:
        numbers = iter(range(count))

        async def worker() -> None:
            for number in numbers:
                name = f"{body['metadata']['generateName']}n{number}"
                await api.create({**body, "metadata": {**body["metadata"], "name": name}})

        await asyncio.gather(*(worker() for _ in range(AT_A_TIME)))
    finally:
        await api.close()


def fresh_copy(pod: Json) -> Json:
    """A pod as its ReplicaSet made it, without what came later: id, volume of its token, status."""
    kept = ("generateName", "namespace", "labels", "annotations", "ownerReferences")
    spec = copy.deepcopy(pod["spec"])
    spec["schedulingGates"] = [{"name": "usher.fleet/pod-id"}]
    metadata = {key: pod["metadata"][key] for key in kept if key in pod["metadata"]}
    metadata["labels"] = {k: v for k, v in metadata["labels"].items() if k != "usher.fleet/pod-id"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
