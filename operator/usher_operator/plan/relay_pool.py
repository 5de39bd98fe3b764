"""What to do about a RelayPool: its workload, the way to it, and what its status says.

Relays own no calls, so Kubernetes' own rollouts do, and a relay that is told to end goes on until its flows have moved
(design D15). Only with the pool itself there is nowhere to move to: then they end on their own, or their time does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from usher_core.ids import join_host_port
from usher_operator.actions import Action, Apply, Plan
from usher_operator.api.common import seconds
from usher_operator.api.relay_pool import Address, RelayPool, RelayPoolStatus
from usher_operator.conditions import Verdict, merge, sentence, some
from usher_operator.names import (
    RELAY,
    RELAY_KEYS_SECRET,
    REVISION_LABEL,
    TRANSCEIVER_KEYS_SECRET,
    pool_labels,
    selector_of,
)
from usher_operator.plan.children import is_ours, key_of, leftovers, name_taken
from usher_operator.plan.defaults import Defaults
from usher_operator.plan.diagnosis import is_stuck, why_not_ready
from usher_operator.plan.relay_addresses import find_addresses, find_trunk_addresses
from usher_operator.plan.secret_refs import (
    holds_up,
    needed_by_redis,
    needed_keys,
    secret_forbidden,
    secret_missing,
    secrets_verdict,
)
from usher_operator.plan.trunk import cluster_id_conflict, peers_reachable, peers_up, trunk_ready
from usher_operator.pods_aside import tell_left, with_aside
from usher_operator.render.pod import child_name
from usher_operator.render.relay import (
    has_host_ports,
    image_of,
    keys_secret,
    namespaces,
    relay_children,
    relay_workload,
)
from usher_operator.render.revision import is_current
from usher_operator.seen import Json, PodSeen, RelayPoolSeen
from usher_operator.times import unix

LOOK_AGAIN_S = 5.0
"""Until the next look while something is on its way that no watch brings, such as an address."""
LATECOMERS_S = 10.0
"""Clients that were told the addresses just before the deletion have their first flow by then."""
_HOST_PORTS_ADMITTED = ("", "privileged")
"""Levels of Pod Security that admit pods with host ports; "" is a namespace without a level."""


def plan_relay_pool(pool: RelayPool, seen: RelayPoolSeen, now: float, defaults: Defaults) -> Plan:
    """Return what to do, and the status. Pure; `now` in Unix seconds.

    A deleted pool names no address any more, and stays as it is until no relay carries a flow or `drain.gracePeriod`
    is over; then Kubernetes removes Service, rights and relays all at once.
    """
    is_deleting = pool.metadata.deletion_timestamp is not None
    accepted, keys = _accepted(pool, seen, defaults), _keys(pool, seen)
    redis = [found] if (found := _redis(pool, seen)) else []
    trunk_addresses = [] if is_deleting else find_trunk_addresses(pool, seen)
    others = [found for found in (peers_reachable(pool, seen), trunk_ready(pool, seen, trunk_addresses)) if found]
    is_admitted = _is_admitted(pool, seen)
    addresses = _addresses(pool, seen, is_admitted=is_admitted)
    exposed = _exposed(pool, seen, addresses)
    may_change = accepted.status == "True" and is_admitted and not is_deleting and not pool.spec.paused
    manifest = relay_workload(pool, defaults) if accepted.status == "True" and is_admitted else None

    actions: list[Action] = _applies(pool, seen, manifest) if may_change and manifest is not None else []
    facts = _facts(pool, seen, manifest, image_of(pool, defaults))
    blockers = [verdict for verdict in (accepted, keys, *redis) if holds_up(verdict)]
    if not is_admitted:
        blockers.append(exposed)
    aside = [pod for pod in seen.pods if pod.is_aside]
    if is_deleting:
        actions += tell_left(aside)
    available, progressing = _available(facts, blockers), with_aside(_progressing(facts, blockers), aside)
    ready = _ready(facts, [*blockers, *([exposed] if exposed.status != "True" else [])])
    verdicts = [accepted, available, exposed, keys, progressing, ready, *redis, *others]
    is_well = all(each.status == "True" for each in (ready, *others))
    return Plan(
        tuple(actions),
        _status(facts, seen, addresses, trunk_addresses, verdicts, now),
        look_again=LOOK_AGAIN_S if not is_well and not is_deleting else None,
        done=is_deleting and _is_drained(pool, seen, now),
    )


def _addresses(pool: RelayPool, seen: RelayPoolSeen, *, is_admitted: bool) -> list[Address]:
    if pool.metadata.deletion_timestamp is not None:
        return []
    # Where relays may not have host ports, the last good state goes on, and so do its addresses.
    return find_addresses(pool, seen) if is_admitted else list(pool.status.addresses)


def _is_drained(pool: RelayPool, seen: RelayPoolSeen, now: float) -> bool:
    """Return whether nobody needs the relays of a deleted pool any more, or they have had their time."""
    age = now - unix(pool.metadata.deletion_timestamp or "")
    if age >= seconds(pool.spec.drain.grace_period):
        return True
    is_settled = age >= LATECOMERS_S or not any(pod.may_carry for pod in seen.pods)
    return is_settled and not _carrying(seen)


def _carrying(seen: RelayPoolSeen) -> list[PodSeen]:
    """Return relays that may carry flows, those set aside too: the Service that leads to them goes with the pool."""
    return [pod for pod in seen.pods if pod.may_carry and pod.uid not in seen.idle]


def _applies(pool: RelayPool, seen: RelayPoolSeen, workload: Json) -> list[Action]:
    there = {**seen.children, f"Service/{child_name(RELAY, pool.metadata.name)}": seen.service}
    children = relay_children(pool)
    stale = [child for child in children if seen.resend or not is_current(child, there.get(key_of(child)))]
    wanted, replicas = workload["spec"].get("replicas"), ((seen.workload or {}).get("spec") or {}).get("replicas")
    is_stale = seen.resend or not is_current(workload, seen.workload)
    if is_stale or (wanted is not None and replicas != wanted):
        stale.append(dict(workload))
    # A trunk that nobody wants any more must not stay open.
    return [*(Apply(each) for each in stale), *leftovers(pool, seen.children, children)]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the conditions about pods are made of.

    `revision`: of the template that pods shall have. `carrying`: relays of a deleted pool that don't say they are idle.
    """

    pool: RelayPool
    image: str
    workload: Json | None
    live: tuple[PodSeen, ...]
    wanted: int
    revision: str
    carrying: int

    @property
    def ready(self) -> int:
        """Relays that are ready."""
        return sum(pod.ready for pod in self.live)

    @property
    def updated(self) -> int:
        """Relays of the newest template."""
        return sum(pod.labels.get(REVISION_LABEL) == self.revision for pod in self.live)

    @property
    def is_rolling(self) -> bool:
        """Whether some relay has another template."""
        return self.updated < len(self.live)

    @property
    def trouble(self) -> tuple[str, str] | None:
        """Reason and message of what keeps relays from being ready."""
        return why_not_ready(self.live, self.workload, self.image)


