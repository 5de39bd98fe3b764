"""What trunks add to a RelayPool: a Service, the peers file, the keys, and what relays are told of them."""

from __future__ import annotations

from usher_core.peers import Endpoint, Peer, PeerFile
from usher_operator.api.exposure import PortExposure
from usher_operator.api.relay_pool import RelayPool
from usher_operator.names import KEYS_FILE, RELAY, pool_labels
from usher_operator.plan.secret_refs import needed_by_peers, needed_by_trunk
from usher_operator.render import pod
from usher_operator.render.pod import Json

TRUNK_PORT_NAME = "trunk"
PEERS_PATH = "/etc/usher/peers"
PEERS_FILE = "peers.json"
TRUNK_KEYS_PATH = "/etc/usher/trunk-keys"


def trunk_service_name(pool: RelayPool) -> str:
    """Return the name of the Service that leads relays of other clusters here."""
    return f"{pod.child_name(RELAY, pool.metadata.name)}-trunk"


def peers_name(pool: RelayPool) -> str:
    """Return the name of the ConfigMap with the peers file."""
    return f"{pod.child_name(RELAY, pool.metadata.name)}-peers"


def trunk_keys_secrets(pool: RelayPool) -> list[str]:
    """Return the names of the Secrets with keys of trunks, each once."""
    return sorted({each.secret for each in (*needed_by_peers(pool), *needed_by_trunk(pool))})


def trunk_children(pool: RelayPool) -> list[Json]:
    """Return the Service of the trunk and the ConfigMap of the peers, as far as the pool wants them."""
    return [*([_service(pool)] if pool.spec.trunk else []), *([_peers(pool)] if pool.spec.peers else [])]


def trunk_env(pool: RelayPool) -> dict[str, str]:
    """Return what relays are told of trunks."""
    told = {}
    if pool.spec.trunk is not None:
        told["USHER_TRUNK"] = f"0.0.0.0:{pool.spec.trunk.port}"
    if pool.spec.peers:
        told["USHER_PEERS_FILE"] = f"{PEERS_PATH}/{PEERS_FILE}"
    if secrets := trunk_keys_secrets(pool):
        told["USHER_TRUNK_KEYS_FILE"] = ",".join(f"{TRUNK_KEYS_PATH}/{_file_of(secret)}" for secret in secrets)
    return told


def trunk_mounts(pool: RelayPool) -> list[pod.Mount]:
    """Return the peers file and the keys of trunks, as directories that follow what changes."""
    mounts = []
    if pool.spec.peers:
        mounts.append(pod.Mount("peers", PEERS_PATH, {"configMap": {"name": peers_name(pool)}}))
    if secrets := trunk_keys_secrets(pool):
        # Optional: without a trunk's key only that trunk is missing, and no relay waits for it.
        sources = [
            {"secret": {"name": secret, "optional": True, "items": [{"key": KEYS_FILE, "path": _file_of(secret)}]}}
            for secret in secrets
        ]
        mounts.append(
            pod.Mount("trunk-keys", TRUNK_KEYS_PATH, {"projected": {"defaultMode": 0o440, "sources": sources}})
        )
    return mounts


def trunk_ports(pool: RelayPool) -> list[Json]:
    """Return the container port of the trunk."""
    trunk = pool.spec.trunk
    if trunk is None:
        return []
    port = {"name": TRUNK_PORT_NAME, "containerPort": trunk.port, "protocol": "UDP"}
    return [{**port, "hostPort": trunk.port} if trunk.exposure.type == "HostPort" else port]


def _file_of(secret: str) -> str:
    return f"{secret}.json"


def _peers(pool: RelayPool) -> Json:
    file = PeerFile(
        version=1,
        peers=tuple(
            Peer(
                cluster=peer.cluster_id,
                endpoints=tuple(Endpoint(address=each.address, weight=each.weight) for each in peer.endpoints),
            )
            for peer in pool.spec.peers
        ),
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": pod.child_metadata(pool, RELAY, peers_name(pool)),
        "data": {PEERS_FILE: file.model_dump_json(indent=2) + "\n"},
    }


def _service(pool: RelayPool) -> Json:
    trunk = pool.spec.trunk
    assert trunk is not None
    port: Json = {"name": TRUNK_PORT_NAME, "port": trunk.port, "targetPort": TRUNK_PORT_NAME, "protocol": "UDP"}
    service = service_of(pool, trunk.exposure, [port], trunk_service_name(pool))
    if trunk.source_ranges:
        service["spec"]["loadBalancerSourceRanges"] = list(trunk.source_ranges)
    return service


def service_of(pool: RelayPool, exposure: PortExposure, ports: list[Json], name: str | None = None) -> Json:
    """Return the Service that leads to some ports of the relays; the first one has the node port of the exposure."""
    # With HostPort nobody needs it from outside; it stays, so that a change of type never deletes an address.
    kind = "ClusterIP" if exposure.type == "HostPort" else exposure.type
    spec: Json = {"type": kind, "selector": pool_labels(RELAY, pool.metadata.name), "ports": ports}
    if kind != "ClusterIP":
        spec["externalTrafficPolicy"] = exposure.external_traffic_policy
        if exposure.node_port is not None:
            ports[0]["nodePort"] = exposure.node_port
    if kind == "LoadBalancer" and exposure.load_balancer_class is not None:
        spec["loadBalancerClass"] = exposure.load_balancer_class
    metadata = pod.child_metadata(pool, RELAY, name)
    if exposure.annotations:
        metadata["annotations"] = dict(exposure.annotations)
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
