"""A RelayPool with a trunk, with peers, or with both: what its relays are told, and what it says of other clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.operator_keys import NOW, pod
from tests.operator_relays import DEFAULTS, NODES, NOTHING, relay_pool, running, with_ingress
from usher_core.peers import MAX_PEERS, parse_peer_file
from usher_operator import names
from usher_operator.actions import Apply, Delete, Plan
from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.api.trunk import MAX_NEIGHBOURS
from usher_operator.loads import PodClient
from usher_operator.plan.relay_pool import plan_relay_pool
from usher_operator.plan.secret_refs import named_secrets
from usher_operator.render.relay import relay_children, relay_workload
from usher_operator.render.trunk import trunk_env
from usher_operator.seen import EndpointSeen, RelayPoolSeen, TrunksSeen
from usher_operator.trunk_looks import ask_relays, clusters_served
from usher_relay.settings import RelaySettings

LB = {"ip": "203.0.113.10"}
TRUNK = {"neighbours": [{"clusterID": 9, "keySecretRef": {"name": "usher-trunk-9"}}]}
PEERS = [
    {
        "clusterID": 1,
        "keySecretRef": {"name": "usher-trunk-1"},
        "endpoints": [{"address": "198.51.100.7:3479"}, {"address": "relays.example.com:3479", "weight": 2}],
    }
]
SECRETS = {"usher-trunk-1": frozenset({"keys.json"}), "usher-trunk-9": frozenset({"keys.json"})}
ADDRESSES = ("198.51.100.7:3479", "203.0.113.9:3479")


def says(relay: str = "edge-relay-1", up: str = "yy", held: str = "1:a", hop: int = 1, ice: str = "ab") -> TrunksSeen:
    """What a relay says: of each endpoint of cluster 1 whether it is up, and what is held there; its own keys."""
    endpoints = tuple(
        EndpointSeen(1, address, is_up == "y", frozenset(held.split()), 0.1)
        for address, is_up in zip(ADDRESSES, up, strict=True)
    )
    return TrunksSeen(relay, endpoints, frozenset({hop, 9}), {1: frozenset(ice)} if ice else {})


def at_ingress(*relays: TrunksSeen, **changes: Any) -> tuple[RelayPool, Plan]:
    pool = relay_pool(peers=PEERS)
    seen = with_ingress(pool, LB, **{"secrets": SECRETS, "trunks": relays, **changes})
    return pool, plan_relay_pool(pool, seen, NOW, DEFAULTS)


def at_home(trunk: dict[str, Any], service: dict[str, Any] | None = None, **changes: Any) -> Plan:
    pool = relay_pool(trunk=trunk)
    seen = with_ingress(pool, LB, **{"secrets": SECRETS, "trunks": (says(),), **changes})
    there = dict(seen.children["Service/edge-relay-trunk"])
    there["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.11"}]}} if service is None else {}
    there["spec"] = {**there["spec"], **(service or {})}
    seen = replace(seen, children={**seen.children, "Service/edge-relay-trunk": there})
    return plan_relay_pool(pool, seen, NOW, DEFAULTS)


def condition(outcome: Plan, kind: str) -> tuple[str, str, str]:
    found = next(each for each in outcome.status["conditions"] if each["type"] == kind)
    return found["status"], found["reason"], found["message"]


def child(kind: str, name: str, **spec: Any) -> Any:
    (found,) = (
        each for each in relay_children(relay_pool(**spec)) if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def pod_spec(**spec: Any) -> Any:
    return relay_workload(relay_pool(**spec), DEFAULTS)["spec"]["template"]["spec"]


# ---- what is made


def test_relays_are_told_what_their_settings_take(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in pod_spec(trunk=TRUNK, peers=PEERS)["containers"][0]["env"]:
        monkeypatch.setenv(each["name"], each["value"])
    settings = RelaySettings()
    assert (settings.trunk, settings.peers_file) == ("0.0.0.0:3479", Path("/etc/usher/peers/peers.json"))
    assert settings.trunk_keys_file == tuple(f"/etc/usher/trunk-keys/usher-trunk-{number}.json" for number in (1, 9))


def test_the_peers_file_is_one_and_another_endpoint_replaces_no_pod() -> None:
    config = child("ConfigMap", "edge-relay-peers", peers=PEERS)
    (peer,) = parse_peer_file(config["data"]["peers.json"]).peers
    assert peer.cluster == 1
    assert [(each.address, each.weight) for each in peer.endpoints] == [
        ("198.51.100.7:3479", 1),
        ("relays.example.com:3479", 2),
    ]
    other = [{**PEERS[0], "endpoints": [{"address": "192.0.2.1:3479"}]}]
    assert pod_spec(peers=other) == pod_spec(peers=PEERS)
    pool = relay_pool(peers=other)
    sent = plan_relay_pool(pool, running(relay_pool(peers=PEERS)), NOW, DEFAULTS).actions
    assert [each.manifest["kind"] for each in sent if isinstance(each, Apply)] == ["ConfigMap"]


def test_keys_of_trunks_are_mounted_as_files_that_may_be_missing() -> None:
    volumes = {each["name"]: each for each in pod_spec(trunk=TRUNK, peers=PEERS)["volumes"]}
    sources = [each["secret"] for each in volumes["trunk-keys"]["projected"]["sources"]]
    assert [(each["name"], each["optional"]) for each in sources] == [("usher-trunk-1", True), ("usher-trunk-9", True)]
    assert volumes["trunk-keys"]["projected"]["defaultMode"] == 0o440
    assert volumes["peers"]["configMap"] == {"name": "edge-relay-peers"}


def test_a_pool_without_trunk_and_peers_is_as_it_was() -> None:
    plain = pod_spec()
    assert {each["name"] for each in plain["volumes"]} == {"keys"}
    assert {each["name"] for each in plain["containers"][0]["ports"]} == {"media", "admin"}
    assert {each["kind"] for each in relay_children(relay_pool())} & {"ConfigMap"} == set()
    outcome = plan_relay_pool(relay_pool(), with_ingress(relay_pool(), LB), NOW, DEFAULTS)
    assert not {each["type"] for each in outcome.status["conditions"]} & {"TrunkReady", "PeersReachable"}
    assert (outcome.status["trunkAddresses"], outcome.status["peersUp"]) == ([], "")


def test_the_trunk_has_a_service_of_its_own_that_lets_in_whom_it_shall() -> None:
    exposure = {"loadBalancerClass": "internal", "annotations": {"cloud": "private"}}
    trunk = {"port": 4000, "exposure": exposure, "sourceRanges": ["203.0.113.0/24"]}
    service = child("Service", "edge-relay-trunk", trunk=trunk)
    assert service["metadata"]["annotations"] == {"cloud": "private"}
    assert service["spec"] == {
        "type": "LoadBalancer",
        "selector": names.pool_labels("relay", "edge"),
        "ports": [{"name": "trunk", "port": 4000, "targetPort": "trunk", "protocol": "UDP"}],
        "externalTrafficPolicy": "Local",
        "loadBalancerClass": "internal",
        "loadBalancerSourceRanges": ["203.0.113.0/24"],
    }
    assert [each["name"] for each in child("Service", "edge-relay", trunk=trunk)["spec"]["ports"]] == ["media"]


def test_a_trunk_at_the_ports_of_nodes() -> None:
    trunk = {**TRUNK, "port": 500, "exposure": {"type": "HostPort"}}
    spec = pod_spec(trunk=trunk)
    ports = {each["name"]: each for each in spec["containers"][0]["ports"]}
    assert (ports["trunk"].get("hostPort"), ports["media"].get("hostPort")) == (500, None)
    assert [each["name"] for each in spec["securityContext"]["sysctls"]] == ["net.ipv4.ip_unprivileged_port_start"]
    assert child("Service", "edge-relay-trunk", trunk=trunk)["spec"]["type"] == "ClusterIP"
    pool = relay_pool(trunk=trunk)
    assert (pool.spec.strategy.max_surge, pool.spec.strategy.max_unavailable) == (0, 1)
    refused = plan_relay_pool(pool, replace(NOTHING, pod_security="restricted"), NOW, DEFAULTS)
    assert condition(refused, "Exposed")[1] == "HostPortForbidden"


def test_a_trunk_or_peers_that_nobody_wants_any_more_do_not_stay() -> None:
    had = relay_pool(trunk=TRUNK, peers=PEERS)
    seen = running(had)
    there = {
        key: {**each, "metadata": {**each["metadata"], "uid": f"uid-{key}"}} for key, each in seen.children.items()
    }
    outcome = plan_relay_pool(relay_pool(), replace(seen, children=there), NOW, DEFAULTS)
    gone = {(each.target.kind, each.target.name) for each in outcome.actions if isinstance(each, Delete)}
    assert gone == {("Service", "edge-relay-trunk"), ("ConfigMap", "edge-relay-peers")}
    kept = plan_relay_pool(had, replace(seen, children=there), NOW, DEFAULTS)
    assert not [each for each in kept.actions if isinstance(each, Delete)]
    others = {key: {**each, "metadata": {**each["metadata"], "ownerReferences": []}} for key, each in there.items()}
    refused = plan_relay_pool(relay_pool(), replace(seen, children=others), NOW, DEFAULTS)
    assert not [each for each in refused.actions if isinstance(each, Delete)]


# ---- what a pool says of its trunk


@pytest.mark.parametrize(
    ("exposure", "service", "told"),
    [
        ({}, None, ["203.0.113.11:3479"]),
        ({}, {}, []),
        ({"type": "ClusterIP"}, {"clusterIP": "10.96.0.7"}, ["10.96.0.7:3479"]),
        ({"type": "NodePort"}, {"ports": [{"nodePort": 30479}]}, ["198.51.100.1:30479", "198.51.100.2:30479"]),
        ({"type": "HostPort"}, {}, ["198.51.100.1:3479", "198.51.100.2:3479"]),
    ],
)
def test_it_tells_what_others_name_as_endpoints(
    exposure: dict[str, Any], service: dict[str, Any] | None, told: list[str]
) -> None:
    outcome = at_home({**TRUNK, "exposure": exposure}, service, nodes=NODES)
    assert outcome.status["trunkAddresses"] == told
    status, reason, text = condition(outcome, "TrunkReady")
    assert (status, reason) == (("True", "Exposed") if told else ("False", "AddressPending"))
    assert told[0] in text if told else "edge-relay-trunk has no address yet" in text
    assert condition(outcome, "Ready")[0] == "True", "calls of its own cluster need no trunk"


def test_a_key_of_the_trunk_that_is_missing_is_named() -> None:
    outcome = at_home(TRUNK, secrets={})
    assert condition(outcome, "TrunkReady")[:2] == ("False", "SecretMissing")
    assert "Secret usher-trunk-9 of spec.trunk.neighbours[clusterID=9]" in condition(outcome, "TrunkReady")[2]
    without = replace(says(), hop=frozenset({1}))
    status, reason, text = condition(at_home(TRUNK, trunks=(says(), without)), "TrunkReady")
    assert (status, reason) == ("False", "KeyMissing")
    assert "cluster 9" in text
    assert condition(at_home(TRUNK, trunks=()), "TrunkReady")[:2] == ("Unknown", "NoAnswer")
    forbidden = at_home(TRUNK, secrets={}, secrets_forbidden=frozenset({"usher-trunk-9"}))
    assert condition(forbidden, "TrunkReady")[0] == "True", "the relays say that they hold it"


# ---- what a pool says of its peers


def test_peers_that_answer_are_reachable() -> None:
    _, outcome = at_ingress(says(), says("edge-relay-2", up="yn"))
    status, reason, text = condition(outcome, "PeersReachable")
    assert (status, reason) == ("True", "Reachable")
    assert text == "The relays reach cluster 1 by 2 addresses, not all by 203.0.113.9:3479."
    assert outcome.status["peersUp"] == "1/1"
    assert outcome.look_again is None


@pytest.mark.parametrize(
    ("wrong", "reason", "text"),
    [
        ({"up": "nn"}, "PeerDown", "No endpoint of cluster 1 answers"),
        ({"hop": 2}, "KeyMissing", "lack a hop key of the trunk to cluster 1"),
        ({"ice": ""}, "KeyMissing", "or ice keys that open its ufrags"),
        ({"held": "1:x 1:y"}, "OtherKeys", "unless two clusters have this id"),
        ({"held": "2:a"}, "OtherKeys", "What answers as cluster 1 holds none of the ice keys"),
        ({"held": ""}, "OtherKeys", "What answers as cluster 1 holds none of the ice keys"),
    ],
)
def test_what_is_wrong_with_a_peer_is_said_with_the_relays_that_see_it(
    wrong: dict[str, Any], reason: str, text: str
) -> None:
    _, outcome = at_ingress(says(), says("edge-relay-2", **wrong))
    status, found, message = condition(outcome, "PeersReachable")
    assert (status, found) == ("False", reason)
    assert text in message
    assert message.endswith("Seen at edge-relay-2.")
    assert condition(outcome, "Ready")[0] == "True", "calls of its own cluster need no peer"
    assert outcome.look_again is not None
    assert outcome.status["peersUp"] == ("0/1" if reason == "PeerDown" else "1/1")


def test_relays_take_the_key_files_of_as_many_trunks_as_a_pool_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    neighbours = [{"clusterID": 100 + n, "keySecretRef": {"name": f"from-{n}"}} for n in range(MAX_NEIGHBOURS)]
    peers = [{**PEERS[0], "clusterID": 200 + n, "keySecretRef": {"name": f"to-{n}"}} for n in range(MAX_PEERS)]
    told = trunk_env(relay_pool(trunk={"neighbours": neighbours}, peers=peers))
    env = {**told, "USHER_LISTEN": "1=127.0.0.1:0", "USHER_KEYS_FILE": "k", "USHER_ROUTES_FILE": "r"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert len(RelaySettings().trunk_keys_file) == MAX_PEERS + MAX_NEIGHBOURS == 128


def test_without_the_secret_or_an_answer_it_is_not_known() -> None:
    assert condition(at_ingress(says(), secrets={})[1], "PeersReachable")[:2] == ("False", "SecretMissing")
    assert condition(at_ingress()[1], "PeersReachable")[:2] == ("Unknown", "NoAnswer")
    assert at_ingress()[1].status["peersUp"] == "0/1"
    assert named_secrets(relay_pool(trunk=TRUNK, peers=PEERS)) == ["usher-trunk-1", "usher-trunk-9"]


@pytest.mark.parametrize("spec", [{"peers": PEERS}, {"trunk": {"neighbours": [{"clusterID": 1}]}}])
def test_another_cluster_with_an_id_of_ours_is_refused_and_what_runs_goes_on(spec: dict[str, Any]) -> None:
    pool = relay_pool(**spec)
    outcome = plan_relay_pool(pool, with_ingress(relay_pool(), LB, clusters={1: "voice"}), NOW, DEFAULTS)
    status, reason, text = condition(outcome, "Accepted")
    assert (status, reason) == ("False", "ClusterIDConflict")
    assert "has the id of TransceiverPool voice" in text
    assert not [each for each in outcome.actions if isinstance(each, Apply)]
    assert condition(outcome, "Ready")[1] == "ClusterIDConflict"
    assert outcome.status["readyReplicas"] == 2


# ---- how it is found out


def transceivers(name: str, cluster: int | None, **spec: Any) -> TransceiverPool:
    given = {"metadata": {"name": name, "namespace": "calls", "uid": name}, "spec": spec, "status": {}}
    return TransceiverPool.model_validate({**given, "status": {"clusterID": cluster} if cluster else {}})


def test_the_ids_of_a_pool_are_those_of_the_transceivers_that_it_selects() -> None:
    old = replace(
        pod("transceiver", "t"), labels={**names.child_labels("transceiver", "gone"), "usher.fleet/cluster-id": "7"}
    )
    pools = [transceivers("voice", 1), transceivers("music", None, clusterID=2), transceivers("new", None)]
    assert clusters_served(relay_pool(), [old], pools) == {1: "voice", 2: "music", 7: "gone"}
    selector = {"selector": {"matchLabels": {"usher.fleet/pool": "voice"}}}
    assert clusters_served(relay_pool(transceivers=selector), [old], pools) == {1: "voice"}
    nobody = {"selector": {"matchLabels": {"usher.fleet/pool": "none"}}}
    assert clusters_served(relay_pool(transceivers=nobody), [old], pools) == {}


async def test_relays_are_asked_for_peers_and_keys_and_who_is_silent_is_left_out() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "10.0.0.2":
            return httpx.Response(503)
        if request.url.path == "/keys":
            held = [
                {"list": "ice", "id": "a", "state": "active", "clusters": [1, 2]},
                {"list": "ice", "id": "b", "state": "retired", "clusters": [1]},
                {"list": "hop", "id": "1", "state": "active", "clusters": []},
                {"list": "hop", "id": "7", "state": "active", "clusters": [1]},
            ]
            return httpx.Response(200, json={"keys": held})
        peers = [
            {"cluster": 1, "address": "192.0.2.1:3479", "up": True, "held_ice": ["1:a"], "heard_s": 0.2, "loss": 0}
        ]
        return httpx.Response(200, json={"peers": peers, "routes": [], "limit": 1})

    client = PodClient(httpx.MockTransport(answer))
    pods = [pod("relay", "r1"), pod("relay", "r2", ip="10.0.0.2"), pod("relay", "r3", ready=False)]
    (seen,) = await ask_relays(client, pods)
    await client.close()
    assert seen == TrunksSeen(
        "r1",
        (EndpointSeen(1, "192.0.2.1:3479", True, frozenset({"1:a"}), 0.2),),
        frozenset({1}),
        {1: frozenset("a"), 2: frozenset("a")},
    )


def test_relays_without_any_transceiver_are_ready() -> None:
    """An ingress-only pool: its namespace has no TransceiverPool."""
    pool = relay_pool(peers=PEERS)
    seen: RelayPoolSeen = with_ingress(pool, LB, secrets=SECRETS, trunks=(says(),), clusters={})
    assert condition(plan_relay_pool(pool, seen, NOW, DEFAULTS), "Ready")[0] == "True"
