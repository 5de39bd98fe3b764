"""Regions that are far from each other: `usher up` with two clusters, two ingress points and the delay between them.

What is measured is compared within one run; each test prints its figures.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.fleet import Caller, Fleet, calling, is_running, running_fleet, wait_until
from tests.integration.udp_proxy import UdpProxy, Weather

pytestmark = [pytest.mark.timed, pytest.mark.timeout(120)]

CHECK_MS = 2_500
"""A client's checks are so far apart."""
CHECK_AGAIN_MS = 500
"""A check that nobody answers is sent again after it (RFC 8489 section 6.2.1)."""
ROOM_MS = 400
"""For a machine that does other things as well."""


@dataclass(frozen=True)
class Wan:
    """A fleet, the round trip between its regions in ms, and how callers of region-1 reach it."""

    fleet: Fleet
    rtt_ms: float

    @property
    def regions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.fleet.state()["regions"]
        return found

    def local(self, *flags: str) -> tuple[str, ...]:
        """Enters in region-1 and is served there."""
        return (self.regions[0]["http"], *flags)

    def by_trunk(self, *flags: str) -> tuple[str, ...]:
        """Enters in region-1 and is served in region-2."""
        return (self.regions[0]["http"], "--region=region-2", *flags)

    def straight(self, *flags: str) -> tuple[str, ...]:
        """From region-1 to the ingress point of region-2."""
        return (self.regions[1]["http"], f"--via={self.regions[1]['far_udp']}", *flags)

    def relay(self, region: int, number: int) -> int:
        """The process of a relay."""
        relays = self.fleet.state()["relays"]
        pid: int = relays[(region - 1) * len(relays) // 2 + number - 1]["pid"]
        return pid

    def lost(self) -> float:
        """Packets that the ways between regions have lost or dropped."""
        text = httpx.get(f"{self.fleet.state()['wan'][0]['admin']}/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return float(sum(each.value for each in samples if each.labels.get("fate") in ("lost", "dropped")))


def has_measured(fleet: Fleet) -> bool:
    """Whether each relay knows how far its transceivers are: it asks them every 5 s."""
    pages = [httpx.get(f"{relay['admin']}/routes").json()["routes"] for relay in fleet.state()["relays"]]
    return all(routes and all(route["rtt_ms"] is not None for route in routes) for routes in pages)


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wan]:
    flags = ("--clusters=2", "--ingress=2", "--wan=5ms", "--engine=python")
    with running_fleet(tmp_path_factory.mktemp("near"), *flags) as fleet:
        wait_until(lambda: has_measured(fleet), 15, "each relay has timed its transceivers")
        yield Wan(fleet, 5)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wan]:
    with running_fleet(
        tmp_path_factory.mktemp("far"), "--clusters=2", "--ingress=2", "--wan=150ms", "--relays=2"
    ) as up:
        wait_until(lambda: has_measured(up), 15, "each relay has timed its transceivers")
        yield Wan(up, 150)


def together(*calls: tuple[str, ...]) -> list[list[dict[str, Any]]]:
    """Place calls, each with a caller of its own, at the same time; return the calls of each."""
    with ExitStack() as opened:
        callers = [opened.enter_context(calling(*call)) for call in calls]
        return [caller.result()["calls"] for caller in callers]


def median(calls: list[dict[str, Any]], *fields: str) -> float:
    return statistics.median(float(sum(call[field] for field in fields)) for call in calls)


def gaps(calls: list[dict[str, Any]]) -> list[float]:
    return sorted(call["longest_gap_ms"] for call in calls)


def faults(calls: list[dict[str, Any]]) -> list[str]:
    """What was wrong with calls, but for pauses of the tone: `gaps` tells those."""
    return [fault for call in calls for fault in call["wrong"] if not fault.startswith("the tone was there for")]


def silence(call: dict[str, Any]) -> float:
    """All of a call's gaps of 100 ms and more, in ms."""
    return float(sum(gap["ms"] for gap in call["gaps"]))


def late(calls: list[dict[str, Any]]) -> float:
    return max(float(call["late_ms"]) for call in calls)


@pytest.mark.parametrize("name", ["near", "far"])
def test_a_trunk_takes_as_long_as_the_straight_way(name: str, request: pytest.FixtureRequest) -> None:
    wan: Wan = request.getfixturevalue(name)
    flags = ("--count=2", "--seconds=3", "--trace")
    callers = together(wan.local(*flags), wan.by_trunk(*flags), wan.straight(*flags))
    local, trunk, straight = callers
    assert faults(local + trunk + straight) == []
    for calls in callers:
        assert gaps(calls)[-1] <= ROOM_MS + late(calls)
    set_up = {way: median(calls, "ice_ms", "dtls_ms") for way, calls in zip("lts", callers, strict=True)}
    check = {way: median(calls, "check_ms") for way, calls in zip("lts", callers, strict=True)}
    print(
        f"\nregions {wan.rtt_ms:.0f} ms apart; set-up of media: local {set_up['l']:.0f} ms, nearest ingress and trunk "
        f"{set_up['t']:.0f} ms, straight to the far ingress {set_up['s']:.0f} ms; round trip: {check['l']:.1f}, "
        f"{check['t']:.1f}, {check['s']:.1f} ms"
    )
    assert min(check["t"], check["s"]) >= wan.rtt_ms
    assert check["t"] <= 1.3 * check["s"] + 20
    assert set_up["t"] <= 1.5 * set_up["s"] + ROOM_MS
    if wan.rtt_ms > 100:
        assert check["l"] < wan.rtt_ms
        assert set_up["l"] < set_up["t"]
    assert {call["path"]["relay_region"] for call in local + trunk} == {"region-1"}
    assert {call["path"]["region"] for call in trunk + straight} == {"region-2"}
    for call in trunk:
        hops = {(hop["from"], hop["to"]): hop["rtt_ms"] for hop in call["trace"]["hops"]}
        assert list(hops) == [("client", "ingress"), ("ingress", "home"), ("home", "transceiver")]
        assert wan.rtt_ms <= hops["ingress", "home"] <= call["check_ms"] + 20
        assert hops["home", "transceiver"] is not None
    for call in local + straight:
        assert [hop["to"] for hop in call["trace"]["hops"]] == ["relay", "transceiver"]


