"""Calls that enter at a relay of another cluster: ingress relay, trunk, home relay, transceiver. Real programs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet import Fleet, calling, running_fleet, wait_until
from tests.relay_network import RelayProcess, relay_process
from tests.trunk_rig import TRUNK_KEY
from usher_core.keys import HopKey, KeyFile, KeyState

pytestmark = [pytest.mark.timed, pytest.mark.timeout(120)]

HOME, INGRESS = 1, 9
HOMES = 2
OLD, NEW = 100, 101
KEYS = {OLD: TRUNK_KEY, NEW: bytes(range(60, 76))}
MAX_GAP_MS = 1_300
"""A peer's relay that died is noticed within 1 s, and calls on the others notice nothing."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), "--transceivers=2", "--relays=1", "--engine=python") as fleet:
        yield fleet


class Trunk:
    """Home relays beside those of a fleet, and one ingress relay that has them as a peer."""

    def __init__(self, fleet: Fleet, folder: Path, opened: ExitStack, engine: str) -> None:
        of_fleet = Path(fleet.state()["keys"])
        self.folder = folder
        keys = self.of_fleet = KeyFile.model_validate_json((of_fleet / "relay.json").read_text())
        self.homes: list[RelayProcess] = []
        for number in range(HOMES):
            place = folder / f"home{number}"
            place.mkdir()
            write_keys(place, keys, INGRESS, {OLD: KeyState.ACTIVE})
            (place / "routes.json").symlink_to(of_fleet / "routes.json")
            relay = relay_process(place, "--trunk=127.0.0.1:0", f"--engine={engine}", "--workers=1")
            self.homes.append(opened.enter_context(relay))
        place = folder / "ingress"
        place.mkdir()
        write_keys(place, keys, HOME, {OLD: KeyState.ACTIVE})
        (place / "routes.json").write_text('{"version": 1, "transceivers": []}')
        endpoints = [{"address": home.facts["trunk"]} for home in self.homes]
        peers = {"version": 1, "peers": [{"cluster": HOME, "endpoints": endpoints}]}
        (place / "peers.json").write_text(json.dumps(peers))
        relay = relay_process(place, f"--peers-file={place / 'peers.json'}", f"--engine={engine}")
        self.ingress = opened.enter_context(relay)
        # One whose first answer came late counts as far, until it has been near for 5 s.
        wait_until(lambda: all(self.peers("used").values()), 15, "the ingress relay uses all home relays")

    def peers(self, name: str) -> dict[str, float]:
        """A metric of all endpoints of the ingress relay's peer."""
        found = self.ingress.metrics().items()
        return {metric: value for metric, value in found if metric.startswith(f"usher_relay_peer_{name}{{")}

    def change_key(self) -> None:
        """Change the trunk's key, in the order of docs/wire.md."""
        self._write({OLD: KeyState.ACTIVE, NEW: KeyState.ACCEPTED}, "ingress")
        wait_until(lambda: all(self.peers("lacks_newest_hop_key").values()), 5, "it is seen that the homes lack it")
        self._write({OLD: KeyState.ACTIVE, NEW: KeyState.ACCEPTED}, "home0", "home1")
        wait_until(
            lambda: not any(self.peers("lacks_newest_hop_key").values()), 5, "the homes have told that they hold it"
        )
        shown = json.loads(self.ingress.get("/routes")[1])["peers"]
        assert [peer["held_hop"] for peer in shown] == [[OLD, NEW]] * HOMES
        self._use(OLD, NEW)
        self._use(NEW)

    def _use(self, *numbers: int) -> None:
        self._write(dict.fromkeys(numbers, KeyState.ACTIVE), "home0", "ingress", "home1")
        wanted = sorted((*(key.id for key in self.of_fleet.hop), *numbers))
        relays = (*self.homes, self.ingress)
        wait_until(lambda: all(ids_in_use(relay) == wanted for relay in relays), 5, f"all use {numbers}")

    def _write(self, states: dict[int, KeyState], *places: str) -> None:
        for place in places:
            write_keys(self.folder / place, self.of_fleet, HOME if place == "ingress" else INGRESS, states)


