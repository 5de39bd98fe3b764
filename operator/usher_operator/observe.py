"""Reads what plans look at: pods from the watch, everything else fresh from the API server."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog
from pydantic import ValidationError

from usher_core.errors import LocalError
from usher_core.internal_api import parse_token
from usher_operator import names
from usher_operator.actions import Reference
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.identity.cluster_ids import candidates
from usher_operator.identity.lease import ClusterLease, read_leases
from usher_operator.kube import ForbiddenError, KubeApi
from usher_operator.loads import Loads
from usher_operator.plan.children import is_owned, key_of
from usher_operator.plan.secret_refs import named_secrets
from usher_operator.render.pod import child_name
from usher_operator.render.relay import namespaces
from usher_operator.render.trunk import peers_name, trunk_service_name
from usher_operator.resends import Resends
from usher_operator.seen import NodeSeen, PodSeen, RelayPoolSeen, TransceiverPoolSeen, pod_ids
from usher_operator.times import unix
from usher_operator.trunk_looks import ask_relays, clusters_served

log = structlog.get_logger()

Json = dict[str, Any]
POD_SECURITY_LABEL = "pod-security.kubernetes.io/enforce"
_COMPONENTS = {RelayPool.kind: names.RELAY, TransceiverPool.kind: names.TRANSCEIVER}
MAX_ADDRESSES = 4
MAX_HOSTS = 64
RESOLVE_S = 3.0
RESOLVE_AGAIN_S = 30.0
MAX_HOLDERS = 64
"""Holders of cluster ids that are looked up in one look."""


Pool = RelayPool | TransceiverPool
PoolT = TypeVar("PoolT", RelayPool, TransceiverPool)


class Pods(Protocol):
    """The pods that we watch."""

    def of_pool(self, namespace: str, component: str, pool: str) -> tuple[PodSeen, ...]:
        """Return the pods of a pool, by name."""
        ...

    def of_cluster(self, cluster: str) -> tuple[PodSeen, ...]:
        """Return all pods that carry a cluster id."""
        ...

    def of_namespace(self, namespace: str) -> tuple[PodSeen, ...]:
        """Return all pods of a namespace."""
        ...


@dataclass(frozen=True, slots=True)
class KeysView:
    """What a pool has to know of the keys of its namespace."""

    key_ids: tuple[str, ...] = ()
    fault: str = ""
    note: str = ""
    transceiver_keys: Mapping[str, str] = field(default_factory=dict)


def pod_seen(body: Mapping[str, Any]) -> PodSeen:
    """Return what plans use of a pod's JSON."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    conditions = status.get("conditions") or ()
    # The main container is the first one that we render; others come from injectors.
    containers = status.get("containerStatuses") or ()
    waiting: Json = next((c["state"]["waiting"] for c in containers if (c.get("state") or {}).get("waiting")), {})
    deleted_at = metadata.get("deletionTimestamp")
    return PodSeen(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        labels=dict(metadata.get("labels") or {}),
        annotations=_own_annotations(metadata.get("annotations") or {}),
        has_annotations="annotations" in metadata,
        created_at=unix(metadata["creationTimestamp"]),
        deleted_at=unix(deleted_at) if deleted_at else None,
        phase=status.get("phase", "Pending"),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        ip=status.get("podIP") or "",
        node=spec.get("nodeName") or "",
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        waiting_reason=waiting.get("reason", ""),
        restarts=sum(int(container.get("restartCount", 0)) for container in containers),
        has_controller=any(owner.get("controller") for owner in metadata.get("ownerReferences") or ()),
        is_up=_is_up(metadata.get("labels") or {}, containers),
    )


def _is_up(labels: Mapping[str, str], containers: Iterable[Json]) -> bool:
    """Return whether the main container runs and its startup probe has passed; True where that can't be told."""
    main = next((each for each in containers if each.get("name") == labels.get(names.COMPONENT_LABEL)), None)
    if main is None:
        return True
    return "running" in (main.get("state") or {}) and main.get("started") is not False


