"""The admin HTTP: probes, metrics with bounded labels, bounded lists."""

import asyncio
import re
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from usher_core.internal_api import HeldKeys
from usher_core.keys import HeldKey, KeyFile
from usher_core.routes import RouteTable
from usher_relay.admin import Admin
from usher_relay.counters import Counters, Drop, FlowEvent
from usher_relay.engine.interface import FlowView, RouteView, Snapshot, SocketStatus
from usher_relay.metrics import relay_registry
from usher_relay.trunk.endpoints import EndpointView
from usher_relay.trunk.peer_table import PeerTable
from usher_shell.watched_file import SourceStatus

SNAPSHOT = Snapshot(
    Counters(), 3, 2, 4, 7, 1, (HeldKey("ice", "u", "active"), HeldKey("ice", "u", "retired")), 0.1, 5.0
)
FLOW = FlowView("192.0.2.1:5000", 1, "1/17/0", "live", 0.5, None, "0000004d")


GOOD = SourceStatus("routes.json", loaded=True, age=0.05, fault="")


@dataclass
class FakeEngine:
    """An engine that says what the test wants."""

    name: str = "python"
    now: Snapshot = SNAPSHOT
    stuck: bool = False
    listening: dict[int, str] = field(default_factory=dict)
    store_door: None = None
    trunk: None = None

    def set_peers(self, table: PeerTable) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def set_routes(self, table: RouteTable) -> None: ...

    def set_keys(self, file: KeyFile) -> None: ...

    def snapshot(self) -> Snapshot:
        return self.now

    def sockets(self) -> list[SocketStatus]:
        return [SocketStatus("1", 4_194_304, 212_992, 17), SocketStatus("upstream", 1, 2, None)]

    def flows(self, limit: int) -> list[FlowView]:
        if self.stuck:
            raise TimeoutError
        return [FLOW] * min(limit, 5_000)

    def routes(self, limit: int) -> list[RouteView]:
        return [RouteView("1/17/0", "10.1.0.17:7200", 1372, 5, 6)] * min(limit, 5_000)


