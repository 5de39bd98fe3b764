"""RelayPools and what is seen of them, for tests: no API, no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.operator_keys import NOW, pod
from usher_operator.actions import Apply, Plan
from usher_operator.api.relay_pool import RelayPool
from usher_operator.plan.defaults import Defaults
from usher_operator.plan.relay_pool import plan_relay_pool
from usher_operator.render.relay import relay_workload
from usher_operator.seen import NodeSeen, RelayPoolSeen

DEFAULTS = Defaults("usher-relay:1", "usher-transceiver:1", "usher-system", 1000, 1999)
NOTHING = RelayPoolSeen(pods=(), workload=None, service=None, children={})
NODES = (
    NodeSeen("node-1", ("198.51.100.1", "2001:db8::1"), ready=True),
    NodeSeen("node-2", ("198.51.100.2",), ready=True),
    NodeSeen("node-3", ("198.51.100.3",), ready=False),
)


def relay_pool(status: Any = None, metadata: Any = None, **spec: Any) -> RelayPool:
    """Return a pool `edge` in namespace `calls`, as its JSON in the API says."""
    given = {"name": "edge", "namespace": "calls", "uid": "uid-pool", "generation": 3, **(metadata or {})}
    return RelayPool.model_validate({"metadata": given, "spec": spec, "status": status or {}})


def seen_after(pool: RelayPool, plan: Plan, seen: RelayPoolSeen = NOTHING) -> RelayPoolSeen:
    """Return what is there once a plan was carried out, pods aside."""
    for action in plan.actions:
        if isinstance(action, Apply):
            manifest = action.manifest
            if manifest["kind"] in ("Deployment", "DaemonSet"):
                seen = replace(seen, workload=manifest)
            elif manifest["kind"] == "Service" and not manifest["metadata"]["name"].endswith("-trunk"):
                seen = replace(seen, service=manifest)
            else:
                key = f"{manifest['kind']}/{manifest['metadata']['name']}"
                seen = replace(seen, children={**seen.children, key: manifest})
    return seen


def running(pool: RelayPool, **changes: Any) -> RelayPoolSeen:
    """Return a pool with two ready relays of its template, on node-1 and node-2, without an address."""
    template = relay_workload(pool, DEFAULTS)["spec"]["template"]
    pods = tuple(
        replace(pod("relay", f"edge-relay-{number}"), labels=template["metadata"]["labels"], node=f"node-{number}")
        for number in (1, 2)
    )
    seen = seen_after(pool, plan_relay_pool(pool, NOTHING, NOW, DEFAULTS))
    return replace(seen, pods=pods, **changes)


def with_ingress(pool: RelayPool, *entries: dict[str, str], **changes: Any) -> RelayPoolSeen:
    """Return a running pool whose load balancer has these addresses."""
    seen = running(pool, **changes)
    return replace(seen, service={**(seen.service or {}), "status": {"loadBalancer": {"ingress": list(entries)}}})