def _own_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that we write; others may be large, and there are many pods."""
    ours = (names.DELETION_COST_ANNOTATION, names.AUTOSCALER_SAFE_ANNOTATION, names.KARPENTER_ANNOTATION)
    return {key: value for key, value in annotations.items() if key in ours or key.startswith(names.GROUP + "/")}


def is_deleting(pool: Pool) -> bool:
    """Return whether the pool is on its way out."""
    return pool.metadata.deletion_timestamp is not None


async def readable_pools(api: KubeApi, model: type[PoolT], namespace: str) -> dict[str, PoolT]:
    """Return the pools of a kind in a namespace that make sense, by name. Raises KubeError."""
    found = {}
    for body in await api.select(names.API_VERSION, model.kind, namespace):
        # One that makes no sense is passed over; its own look says so in its status.
        with contextlib.suppress(ValidationError):
            pool = model.model_validate(body)
            found[pool.metadata.name] = pool
    return found


class Observer:
    """Builds what plans see.

    Args:
        api: the API server.
        pods: the pods we watch.
        loads: of transceivers, and of relays that shall go.
        resolver: host names to IPs.
        resends: when children are sent again.
        identity_namespace: where the Leases of cluster ids are.
    """

    def __init__(
        self, api: KubeApi, pods: Pods, loads: Loads, resolver: Resolver, resends: Resends, identity_namespace: str
    ) -> None:
        self._api = api
        self._pods = pods
        self._loads = loads
        self._resolver = resolver
        self._resends = resends
        self._identity_namespace = identity_namespace

    def pods_of(self, kind: str, namespace: str, pool: str) -> tuple[PodSeen, ...]:
        """Return the pods of a pool that end with it, whatever its spec."""
        pods = self._pods.of_pool(namespace, _COMPONENTS[kind], pool)
        return tuple(pod for pod in pods if pod.has_controller)

    async def workloads(self, kind: str, namespace: str, pool: str, uid: str) -> list[Json]:
        """Return what makes the pods of a pool, whatever its spec. Raises KubeError."""
        child = child_name(_COMPONENTS[kind], pool)
        targets = [Reference("apps/v1", each, namespace, child) for each in ("Deployment", "DaemonSet")]
        found = await _gather([self._api.get(target) for target in targets])
        return [each for each in found if each is not None and is_owned(each, uid)]

    def waiting(self, pool: TransceiverPool) -> tuple[PodSeen, ...]:
        """Return the pods of a pool that wait for an id."""
        pods = self._pods.of_pool(pool.metadata.namespace, names.TRANSCEIVER, pool.metadata.name)
        return tuple(pod for pod in pods if names.POD_ID_GATE in pod.gates and pod.is_live)

    async def transceiver_pool(self, pool: TransceiverPool, keys: KeysView, token: str | None) -> TransceiverPoolSeen:
        """Read everything around a TransceiverPool. Raises KubeError.

        Args:
            pool: the pool.
            keys: of its namespace.
            token: opens its transceivers; None: ask none of them, so that nothing but the API server is waited for.
        """
        namespace, name = pool.metadata.namespace, pool.metadata.name
        child = child_name(names.TRANSCEIVER, name)
        wanted = [
            Reference("apps/v1", "Deployment", namespace, child),
            Reference("v1", "Service", namespace, child),
            Reference("policy/v1", "PodDisruptionBudget", namespace, child),
            Reference("v1", "ServiceAccount", namespace, child),
            Reference("v1", "ConfigMap", namespace, f"{child}-backend"),
        ]
        (deployment, *others), leases, (there, forbidden) = await _all(
            _gather([self._api.get(target) for target in wanted]),
            self._cluster_leases(),
            self._secrets(namespace, named_secrets(pool)),
        )
        pods = self._pods.of_pool(namespace, names.TRANSCEIVER, name)
        holders = await self._holders(leases)
        clusters = candidates(pool, leases)
        live = [pod for pod in pods if pod.is_live]
        # Who ends is chosen by loads, so they must not be old then.
        is_choosing = len(live) > pool.spec.replicas
        urgent = frozenset(
            pod.uid
            for pod in pods
            if is_choosing or pod.is_ending or pod.labels.get(names.STATE_LABEL) == names.DRAINING
        )
        return TransceiverPoolSeen(
            pods=pods,
            cluster_pod_ids=pod_ids(pod for each in clusters for pod in self._pods.of_cluster(str(each))),
            loads={} if token is None else await self._loads.look(pods, pool.spec.media.http_port, token, urgent),
            deployment=deployment,
            children=_by_key(others),
            leases=tuple(lease.manifest for lease in leases),
            holders=holders,
            secrets=there,
            secrets_forbidden=forbidden,
            key_ids=keys.key_ids,
            keys_fault=keys.fault,
            keys_note=keys.note,
            resend=token is not None and self._resends.is_due(pool.metadata.uid),
        )

    async def relay_pool(self, pool: RelayPool, keys: KeysView) -> RelayPoolSeen:
        """Read everything around a RelayPool. Raises KubeError."""
        namespace, name = pool.metadata.namespace, pool.metadata.name
        child = child_name(names.RELAY, name)
        wanted = [
            Reference("apps/v1", pool.spec.workload, namespace, child),
            Reference("v1", "Service", namespace, child),
            Reference("policy/v1", "PodDisruptionBudget", namespace, child),
            Reference("v1", "ServiceAccount", namespace, child),
            Reference("rbac.authorization.k8s.io/v1", "Role", namespace, child),
            Reference("rbac.authorization.k8s.io/v1", "RoleBinding", namespace, child),
            Reference("v1", "Service", namespace, trunk_service_name(pool)),
            Reference("v1", "ConfigMap", namespace, peers_name(pool)),
        ]
        knows_others = bool(pool.spec.peers or pool.spec.trunk)
        is_at_nodes = any(each.type in ("NodePort", "HostPort") for each in pool.spec.exposures)
        pods = self._pods.of_pool(namespace, names.RELAY, name)
        (workload, service, *others), (there, forbidden), security, nodes, clusters, trunks = await _all(
            _gather([self._api.get(target) for target in wanted]),
            self._secrets(namespace, named_secrets(pool)),
            self._pod_security(namespace),
            self._nodes() if is_at_nodes else _nothing(),
            self._clusters_served(pool) if knows_others else _no_clusters(),
            ask_relays(self._loads.client, pods if knows_others else ()),
        )
        return RelayPoolSeen(
            pods=pods,
            workload=workload,
            service=service,
            children=_by_key(others),
            idle=await self._loads.idle_relays(pods, names.ADMIN_PORT) if is_deleting(pool) else frozenset(),
            nodes=nodes,
            pod_security=security,
            resolved=await self._resolver.look(host_names(pool, service)),
            secrets=there,
            secrets_forbidden=forbidden,
            key_ids=keys.key_ids,
            keys_fault=keys.fault,
            keys_note=keys.note,
            transceiver_keys=keys.transceiver_keys,
            clusters=clusters,
            trunks=trunks,
            resend=self._resends.is_due(pool.metadata.uid),
        )

    async def _clusters_served(self, pool: RelayPool) -> dict[int, str]:
        pods: list[PodSeen] = []
        pools: list[TransceiverPool] = []
        for namespace in namespaces(pool):
            pods += (pod for pod in self._pods.of_namespace(namespace) if _is_transceiver(pod))
            with contextlib.suppress(ForbiddenError):
                pools += (await readable_pools(self._api, TransceiverPool, namespace)).values()
        return clusters_served(pool, pods, pools)

    async def token(self, namespace: str, secret: str) -> str:
        """Return the internal token in a Secret, "" when there is none that can be used. Raises KubeError.

        A Secret that we may not read is the user's, and the pool's condition KeysReady says so.
        """
        try:
            found = await self._api.get(Reference("v1", "Secret", namespace, secret))
        except ForbiddenError:
            return ""
        data = ((found or {}).get("data") or {}).get(names.TOKEN_FILE, "")
        try:
            return parse_token(base64.b64decode(data).decode())
        except (LocalError, binascii.Error, UnicodeDecodeError):
            return ""

    async def _cluster_leases(self) -> Sequence[ClusterLease]:
        leases = await self._api.select("coordination.k8s.io/v1", "Lease", self._identity_namespace)
        return list(read_leases(leases).values())

    async def _holders(self, leases: Sequence[ClusterLease]) -> frozenset[str]:
        """Return the holders that may still need their cluster id.

        More of them than we look up count as there, and so do those that we may not look up.
        """
        claimed = sorted({lease.holder for lease in leases if "/" in lease.holder})
        gone = [holder for holder in claimed if not self._pods.of_pool(*_split(holder))][:MAX_HOLDERS]
        found = await _gather([self._exists(holder) for holder in gone])
        return frozenset(claimed) - {holder for holder, exists in zip(gone, found, strict=True) if not exists}

    async def _exists(self, holder: str) -> bool:
        namespace, _, name = holder.partition("/")
        target = Reference(names.API_VERSION, TransceiverPool.kind, namespace, name)
        return await self._is_there(target) is not False

    async def _is_there(self, target: Reference) -> bool | None:
        """Return whether an object exists; None: we may not know."""
        try:
            return await self._api.get(target) is not None
        except ForbiddenError:
            return None

    async def _secrets(self, namespace: str, wanted: Sequence[str]) -> tuple[dict[str, frozenset[str]], frozenset[str]]:
        """Return the keys in those that exist, and the names of those that we may not read."""
        looks = await _gather([self._keys_in(namespace, name) for name in wanted])
        there = {name: keys for name, (_, keys) in zip(wanted, looks, strict=True) if keys is not None}
        return there, frozenset(name for name, (may_read, _) in zip(wanted, looks, strict=True) if not may_read)

    async def _keys_in(self, namespace: str, secret: str) -> tuple[bool, frozenset[str] | None]:
        """Return whether we may read a Secret, and its keys that have a value; None: there is none, or who knows."""
        try:
            found = await self._api.get(Reference("v1", "Secret", namespace, secret))
        except ForbiddenError:
            return False, None
        if found is None:
            return True, None
        return True, frozenset(key for key, value in (found.get("data") or {}).items() if value)

    async def _pod_security(self, namespace: str) -> str:
        with contextlib.suppress(ForbiddenError):
            found = await self._api.get(Reference("v1", "Namespace", "", namespace))
            labels = ((found or {}).get("metadata") or {}).get("labels") or {}
            return str(labels.get(POD_SECURITY_LABEL, ""))
        return ""

    async def _nodes(self) -> tuple[NodeSeen, ...]:
        with contextlib.suppress(ForbiddenError):
            return tuple(map(node_seen, await self._api.select("v1", "Node", "")))
        return ()


class Resolver:
    """Resolves host names of load balancers; the last good answer stays.

    Args:
        clock: seconds that only go forward.
        resolve: IPs of a host name; raises OSError.
    """

    def __init__(
        self, clock: Callable[[], float], resolve: Callable[[str], Awaitable[Sequence[str]]] | None = None
    ) -> None:
        self._clock = clock
        self._resolve = resolve or _resolve
        self._known: dict[str, tuple[tuple[str, ...], float]] = {}

    async def look(self, hosts: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the IPs by host name, at most MAX_ADDRESSES each; a name that never resolved is missing."""
        wanted = sorted(set(hosts))[:MAX_HOSTS]
        now = self._clock()
        due = [host for host in wanted if host not in self._known or now - self._known[host][1] >= RESOLVE_AGAIN_S]
        await _gather([self._ask(host) for host in due])
        while len(self._known) > MAX_HOSTS:
            del self._known[min(self._known, key=lambda host: self._known[host][1])]
        return {host: ips for host in wanted if (ips := self._known.get(host, ((), 0.0))[0])}

    async def _ask(self, host: str) -> None:
        last = self._known.get(host, ((), 0.0))[0]
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await self._resolve(host)
            answer = tuple(sorted(set(found), key=_version_and_value)[:MAX_ADDRESSES])
        except (OSError, TimeoutError, UnicodeError) as error:
            log.warning("a host name does not resolve", host=host, error=str(error) or "no answer in time")
            answer = last
        self._known[host] = (answer or last, self._clock())