@dataclass
class Rig:
    engine: FakeEngine = field(default_factory=FakeEngine)
    source: SourceStatus = GOOD
    leaving: bool = False
    local: bool = False
    peers: tuple[EndpointView, ...] | None = None
    round_trips: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sources = {"routes": lambda: self.source, "keys": lambda: self.source}
        registry = relay_registry(self.engine, sources)
        peers = None if self.peers is None else lambda: self.peers or ()
        admin = Admin(
            self.engine,
            lambda: self.source,
            lambda: self.leaving,
            registry,
            peers=peers,
            round_trip=self.round_trips.get,
            local=self.local,
        )
        self.app = admin.app()

    def get(self, path: str, method: str = "GET", host: str = "relay", **params: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                return await client.request(method, path, params=params or None)

        return asyncio.run(ask())

    def status(self, path: str) -> int:
        return self.get(path).status_code

    def metrics(self) -> dict[str, float]:
        lines = self.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize("path", ["/flows", "/routes", "/metrics", "/livez", "/readyz"])
def test_on_loopback_it_answers_only_under_a_loopback_name(path: str) -> None:
    rig = Rig(local=True)
    for host in ("127.0.0.1:9478", "localhost:9478", "[::1]:9478", "127.8.9.1"):
        assert rig.get(path, host=host).status_code == 200
    for host in ("rebound.example:9478", "127.0.0.1.example", "192.0.2.1:9478"):
        refused = rig.get(path, host=host)
        assert refused.status_code == 403
        assert "127.0.0.1" in refused.text


def test_elsewhere_it_answers_under_any_name(rig: Rig) -> None:
    assert rig.get("/flows", host="10.1.2.3:9478").status_code == 200


def test_a_relay_that_goes_round_is_live_and_ready(rig: Rig) -> None:
    assert (rig.status("/livez"), rig.status("/readyz")) == (200, 200)


def test_a_data_thread_that_is_stuck_is_neither(rig: Rig) -> None:
    rig.engine.now = replace(SNAPSHOT, heartbeat_age=6.0)
    assert (rig.status("/livez"), rig.status("/readyz")) == (503, 503)
    assert "stuck for 6 s" in rig.get("/livez").text


def test_without_a_route_table_it_is_live_but_not_ready(rig: Rig) -> None:
    rig.source = SourceStatus("routes.json", loaded=False, age=None, fault="cannot read")
    assert (rig.status("/livez"), rig.status("/readyz")) == (200, 503)
    assert "no route table" in rig.get("/readyz").text


def test_a_lost_route_source_and_an_old_table_do_not_make_it_unready(rig: Rig) -> None:
    rig.source = SourceStatus("routes.json", loaded=True, age=86_400.0, fault="cannot read")
    assert rig.status("/readyz") == 200


def test_neither_do_drops_and_a_full_table(rig: Rig) -> None:
    rig.engine.now.counters.drops[Drop.SEND_AGAIN] = 1_000_000
    rig.engine.now = replace(SNAPSHOT, flows_confirmed=100_000)
    assert rig.status("/readyz") == 200


def test_leaving_makes_it_unready_but_not_dead(rig: Rig) -> None:
    rig.leaving = True
    assert (rig.status("/livez"), rig.status("/readyz")) == (200, 503)


def test_metrics_tell_what_is_asked_for(rig: Rig) -> None:
    rig.engine.now = replace(
        SNAPSHOT, counters=Counters(tentative=4, split=5, hop_time_offset_ms=-250, waiting_bytes=6)
    )
    counters = rig.engine.now.counters
    counters.uplink.forwarded, counters.uplink.forwarded_bytes, counters.downlink.received = 11, 12, 13
    counters.drops[Drop.INTEGRITY] = 14
    counters.questions, counters.found_by_address, counters.found_by_ssrc = 21, 22, 23
    counters.flow_events[FlowEvent.ROAMED] = 15
    metrics = rig.metrics()
    for name, value in {
        'usher_relay_engine_info{engine="python"}': 1,
        'usher_relay_packets_total{direction="uplink"}': 11,
        'usher_relay_bytes_total{direction="uplink"}': 12,
        'usher_relay_received_total{direction="downlink"}': 13,
        'usher_relay_drops_total{reason="integrity"}': 14,
        'usher_relay_flow_events_total{event="roamed"}': 15,
        'usher_relay_flows{state="confirmed"}': 3,
        'usher_relay_flows{state="probation"}': 2,
        "usher_relay_routes": 7,
        "usher_relay_routes_unreachable": 1,
        "usher_relay_routes_age_seconds": 0.05,
        "usher_relay_routes_source_up": 1,
        "usher_relay_keys_source_up": 1,
        'usher_relay_keys{id="u",list="ice",state="active"}': 1,
        'usher_relay_receive_buffer_bytes{socket="1"}': 4_194_304,
        'usher_relay_send_buffer_bytes{socket="upstream"}': 2,
        'usher_relay_kernel_drops_total{socket="1"}': 17,
        "usher_relay_hop_time_offset_seconds": -0.25,
        "usher_relay_tentative_total": 4,
        "usher_relay_split_total": 5,
        'usher_relay_lookups_total{event="asked"}': 21,
        'usher_relay_lookups_total{event="found_address"}': 22,
        'usher_relay_lookups_total{event="found_ssrc"}': 23,
        "usher_relay_waiting_bytes": 6,
        "usher_relay_heartbeat_age_seconds": 0.1,
    }.items():
        assert metrics[name] == value, name
    assert 'usher_relay_kernel_drops_total{socket="upstream"}' not in metrics


def test_labels_are_bounded_and_hold_no_address_and_no_ufrag(rig: Rig) -> None:
    names = set(rig.metrics())
    labels = {label for name in names for label in re.findall(r'(\w+)="', name)}
    assert labels == {"direction", "engine", "event", "id", "list", "reason", "socket", "state"}
    assert len(names) < 100
    text = rig.get("/metrics").text
    assert "192.0.2" not in text
    assert "10.1.0" not in text


def test_a_lost_source_shows_in_the_metrics(rig: Rig) -> None:
    rig.source = SourceStatus("routes.json", loaded=True, age=12.5, fault="cannot read")
    metrics = rig.metrics()
    assert metrics["usher_relay_routes_source_up"] == 0
    assert metrics["usher_relay_routes_age_seconds"] == 12.5


@pytest.mark.parametrize("name", ["flows", "routes"])
@pytest.mark.parametrize(("query", "count"), [("", 100), ("?limit=1", 1), ("?limit=1000", 1000)])
def test_lists_are_bounded(rig: Rig, name: str, query: str, count: int) -> None:
    answer: dict[str, Any] = rig.get(f"/{name}{query}").json()
    assert len(answer[name]) == count
    assert answer["limit"] == count


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "", "9" * 50, "\u0661"])
def test_a_limit_out_of_bounds_is_refused(rig: Rig, limit: str) -> None:
    answer = rig.get("/flows", limit=limit)
    assert answer.status_code == 400
    assert "1..1000" in answer.text


