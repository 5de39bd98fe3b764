"""Two relays, two transceivers, many calls: placement, routing, what a death costs. Real programs, stock clients."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.fleet import Fleet, calling, running_fleet, wait_until

pytestmark = [pytest.mark.programs, pytest.mark.timeout(180)]

GAP_LIMIT_MS = 100
"""A relay that has never seen a client asks whose it is (docs/wire.md section 6)."""
MAX_CALLS = 60


@pytest.fixture(scope="module")
def two_by_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), "--relays=2", "--transceivers=2") as fleet:
        yield fleet


@pytest.fixture
def fleet(two_by_two: Fleet) -> Fleet:
    """The fleet, after what an earlier test killed has come back."""
    wait_until(lambda: is_whole(two_by_two), 20, "the fleet is whole")
    return two_by_two


def is_whole(fleet: Fleet) -> bool:
    state = fleet.state()
    if (len(state["relays"]), len(state["transceivers"])) != (2, 2):
        return False
    wanted = {f"1/{entry['pod_id']}/0" for entry in state["transceivers"]}
    try:
        takes_calls = httpx.get(f"{fleet.url}/readyz").json()["can_place"]
        return takes_calls and all(wanted <= set(carried(relay)) for relay in state["relays"])
    except httpx.HTTPError:
        return False


def carried(relay: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Route → (datagrams to it, datagrams from it) that this relay carried."""
    routes = httpx.get(f"{relay['admin']}/routes").json()["routes"]
    return {route["route"]: (route["uplink"], route["downlink"]) for route in routes}


def found(relay: dict[str, Any]) -> float:
    """How many clients this relay found by asking the transceivers."""
    lines = httpx.get(f"{relay['admin']}/metrics").text.splitlines()
    return sum(
        float(line.split()[1]) for line in lines if line.startswith("usher_relay_lookups_total") and "found" in line
    )


def went_on(call: dict[str, Any], seconds: float) -> bool:
    """Whether a call had sound and lasted as long as it should, whatever this machine's load did to its sound."""
    return call["first_audio_ms"] is not None and call["seconds"] >= seconds - 0.1


def test_calls_spread_over_transceivers_and_every_relay_carries_for_each(fleet: Fleet) -> None:
    state = fleet.state()
    before = [carried(relay) for relay in state["relays"]]
    routes = {f"1/{entry['pod_id']}/0" for entry in state["transceivers"]}

    def carries_for_all(number: int) -> bool:
        now = carried(state["relays"][number])
        # Hundreds of datagrams each way are media, not a stray check.
        return all(now[route][way] - before[number][route][way] >= 100 for route in routes for way in (0, 1))

    placed = 0
    while placed < MAX_CALLS:
        with calling(fleet.url, "--count=20", "--seconds=4") as caller:
            result = caller.result()
        assert all(went_on(call, 4) for call in result["calls"]), result["calls"]
        placed += 20
        owners = result["summary"]["transceivers"]
        assert set(owners) == routes
        assert min(owners.values()) >= 6, owners
        if carries_for_all(0) and carries_for_all(1):
            print(f"\n{placed} calls: owners {owners}, first audio {result['summary']['first_audio_ms']}")
            return
    pytest.fail(f"after {placed} calls: {[carried(relay) for relay in state['relays']]}")


@pytest.mark.timed
def test_a_relay_killed_and_replaced_ends_no_call(fleet: Fleet) -> None:
    seconds = 10
    with calling(fleet.url, "--count=20", f"--seconds={seconds}") as caller:
        caller.wait_until_connected(20)
        time.sleep(1)  # so that every call has sound; a gap is measured from there
        os.kill(fleet.state()["relays"][0]["pid"], signal.SIGKILL)
        result = caller.result()
    gaps = sorted(gap["ms"] for call in result["calls"] for gap in call["gaps"])
    moved = sum(map(found, fleet.state()["relays"]))
    print(f"\nrelay killed and replaced: {moved:.0f} moves, gaps of 100 ms and more in 20 calls, ms: {gaps}")
    for call in result["calls"]:
        assert went_on(call, seconds), call
        # A call that stayed silent would have a gap until its end.
        assert all(gap["ms"] <= GAP_LIMIT_MS + call["late_ms"] for gap in call["gaps"]), call
    assert moved, "no call went through the relay that was killed, so nothing was shown"


def test_a_transceiver_killed_ends_its_calls_within_consent_time_and_no_other(fleet: Fleet) -> None:
    seconds = 24
    alive = 4  # the client asks for each call's path 2 s after it was made, and has it then
    victim = fleet.state()["transceivers"][0]
    with calling(fleet.url, "--count=8", f"--seconds={seconds}") as caller:
        caller.wait_until_connected(8)
        time.sleep(alive)
        os.kill(victim["pid"], signal.SIGKILL)
        result = caller.result()
    route = f"1/{victim['pod_id']}/0"
    assert all(call["transceiver"] for call in result["calls"]), "each call knew its owner before the kill"
    ended = [call for call in result["calls"] if call["transceiver"] == route]
    others = [call for call in result["calls"] if call["transceiver"] != route]
    assert ended
    assert others
    print(f"\ntransceiver killed: its calls ended after {[round(call['seconds'] - alive, 1) for call in ended]} s")
    for call in ended:
        assert "the connection ended by itself" in call["wrong"][0]
        # Six checks without an answer, 3 s apart, are what aiortc waits for.
        assert call["seconds"] <= alive + 19
    for call in others:
        assert went_on(call, seconds), call
        assert call["longest_gap_ms"] < 1000


def test_new_calls_succeed_right_after_a_transceiver_was_killed(fleet: Fleet) -> None:
    os.kill(fleet.state()["transceivers"][1]["pid"], signal.SIGKILL)
    with calling(fleet.url, "--count=4", "--seconds=2") as caller:
        result = caller.result()
    assert all(went_on(call, 2) for call in result["calls"]), result["calls"]


def test_light_clients_make_real_calls_and_say_whether_they_kept_up(fleet: Fleet) -> None:
    with calling(fleet.url, "--load", "--count=12", "--full-every=6", "--seconds=3") as caller:
        result = caller.result()
    load = result["load"]
    assert (load["light_calls"], load["connected"], load["wrong"]) == (10, 10, {}), load
    assert len(result["calls"]) == 2
    assert all(went_on(call, 3) for call in result["calls"])
    # From being connected to the end each sent 50 packets a second, and an echo returns them.
    assert load["received"] > 0.9 * load["sent"] > 0.9 * 10 * 50 * 3 * 0.8
    assert load["check_rtt_ms"]["p50"] > 0
    assert {"client_cpu_share", "send_lag_ms", "client_has_head_room"} <= set(load)
