"""What a look at a TransceiverPool costs the operator: plan and status of 100, 1,000 and 10,000 pods.

Run it:  .venv/bin/python benches/operator_plan.py [--count 5] [--json]

One pool without I/O, in three states:

* settled: all pods are ready and have answered; the plan does nothing.
* new: all pods wait for their ids; the plan gives the first batch.
* deleted: the pool is being deleted; the plan chooses the first batch of pods and tells them to drain.

Columns: the best of `--count` plans in ms, and in µs per pod, which should not grow with the pool; the peak of memory
that one plan allocates, as tracemalloc counts it in a run apart, since it slows down; and what the pods themselves
take, made from their JSON as the watch makes them.

What would make the numbers lie: requests to the API server and to pods, and kopf's work per event, come on top.
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc
from typing import Any

import _machine

from usher_core.internal_api import Load
from usher_operator import names
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.identity.lease import new_lease
from usher_operator.observe import pod_seen
from usher_operator.plan.defaults import Defaults
from usher_operator.plan.transceiver_pool import plan_transceiver_pool
from usher_operator.render.transceiver import transceiver_children, transceiver_deployment
from usher_operator.seen import PodSeen, TransceiverPoolSeen, pod_ids

SIZES = (100, 1_000, 10_000)
STATES = ("settled", "new", "deleted")
NOW = 1_767_225_600.0
CLUSTER = 1
DEFAULTS = Defaults("relay:1", "transceiver:1", "usher", CLUSTER, CLUSTER)
MIB = 1024 * 1024


def make_pool(size: int, state: str) -> TransceiverPool:
    metadata: dict[str, Any] = {"name": "voice", "namespace": "fleet", "uid": "u", "resourceVersion": "1"}
    metadata["annotations"] = {names.LAST_POD_ID_ANNOTATION: str(size)}
    if state == "deleted":
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return TransceiverPool.model_validate({"metadata": metadata, "spec": {"replicas": size}})


def make_pods(size: int, state: str, template: Any) -> tuple[PodSeen, ...]:
    return tuple(pod_seen(pod_json(number, state, template)) for number in range(1, size + 1))


def pod_json(number: int, state: str, template: Any) -> dict[str, Any]:
    labels = dict(template["metadata"]["labels"])
    metadata = {
        "name": f"voice-transceiver-{number}",
        "namespace": "fleet",
        "uid": f"uid-{number}",
        "resourceVersion": str(number),
        "creationTimestamp": "2025-12-31T23:00:00Z",
        "annotations": dict(template["metadata"]["annotations"]),
        "labels": labels,
    }
    if state == "new":
        return {"metadata": metadata, "spec": {"schedulingGates": [{"name": names.POD_ID_GATE}]}}
    labels[names.POD_ID_LABEL] = str(number)
    status = {
        "phase": "Running",
        "podIP": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": metadata, "spec": {"nodeName": f"node-{number % 50}"}, "status": status}


def look(pool: TransceiverPool, state: str) -> TransceiverPoolSeen:
    size = pool.spec.replicas
    manifest = transceiver_deployment(pool, CLUSTER, DEFAULTS)
    pods = make_pods(size, state, manifest["spec"]["template"])
    lease = new_lease(CLUSTER, "usher", "fleet/voice", size, NOW)
    lease["metadata"]["resourceVersion"] = "1"
    return TransceiverPoolSeen(
        pods=pods,
        cluster_pod_ids=pod_ids(pods),
        loads={} if state == "new" else {pod.uid: make_load(place % 50) for place, pod in enumerate(pods)},
        deployment={
            **manifest,
            "metadata": {**manifest["metadata"], "uid": "d"},
            "spec": {**manifest["spec"], "replicas": size},
            "status": {"observedGeneration": 1},
        },
        children={f"{each['kind']}/{each['metadata']['name']}": each for each in transceiver_children(pool)},
        leases=(lease,),
    )


def make_load(sessions: int) -> Load:
    return Load(sessions=sessions, max_sessions=50, draining=False, accepts=True)


def measure(size: int, state: str, count: int) -> dict[str, float]:
    pool = make_pool(size, state)
    tracemalloc.start()
    seen = look(pool, state)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    plan_transceiver_pool(pool, seen, NOW, DEFAULTS)
    peak = tracemalloc.get_traced_memory()[1] - held
    tracemalloc.stop()
    best = float("inf")
    for _ in range(count):
        began = time.perf_counter()
        plan_transceiver_pool(pool, seen, NOW, DEFAULTS)
        best = min(best, time.perf_counter() - began)
    return {
        "ms": round(best * 1e3, 2),
        "us_per_pod": round(best * 1e6 / size, 2),
        "plan_mib": round(peak / MIB, 2),
        "pods_mib": round(held / MIB, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of the plan for a TransceiverPool, by its size.")
    parser.add_argument("--count", type=int, default=5, help="plans per line")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    if not options.json:
        print(_machine.line())
        print(f"{'state':10}{'pods':>8}{'ms':>10}{'µs/pod':>10}{'plan MiB':>10}{'pods MiB':>10}")
    for state in STATES:
        for size in SIZES:
            row = measure(size, state, options.count)
            if options.json:
                print(json.dumps({"state": state, "pods": size, **row}))
            else:
                print(f"{state:10}{size:>8}" + "".join(f"{value:>10}" for value in row.values()))


if __name__ == "__main__":
    main()
