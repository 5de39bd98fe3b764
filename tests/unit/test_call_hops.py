"""The hops of a call's path, out of what relays tell of themselves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.virtual_loop import run_virtual
from usher_core.errors import RemoteError
from usher_core.internal_api import SessionPath
from usher_signaling.errors import ApiError
from usher_signaling.hops import RelayWays, hops_of, read_ways
from usher_signaling.metrics import Metrics
from usher_signaling.relay_pages import MAX_PAGE, MAX_UNDER_WAY, RelayPages

PATH = SessionPath(listener=1, cluster=2, pod=17, worker=0)


def flow(route: str = "2/17/0", listener: int = 1) -> dict[str, Any]:
    return {"client": "192.0.2.1:4000", "listener": listener, "route": route, "state": "confirmed"}


def peer(rtt_ms: float | None, cluster: int = 2, **more: Any) -> dict[str, Any]:
    return {"cluster": cluster, "address": "192.0.2.9:3479", "up": True, "rtt_ms": rtt_ms, **more}


def ways(*flows: dict[str, Any], routes: list[dict[str, Any]] | None = None, peers: Any = ()) -> RelayWays:
    return read_ways(PATH, json.dumps({"flows": flows}), json.dumps({"routes": routes or [], "peers": peers}))


OTHERS = ways(flow("1/5/0"), routes=[{"route": "1/5/0", "rtt_ms": 0.1}], peers=[peer(33.0)])
"""A relay of another cluster, without this call."""


def told(*relays: RelayWays) -> list[tuple[str, str, float | None]]:
    return [(hop.start, hop.end, hop.rtt_ms) for hop in hops_of(relays)]


def test_a_call_within_its_cluster_has_one_relay() -> None:
    relay = ways(flow(), routes=[{"route": "2/17/0", "rtt_ms": 0.4}], peers=[peer(40.0, cluster=1)])
    assert told(OTHERS, relay) == [("client", "relay", None), ("relay", "transceiver", 0.4)]


def test_a_call_from_elsewhere_goes_by_its_ingress_and_a_home_relay() -> None:
    ingress = ways(flow(), routes=[{"route": "1/5/0"}], peers=[peer(55.5, used=False), peer(41.2), peer(0.1, 3)])
    home = ways(routes=[{"route": "2/17/0", "rtt_ms": 0.3}])
    assert told(home, OTHERS, ingress) == [
        ("client", "ingress", None),
        ("ingress", "home", 41.2),
        ("home", "transceiver", 0.3),
    ]


def test_where_the_ingress_is_not_asked_home_tells_the_trunk_by_its_own_probes() -> None:
    def home(*peers: dict[str, Any], route: str = "2/17/0") -> RelayWays:
        routes = json.dumps({"routes": [{"route": route, "rtt_ms": 0.3}], "peers": peers})
        return read_ways(PATH, json.dumps({"flows": []}), routes, entry=(8, 9))

    down = peer(1.0, cluster=8, up=False)
    assert told(home(peer(40.0, cluster=9), peer(30.0, cluster=8), peer(5.0, cluster=7), down)) == [
        ("client", "ingress", None),
        ("ingress", "home", 30.0),
        ("home", "transceiver", 0.3),
    ]
    unknown = [("client", "transceiver", None)]
    assert told(home(peer(5.0, cluster=7), down)) == unknown, "it has no trunk to there"
    assert told(home(peer(40.0, cluster=9), route="2/18/0")) == unknown, "it is not the home of this call"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "9" * 400, "-1", "1e300", '"1"', "[]", "{}"])
def test_a_round_trip_that_no_clock_measures_is_not_known(value: str) -> None:
    routes = f'{{"routes": [{{"route": "2/17/0", "rtt_ms": {value}}}]}}'
    relay = read_ways(PATH, json.dumps({"flows": [flow()]}), routes)
    assert told(relay) == [("client", "relay", None), ("relay", "transceiver", None)]


def test_the_trunk_counts_where_clients_are_sent_and_not_what_is_nearer_and_down() -> None:
    peers = [peer(10.0, up=False), peer(20.0, used=False), peer(30.0, used=True)]
    assert ways(flow(), peers=peers).trunk_ms == 30.0


def test_what_nobody_knows_is_null() -> None:
    assert told() == told(OTHERS) == [("client", "transceiver", None)]
    assert told(ways(flow(listener=7))) == [("client", "transceiver", None)], "by another listener it is another call"
    assert told(ways(flow(), peers=[peer(None)])) == [
        ("client", "ingress", None),
        ("ingress", "home", None),
        ("home", "transceiver", None),
    ]
    assert told(ways(flow(), routes=[{"route": "2/17/0"}])) == [
        ("client", "relay", None),
        ("relay", "transceiver", None),
    ]


@pytest.mark.parametrize("page", ["", "no JSON", "[]", "[" * 100_000, '{"flows": 1, "routes": 1}', '{"flows": [{}]}'])
def test_pages_of_something_else_are_no_relays(page: str) -> None:
    with pytest.raises(RemoteError):
        read_ways(PATH, page, page)


async def test_all_relays_are_asked_and_the_silent_and_the_strange_are_left_out() -> None:
    asked: list[str] = []
    pages = {
        "ingress": ({"flows": [flow()]}, {"routes": [], "peers": [peer(40.0)]}),
        "home": ({"flows": []}, {"routes": [{"route": "2/17/0", "rtt_ms": 0.2}]}),
    }

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        match request.url.host:
            case "dead":
                raise httpx.ConnectError("nobody is there")
            case "endless":
                return httpx.Response(200, content=b"x" * (MAX_PAGE + 1))
            case "strange":
                return httpx.Response(200, text="hello")
            case "old":
                return httpx.Response(404)
            case name:
                return httpx.Response(200, json=pages[name][request.url.path == "/routes"])

    names = ["dead", "endless", "strange", "old", "home", "ingress"]
    relays = RelayPages([f"http://{name}" for name in names], Metrics(), httpx.MockTransport(answer))
    try:
        hops = await relays.trace(PATH)
    finally:
        await relays.close()
    assert [hop.as_json() for hop in hops] == [
        {"from": "client", "to": "ingress", "rtt_ms": None},
        {"from": "ingress", "to": "home", "rtt_ms": 40.0},
        {"from": "home", "to": "transceiver", "rtt_ms": 0.2},
    ]
    assert "http://ingress/flows?limit=1000" in asked, "what is read of a relay has a bound"


def test_two_calls_are_traced_at_once_and_further_ones_wait_or_are_refused() -> None:
    under_way, most, metrics = 0, 0, Metrics()
    seconds = 0.9

    async def answer(_request: httpx.Request) -> httpx.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(seconds / 2)
        under_way -= 1
        return httpx.Response(200, json={"flows": [], "routes": []})

    async def run() -> None:
        relays = RelayPages(["http://relay"], metrics, httpx.MockTransport(answer))
        traces = [relays.trace(PATH) for _ in range(10)]
        told = await asyncio.gather(*traces, return_exceptions=True)
        # A place is free after 0 s, 0.9 s and 1.8 s; nobody waits for longer than 2 s.
        refused = [error for error in told if isinstance(error, ApiError)]
        assert [(error.status, error.code) for error in refused] == [(503, "too_many_requests")] * 4
        assert len([hops for hops in told if isinstance(hops, list)]) == 6
        assert isinstance(await relays.trace(PATH), list), "places are given back"
        await relays.close()

    run_virtual(run())
    assert (most, metrics.traces_refused._value.get()) == (2, 4)


def test_traces_of_relays_that_hang_do_not_hold_up_the_fleet() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path in ("/flows", "/routes"):
            await asyncio.sleep(60)
        return httpx.Response(200, text="ready")

    async def run() -> None:
        names = [f"http://relay-{number}" for number in range(2 * MAX_UNDER_WAY)]
        relays = RelayPages(names, Metrics(), httpx.MockTransport(answer))
        tracing = [asyncio.create_task(relays.trace(PATH)) for _ in range(10)]
        await asyncio.sleep(0.1)
        assert all(relay.ready for relay in await relays.read())
        await asyncio.gather(*tracing, return_exceptions=True)
        await relays.close()

    run_virtual(run())