def _facts(pool: RelayPool, seen: RelayPoolSeen, manifest: Json | None, image: str) -> _Facts:
    workload = seen.workload if is_ours(seen.workload, pool) else None
    template = ((manifest or workload or {}).get("spec") or {}).get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    live = tuple(pod for pod in seen.pods if pod.is_live)
    wanted = pool.spec.replicas
    if pool.spec.workload == "DaemonSet":
        wanted = ((workload or {}).get("status") or {}).get("desiredNumberScheduled") or len(live)
    return _Facts(pool, image, workload, live, wanted, labels.get(REVISION_LABEL, ""), len(_carrying(seen)))


def _accepted(pool: RelayPool, seen: RelayPoolSeen, defaults: Defaults) -> Verdict:
    if not image_of(pool, defaults):
        text = "No image: set spec.image, or the operator's setting for the image of relays."
        return Verdict("Accepted", "False", "NoImage", text)
    name = child_name(RELAY, pool.metadata.name)
    wanted = map(key_of, relay_children(pool))
    children = {key: seen.children.get(key) for key in wanted}
    children |= {f"{pool.spec.workload}/{name}": seen.workload, f"Service/{name}": seen.service}
    return (
        name_taken(children, pool)
        or cluster_id_conflict(pool, seen)
        or Verdict("Accepted", "True", "Accepted", "The spec can be carried out.")
    )