def test_flows_and_routes_show_what_a_person_needs(rig: Rig) -> None:
    (flow,) = rig.get("/flows?limit=1").json()["flows"]
    assert flow["client"] == "192.0.2.1:5000"
    assert (flow["route"], flow["state"], flow["alive_age"]) == ("1/17/0", "live", None)
    answer = rig.get("/routes?limit=1").json()
    assert answer["routes"][0]["udp"] == "10.1.0.17:7200"
    assert answer["source"]["loaded"] is True


@pytest.mark.parametrize(("idle", "told"), [(float("inf"), None), (2.00049, 2.0)])
def test_flows_are_told_with_how_long_ago_any_showed_life(rig: Rig, idle: float, told: float | None) -> None:
    rig.engine.now = replace(SNAPSHOT, idle=idle)
    assert rig.get("/flows").json()["idle"] == told


def test_it_tells_which_keys_it_holds(rig: Rig) -> None:
    held = HeldKeys.model_validate(rig.get("/keys").json())
    assert held.keys == SNAPSHOT.keys


def test_a_data_thread_that_does_not_answer_is_said_so(rig: Rig) -> None:
    rig.engine.stuck = True
    assert rig.status("/flows") == 503


def test_only_get(rig: Rig) -> None:
    assert rig.get("/flows", "POST").status_code == 405
    assert rig.status("/") == 404


def test_routes_show_the_round_trip_to_each_transceiver_where_it_is_known(rig: Rig) -> None:
    assert rig.get("/routes", limit="1").json()["routes"][0]["rtt_ms"] is None
    (shown,) = Rig(round_trips={"1/17/0": 0.42}).get("/routes", limit="1").json()["routes"]
    assert (shown["route"], shown["rtt_ms"]) == ("1/17/0", 0.42)


def test_routes_show_how_the_endpoints_of_peers_are_where_there_are_peers(rig: Rig) -> None:
    assert "peers" not in rig.get("/routes").json()
    view = EndpointView(
        2, "198.51.100.7:3479", True, True, 20.4, 0.05, 20, 19, held_ice=("2:u",), held_hop=(3, 4), heard_s=0.12
    )
    (shown,) = Rig(peers=(view,)).get("/routes").json()["peers"]
    assert (shown["cluster"], shown["address"], shown["up"], shown["rtt_ms"]) == (2, "198.51.100.7:3479", True, 20.4)
    assert (shown["held_ice"], shown["held_hop"], shown["heard_s"]) == (["2:u"], [3, 4], 0.12)