def write_keys(place: Path, of_fleet: KeyFile, scope: int, trunk: dict[int, KeyState]) -> None:
    keys = (
        HopKey(id=number, scope=scope, key=KEYS[number], state=state, not_before=number)
        for number, state in trunk.items()
    )
    made = place / "made.json"
    made.write_text(of_fleet.model_copy(update={"hop": (*of_fleet.hop, *keys)}).model_dump_json())
    made.replace(place / "keys.json")


def ids_in_use(relay: RelayProcess) -> list[int]:
    """The ids of the hop keys that a relay has and that are active."""
    held = json.loads(relay.get("/keys")[1])["keys"]
    return sorted(int(key["id"]) for key in held if key["list"] == "hop" and key["state"] == "active")


@pytest.fixture(params=["python", pytest.param("native", marks=pytest.mark.needs("native engine"))])
def trunk(fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Trunk]:
    with ExitStack() as opened:
        yield Trunk(fleet, tmp_path, opened, request.param)


def knows_round_trips(relay: RelayProcess) -> bool:
    shown = json.loads(relay.get("/routes")[1])["routes"]
    return len(shown) == 2 and all(route["rtt_ms"] is not None and 0 < route["rtt_ms"] < 1_000 for route in shown)


def uplink(relay: RelayProcess) -> float:
    return relay.metrics()['usher_relay_packets_total{direction="uplink"}']


def gaps(result: dict[str, Any]) -> list[float]:
    return sorted(call["longest_gap_ms"] for call in result["calls"])


def test_calls_enter_at_another_cluster_and_sound_right(fleet: Fleet, trunk: Trunk) -> None:
    with calling(fleet.url, "--count=10", "--seconds=3", f"--via={trunk.ingress.udp}") as caller:
        result = caller.result()
    print(f"\nlongest gaps over a trunk, ms: {gaps(result)}; offer to answer: {result['summary']['offer_answer_ms']}")
    assert result["status"] == 0, result
    carried = [uplink(home) for home in trunk.homes]
    assert min(carried) > 100, f"the flows are spread over both home relays: {carried}"
    assert uplink(trunk.ingress) >= sum(carried) * 0.99


def test_the_key_of_a_trunk_is_changed_under_calls_and_every_datagram_is_opened(fleet: Fleet, trunk: Trunk) -> None:
    with calling(fleet.url, "--count=4", "--seconds=4", f"--via={trunk.ingress.udp}") as caller:
        caller.wait_until_connected(4)
        trunk.change_key()
        before = uplink(trunk.ingress)
        caller.result()
    assert uplink(trunk.ingress) > before, "calls went on under the new key"
    for relay in (*trunk.homes, trunk.ingress):
        refused = {name: count for name, count in relay.metrics().items() if 'reason="hop_' in name and count}
        assert refused == {}, "whichever key made it"
    wait_until(lambda: all(map(knows_round_trips, trunk.homes)), 8, "home relays know how far their transceivers are")


def test_a_home_relay_that_dies_costs_its_flows_a_second_and_the_others_nothing(fleet: Fleet, trunk: Trunk) -> None:
    seconds = 6
    with calling(fleet.url, "--count=10", f"--seconds={seconds}", f"--via={trunk.ingress.udp}") as caller:
        caller.wait_until_connected(10)
        time.sleep(1)  # so that every call has sound; a gap is measured from there
        os.kill(trunk.homes[0].process.pid, signal.SIGKILL)
        result = caller.result()
    print(f"\nlongest gaps after the death of one of two home relays, ms: {gaps(result)}")
    assert sorted(trunk.peers("up").values()) == [0, 1]
    late = max(call["late_ms"] for call in result["calls"])
    assert gaps(result)[-1] <= MAX_GAP_MS + late
    assert gaps(result)[0] <= 100 + late, "calls by the other home relay notice nothing"
    assert all(call["seconds"] >= seconds - 0.1 for call in result["calls"])