async def test_loss_on_the_first_hop_is_no_worse_for_the_trunk_behind_it(near: Wan) -> None:
    host, _, port = near.regions[0]["udp"].rpartition(":")
    async with UdpProxy((host, int(port)), Weather(loss=0.03)) as first_hop:
        via = "--via={}:{}".format(*first_hop.address)
        (calls,) = await asyncio.to_thread(together, near.by_trunk("--count=2", "--seconds=5", via))
        lost, carried = first_hop.lost, first_hop.forwarded
    print(f"\nfirst hop lost {lost} of {lost + carried}; longest gaps by the trunk behind it: {gaps(calls)} ms")
    assert lost > 0
    assert near.lost() == 0
    assert all(call["tone_hz"] == pytest.approx(440, abs=2) for call in calls)
    # What is lost on the way to us is not there: two packets in a row are 40 ms, three 60 ms.
    assert gaps(calls)[-1] <= 140 + late(calls)


def background(wan: Wan, opened: ExitStack, *calls: tuple[str, ...]) -> list[Caller]:
    """Callers whose calls all have sound."""
    callers = [opened.enter_context(calling(*call)) for call in calls]
    for caller in callers:
        caller.wait_until_connected(2)
    time.sleep(1)  # so that every call has sound; a gap is measured from there
    return callers


def test_an_ingress_relay_that_dies_costs_calls_of_other_clusters_a_check_and_its_own_nothing(far: Wan) -> None:
    flags = ("--count=6", "--seconds=7")
    with ExitStack() as opened:
        callers = background(far, opened, far.by_trunk(*flags), far.local(*flags))
        os.kill(far.relay(1, 1), signal.SIGKILL)
        trunk, local = (caller.result()["calls"] for caller in callers)
    print(f"\none of two ingress relays dies and is replaced: by trunk {gaps(trunk)}, local {gaps(local)} ms")
    assert faults(trunk + local) == []
    assert all(call["seconds"] > 6.9 for call in trunk + local), "no call ended"
    # The relay that takes its place gets its flows back, and knows them no more: then they wait once more.
    wait_ms = CHECK_MS + CHECK_AGAIN_MS + far.rtt_ms + ROOM_MS + late(trunk)
    assert gaps(trunk)[-1] <= wait_ms
    assert max(silence(call) for call in trunk) <= 2 * wait_ms
    assert gaps(local)[-1] <= ROOM_MS + late(local)


def test_a_home_relay_that_dies_far_away_costs_its_calls_about_a_second(far: Wan) -> None:
    flags = ("--count=6", "--seconds=5")
    with ExitStack() as opened:
        callers = background(far, opened, far.by_trunk(*flags), far.local(*flags))
        os.kill(far.relay(2, 1), signal.SIGKILL)
        trunk, local = (caller.result()["calls"] for caller in callers)
    print(f"\none of two home relays dies 150 ms away: by trunk {gaps(trunk)}, local {gaps(local)} ms")
    assert faults(trunk + local) == []
    assert all(call["seconds"] > 4.9 for call in trunk + local), "no call ended"
    assert gaps(trunk)[-1] <= 1_300 + 2 * far.rtt_ms + late(trunk)
    assert gaps(local)[-1] <= ROOM_MS + late(local)


def test_a_partition_between_clusters_leaves_local_calls_alone_and_ends_none(far: Wan) -> None:
    flags = ("--count=2", "--seconds=5")
    (wan,) = far.fleet.state()["wan"]
    with ExitStack() as opened:
        home = (far.regions[1]["http"], *flags)
        callers = background(far, opened, far.by_trunk(*flags), far.local(*flags), home)
        os.kill(wan["pid"], signal.SIGSTOP)
        try:
            time.sleep(2)
        finally:
            os.kill(wan["pid"], signal.SIGCONT)
        trunk, *others = (caller.result()["calls"] for caller in callers)
    local = [call for calls in others for call in calls]
    print(f"\n2 s without a way between the clusters: by trunk {gaps(trunk)}, local {gaps(local)} ms")
    assert faults(trunk + local) == []
    assert gaps(trunk)[0] >= 1_500, "the way was gone"
    assert all(call["seconds"] > 4.9 for call in trunk + local), "no call ended"
    assert gaps(local)[-1] <= ROOM_MS + late(local)


def test_what_delays_packets_is_started_again_where_it_was(near: Wan) -> None:
    before = near.regions
    (wan,) = near.fleet.state()["wan"]
    os.kill(wan["pid"], signal.SIGKILL)
    wait_until(lambda: [each["pid"] != wan["pid"] for each in near.fleet.state()["wan"]] == [True], 15, "it runs again")
    assert not is_running(wan["pid"])
    assert near.regions == before
    (calls,) = together(near.by_trunk("--seconds=1.5"))
    assert calls[0]["path"]["region"] == "region-2"
    assert faults(calls) == []
    assert gaps(calls)[-1] <= ROOM_MS + late(calls)