async def _resolve(host: str) -> Sequence[str]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    return [str(info[4][0]) for info in infos]


def _version_and_value(ip: str) -> tuple[int, int]:
    address = ipaddress.ip_address(ip)
    return address.version, int(address)


def host_names(pool: RelayPool, service: Json | None) -> list[str]:
    """Return the names that have to be resolved: of the spec, or else of the Service's load balancer."""
    entries = list(pool.spec.exposure.advertised_addresses)
    if not entries:
        status = (service or {}).get("status") or {}
        ingress = (status.get("loadBalancer") or {}).get("ingress") or ()
        return [entry["hostname"] for entry in ingress if entry.get("hostname") and not entry.get("ip")]
    hosts = (entry.rpartition(":")[0] if entry.count(":") == 1 else entry for entry in entries)
    return [host for host in hosts if not _is_ip(host.strip("[]")) and not host.startswith("[")]


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def node_seen(node: Json) -> NodeSeen:
    """Return what plans use of a node's JSON."""
    status = node.get("status") or {}
    by_type: dict[str, list[str]] = {}
    for address in status.get("addresses") or ():
        by_type.setdefault(address["type"], []).append(address["address"])
    conditions = status.get("conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return NodeSeen(
        node["metadata"]["name"], tuple(by_type.get("ExternalIP") or by_type.get("InternalIP") or ()), ready
    )


def _by_key(children: Iterable[Json | None]) -> dict[str, Json]:
    return {key_of(child): child for child in children if child is not None}


def _split(holder: str) -> tuple[str, str, str]:
    namespace, _, name = holder.partition("/")
    return namespace, names.TRANSCEIVER, name


async def _nothing() -> tuple[NodeSeen, ...]:
    return ()


async def _no_clusters() -> dict[int, str]:
    return {}


def _is_transceiver(pod: PodSeen) -> bool:
    return pod.labels.get(names.COMPONENT_LABEL) == names.TRANSCEIVER


async def _gather(work: Sequence[Awaitable[Any]]) -> list[Any]:
    """Do all at once; the first error ends the others, too."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _all(*work: Awaitable[Any]) -> Any:
    return await _gather(work)
