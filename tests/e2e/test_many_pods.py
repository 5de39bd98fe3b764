"""Pod ids of very many pods. They are real but for one thing: no node has what they ask for, so none ever starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import CHART, OPERATOR_PODS, RELEASE, Fleet, is_ready, values
from tests.e2e.kube import kubectl, wait_for
from usher_operator.kube import HttpKubeApi, load_configuration

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm")]

POOL = "many"
MANY_PODS = f"usher.fleet/pool={POOL}"
WITHOUT_ID = f"{MANY_PODS},!usher.fleet/pod-id"
SOME = 100
AT_A_TIME = 5
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
    wait_for("the pool is gone", lambda: is_removed(fleet), 600)


def pods_path(fleet: Fleet, selector: str, *, limit: int = 0) -> str:
    bound = f"&limit={limit}" if limit else ""
    return f"/api/v1/namespaces/{fleet.namespace.name}/pods?labelSelector={quote(selector)}{bound}"


def is_removed(fleet: Fleet) -> bool:
    """Help along: the garbage collector takes pods one by one. The API server may cut off what takes it a minute."""
    with contextlib.suppress(AssertionError):
        kubectl("delete", "--raw", pods_path(fleet, MANY_PODS), limit=300)
    return not fleet.namespace.kubectl("get", f"tpool/{POOL}", "--ignore-not-found")


def have_ids(fleet: Fleet, count: int) -> bool:
    """Whether so many pods are there, and none waits for its id."""
    waiting = json.loads(kubectl("get", "--raw", pods_path(fleet, WITHOUT_ID, limit=1)))["items"]
    return not waiting and fleet.namespace.get(f"tpool/{POOL}")["status"].get("replicas") == count


def ids(fleet: Fleet) -> list[int]:
    found = json.loads(kubectl("get", "--raw", pods_path(fleet, MANY_PODS), limit=300))["items"]
    return [int(pod["metadata"]["labels"]["usher.fleet/pod-id"]) for pod in found]


def restarts(fleet: Fleet) -> int:
    """How often an operator was started again since its pod was made."""
    return sum(pod["status"]["containerStatuses"][0]["restartCount"] for pod in fleet.pods(OPERATOR_PODS))


USAGE = """
import os, pathlib
def field(process, name):
    return int(next(line.split()[1] for line in (process / "status").open() if line.startswith(name)))
others = [each for each in pathlib.Path("/proc").glob("[0-9]*") if each.name != str(os.getpid())]
times = [(each / "stat").read_text().rpartition(")")[2].split() for each in others]
ticks = sum(int(time[11]) + int(time[12]) for time in times)
print(ticks / os.sysconf("SC_CLK_TCK"), sum(field(each, "VmHWM") for each in others))
"""


def usage(fleet: Fleet) -> dict[str, tuple[float, int]]:
    """Seconds of CPU so far, and the highest resident memory in KiB, of each operator, its init included."""
    found = {}
    for pod in fleet.pods(OPERATOR_PODS):
        name = pod["metadata"]["name"]
        seconds, kib = fleet.namespace.kubectl("exec", name, "--", "python", "-c", USAGE).split()
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


@pytest.fixture
def busy_operator(fleet: Fleet) -> Iterator[None]:
    """Operators with the share of a core that so many pods ask for."""
    given = values(fleet.namespace.name, fleet.images)
    given["operator"]["resources"]["requests"]["cpu"] = "200m"
    fleet.helm("upgrade", RELEASE, CHART, given=given)
    fleet.namespace.kubectl("rollout", "status", "deployment/usher-operator", "--timeout=120s", limit=130)
    wait_for("the old operators are gone", lambda: len(fleet.pods(OPERATOR_PODS)) == 2)
    yield
    fleet.helm("upgrade", RELEASE, CHART, given=values(fleet.namespace.name, fleet.images))


@pytest.mark.long
@pytest.mark.usefixtures("busy_operator")
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("count", [2_000, 10_000])
async def test_very_many_pods_get_ids_of_their_own(pool: Fleet, figure: Figure, count: int) -> None:
    pool.namespace.kubectl("scale", f"tpool/{POOL}", "--replicas=1")
    wait_for("a first pod", lambda: have_ids(pool, 1))
    assert not restarts(pool)
    before = usage(pool)
    began = time.monotonic()
    pool.namespace.kubectl("scale", f"tpool/{POOL}", f"--replicas={count}")
    # The ReplicaSet makes twenty a second; we make the rest in its name.
    await flood(pool, count - min(300, count // 5))
    made = time.monotonic() - began
    wait_for("ids for all", lambda: have_ids(pool, count), 900)
    took = time.monotonic() - began
    figure("time", f"{count} pods: made within {made:.0f} s, steady after {took:.0f} s")
    given = ids(pool)
    assert len(given) == len(set(given)) == count
    after = usage(pool)
    assert after.keys() == before.keys()
    assert not restarts(pool), "an operator that is busy keeps its lease"
    for name, (seconds, kib) in after.items():
        used = seconds - before[name][0]
        figure(f"operator {name}", f"{used:.1f} s of CPU ({100 * used / took:.0f} %), {kib / 1024:.0f} MiB at most")
        assert kib < MAX_RESIDENT_KIB
    replace_leader(pool, figure)
    after = usage(pool)
    idle_from = time.monotonic()
    await asyncio.sleep(30)  # a rate needs a span of time
    idle = time.monotonic() - idle_from
    for name, (seconds, _) in usage(pool).items():
        figure(f"operator {name} at rest", f"{100 * (seconds - after[name][0]) / idle:.0f} % of a core")


def replace_leader(fleet: Fleet, figure: Figure) -> None:
    """Whoever leads next has to take in all pods before it gives the next id."""
    old, highest = fleet.leader(), fleet.namespace.get(f"tpool/{POOL}")["status"]["lastPodID"]
    some = json.loads(kubectl("get", "--raw", pods_path(fleet, MANY_PODS, limit=1)))["items"][0]["metadata"]["name"]
    fleet.namespace.kubectl("delete", "pod", str(old), some, "--wait=false")
    began = time.monotonic()
    wait_for("another leader", lambda: fleet.leader() not in (None, old))
    led = time.monotonic()
    wait_for("the next id", lambda: fleet.namespace.get(f"tpool/{POOL}")["status"]["lastPodID"] > highest, 120)
    given = time.monotonic()
    figure("another operator", f"led after {led - began:.1f} s, and gave the next id {given - led:.1f} s later")
    wait_for("two operators", lambda: [is_ready(pod) for pod in fleet.pods(OPERATOR_PODS)] == [True, True])
    assert not restarts(fleet)


async def flood(fleet: Fleet, count: int) -> None:
    """Make pods as the ReplicaSet does, and in its name."""
    owner = fleet.namespace.list("replicasets", MANY_PODS)[0]
    template = owner["spec"]["template"]
    reference = {
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True, "blockOwnerDeletion": True,
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    }  # fmt: skip
    api = HttpKubeApi(await load_configuration())
    try:
        numbers = iter(range(count))

        async def worker() -> None:
            for number in numbers:
                metadata = {
                    **template["metadata"],
                    "name": f"{owner['metadata']['name']}-n{number}",
                    "namespace": fleet.namespace.name,
                    "ownerReferences": [reference],
                }
                await api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})

        await asyncio.gather(*(worker() for _ in range(AT_A_TIME)))
    finally:
        await api.close()