def _keys(pool: RelayPool, seen: RelayPoolSeen) -> Verdict:
    reference = pool.spec.keys.secret_ref
    if reference is not None:
        needed, namespace = needed_keys(pool), pool.metadata.namespace
        return (
            secret_missing("KeysReady", needed, seen, namespace)
            or secret_forbidden("KeysReady", "False", needed, seen, namespace)
            or _mixed_keys(pool, seen)
            or Verdict("KeysReady", "True", "KeysFound", f"Keys come from Secret {reference.name}.")
        )
    if seen.keys_fault:
        return Verdict("KeysReady", "False", "KeysNotReady", sentence(seen.keys_fault))
    others = [each for each in namespaces(pool) if each != pool.metadata.namespace]
    if others:
        text = (
            f"The transceivers in {', '.join(others)} have other keys than these relays, since the operator makes keys "
            "for each namespace: set spec.keys.secretRef of both pools to Secrets of yours."
        )
        return Verdict("KeysReady", "False", "OtherNamespace", text)
    if mixed := _mixed_keys(pool, seen):
        return mixed
    if seen.keys_note:
        return Verdict("KeysReady", "True", "Rotating", sentence(seen.keys_note))
    return Verdict("KeysReady", "True", "KeysFound", "The keys are there.")


def _redis(pool: RelayPool, seen: RelayPoolSeen) -> Verdict | None:
    """Return whether relays find what they need to reach Redis, which may be away all the same; None: they use none."""
    return secrets_verdict("RedisReady", needed_by_redis(pool), seen, pool.metadata.namespace)


def _mixed_keys(pool: RelayPool, seen: RelayPoolSeen) -> Verdict | None:
    """Return a KeysReady that names the TransceiverPools whose calls these relays can't read; None: there are none."""
    if pool.metadata.namespace not in namespaces(pool):
        return None
    own = keys_secret(pool)
    others = [
        name
        for name, secret in sorted(seen.transceiver_keys.items())
        if (secret == TRANSCEIVER_KEYS_SECRET) != (own == RELAY_KEYS_SECRET)
    ]
    if not others:
        return None
    text = (
        f"These relays have the keys of Secret {own}, and the transceivers of {some(others)} have keys of "
        "another source: set spec.keys.secretRef of all pools of the namespace, or of none."
    )
    return Verdict("KeysReady", "False", "MixedKeys", text)


def _is_admitted(pool: RelayPool, seen: RelayPoolSeen) -> bool:
    return not has_host_ports(pool) or seen.pod_security in _HOST_PORTS_ADMITTED


def _exposed(pool: RelayPool, seen: RelayPoolSeen, addresses: Sequence[Address]) -> Verdict:
    exposure, namespace = pool.spec.exposure, pool.metadata.namespace
    if pool.metadata.deletion_timestamp is not None:
        return Verdict("Exposed", "False", "Deleting", "The pool is being deleted: no answer names its addresses.")
    if not _is_admitted(pool, seen):
        text = (
            f"Pod Security {seen.pod_security} of namespace {namespace} forbids host ports: label the namespace "
            "pod-security.kubernetes.io/enforce=privileged, or choose another exposure.type. The last good state goes "
            "on."
        )
        return Verdict("Exposed", "False", "HostPortForbidden", text)
    if addresses:
        first = addresses[0]
        more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
        return Verdict("Exposed", "True", "Exposed", f"Clients reach the relays by {_endpoint(first)}{more}.")
    if exposure.advertised_addresses:
        text = f"None of {', '.join(exposure.advertised_addresses)} has an IP: check exposure.advertisedAddresses."
        return Verdict("Exposed", "False", "NameUnresolved", text)
    return Verdict("Exposed", "False", *_no_address(pool, seen))


def _endpoint(address: Address) -> str:
    return join_host_port(address.ip, address.port)


def _no_address(pool: RelayPool, seen: RelayPoolSeen) -> tuple[str, str]:
    kind, service = pool.spec.exposure.type, child_name(RELAY, pool.metadata.name)
    if kind == "LoadBalancer":
        status = ((seen.service or {}).get("status") or {}).get("loadBalancer") or {}
        hosts = [entry["hostname"] for entry in status.get("ingress") or () if entry.get("hostname")]
        if hosts:
            return "NameUnresolved", f"{', '.join(hosts)} of Service {service} has no IP yet."
        return "AddressPending", (
            f"Service {service} has no address yet. Where no load balancer gives one, choose another exposure.type or "
            "set exposure.advertisedAddresses."
        )
    if kind == "ClusterIP":
        return "AddressPending", f"Service {service} has no address yet."
    if not seen.nodes:
        return "NodesUnknown", (
            "The operator sees no nodes: let it list nodes (chart value rbac.readNodes), or set "
            "exposure.advertisedAddresses."
        )
    return "NoReadyRelay", "No node with an address has a ready relay."


def _available(facts: _Facts, blockers: Sequence[Verdict]) -> Verdict:
    if facts.ready or not facts.wanted:
        text = f"{facts.ready} of {facts.wanted} wanted relays are ready."
        return Verdict("Available", "True", "RelaysReady", text)
    return Verdict("Available", "False", *_lack(facts, blockers))


def _progressing(facts: _Facts, blockers: Sequence[Verdict]) -> Verdict:
    kind = "Progressing"
    if facts.pool.metadata.deletion_timestamp is not None:
        return Verdict(
            kind, "True", "Deleting", f"The pool is being deleted; relays that may carry flows: {facts.carrying}."
        )
    if facts.pool.spec.paused:
        return Verdict(kind, "False", "Paused", "spec.paused is true: nothing is changed until it is false.")
    if blockers:
        return Verdict(kind, "False", blockers[0].reason, blockers[0].message)
    if is_stuck(facts.workload):
        trouble = facts.trouble
        text = trouble[1] if trouble else "The Deployment makes no progress."
        return Verdict(kind, "False", "Stalled", f"{text} The relays of the last good template go on.")
    if facts.is_rolling:
        return Verdict(kind, "True", "RollingOut", _rollout(facts))
    if facts.ready < facts.wanted:
        return Verdict(kind, "True", "Scaling", f"{facts.ready} of {facts.wanted} relays are ready.")
    return Verdict(kind, "False", "Complete", "The pool is as it shall be.")


def _ready(facts: _Facts, blockers: Sequence[Verdict]) -> Verdict:
    if facts.pool.metadata.deletion_timestamp is not None:
        return Verdict("Ready", "False", "Deleting", "The pool is being deleted.")
    if blockers or facts.ready < facts.wanted:
        return Verdict("Ready", "False", *_lack(facts, blockers))
    if facts.is_rolling:
        trouble = facts.trouble
        reason, more = (trouble[0], f" {trouble[1]}") if trouble else ("RollingOut", "")
        return Verdict("Ready", "False", reason, _rollout(facts) + more)
    return Verdict("Ready", "True", "Ready", f"All {facts.wanted} wanted relays are ready, and clients reach them.")


def _lack(facts: _Facts, blockers: Sequence[Verdict]) -> tuple[str, str]:
    """Return reason and message of why relays are missing."""
    if blockers:
        return blockers[0].reason, blockers[0].message
    return facts.trouble or ("Scaling", f"{facts.ready} of {facts.wanted} wanted relays are ready.")


def _rollout(facts: _Facts) -> str:
    return f"{facts.updated} of {facts.wanted} relays have the newest template."


def _status(
    facts: _Facts,
    seen: RelayPoolSeen,
    addresses: Sequence[Address],
    trunk_addresses: list[str],
    verdicts: Sequence[Verdict],
    now: float,
) -> dict[str, Any]:
    pool = facts.pool
    found = RelayPoolStatus(
        observed_generation=pool.metadata.generation,
        desired_replicas=facts.wanted,
        replicas=len(facts.live),
        ready_replicas=facts.ready,
        updated_replicas=facts.updated,
        selector=selector_of(pool_labels(RELAY, pool.metadata.name)),
        addresses=list(addresses),
        endpoint=_endpoint(addresses[0]) if addresses else "",
        trunk_addresses=trunk_addresses,
        peers_up=peers_up(pool, seen),
        key_ids=[] if pool.spec.keys.secret_ref else list(seen.key_ids[:64]),
    )
    values = found.model_dump(by_alias=True, exclude_none=True)
    values["conditions"] = merge(verdicts, pool.status.conditions, pool.metadata.generation, now)
    return values
