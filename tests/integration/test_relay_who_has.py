"""Two relays on real sockets, transceivers that answer by themselves: a call goes on at a relay that never saw it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.owners import Owners
from tests.relay_network import (
    BOTH_ENGINES,
    MakeEngine,
    Network,
    RunningEngine,
    relay_process,
    until,
)
from tests.relay_rig import DTLS, POD_A, POD_B
from tests.relay_speech import SSRC, Crowd, Flood, Owner, connect, heard, send_checks, speak
from usher_relay.counters import Drop
from usher_relay.state import Limits
from usher_relay.waiting import WAITING

pytestmark = pytest.mark.programs

ONE_PACKET = 0.2
"""Seconds between the packets of a caller: no more than one of anybody is lost."""
NEXT_CHECK = 2.5
"""Seconds until a browser's next check would find it. One process plays all 64, and takes a share of it."""
CONFIRMED = 'usher_relay_flows{state="confirmed"}'

Run: TypeAlias = Callable[..., RunningEngine]
LONGEST_GAP = 10
"""In frames: 200 ms (docs/wire.md section 6)."""


@pytest.fixture(params=BOTH_ENGINES)
def run(request: pytest.FixtureRequest) -> Run:
    make: MakeEngine = request.param
    return functools.partial(RunningEngine, "1=127.0.0.1:0", make=make)


@pytest.fixture
def owner(net: Network) -> Iterator[Owner]:
    with Owner(net.pod(POD_A), SSRC) as owner:
        yield owner


@pytest.fixture
def stranger(net: Network) -> Iterator[Owner]:
    """Another transceiver, which does not know the client."""
    with Owner(net.pod(POD_B)) as owner:
        yield owner


@pytest.mark.parametrize("rebound", [False, True], ids=["same port", "new port"])
def test_speech_at_a_relay_that_never_saw_the_client_goes_on_within_200_ms(
    run: Run, net: Network, owner: Owner, stranger: Owner, rebound: bool
) -> None:
    with run() as first, run() as second:
        for relay in (first, second):
            relay.set_routes(owner.pod, stranger.pod)
        client = net.client(first.at(1))
        connect(client)
        speak(client, 10)
        moved = net.client(second.at(1)) if rebound else client
        moved.relay = net.client(second.at(1)).relay
        gap = speak(moved, 50)
        print(f"\nlongest gap: {gap} packets")
        assert gap <= LONGEST_GAP
        counters = second.engine.snapshot().counters
        assert (counters.questions, counters.found_by_ssrc, stranger.asked) == (1, 1, 1)
        (flow,) = second.engine.flows(10)
        assert (flow.client, flow.route, flow.state) == (moved.address, str(POD_A), "live")
        assert stranger.paths == set()


def test_dtls_at_a_relay_that_never_saw_the_client_is_led_by_its_address(
    run: Run, net: Network, owner: Owner, stranger: Owner
) -> None:
    with run() as first, run() as second:
        for relay in (first, second):
            relay.set_routes(owner.pod, stranger.pod)
        client = net.client(first.at(1))
        connect(client)
        client.relay = net.client(second.at(1)).relay
        client.send(DTLS)
        until(lambda: heard(client), "the one datagram is answered")
        assert second.engine.snapshot().counters.found_by_address == 1
        client = net.client(second.at(1))
        client.send(DTLS)
        until(lambda: second.drops() == {Drop.NOT_FOUND: 1}, "from a new port it waited in vain: DTLS never roams")


@pytest.mark.timed
@pytest.mark.parametrize("transceivers, most", [(8, ONE_PACKET), (64, NEXT_CHECK)])
@pytest.mark.parametrize("engine", ["python", pytest.param("native", marks=pytest.mark.needs("native engine"))])
@pytest.mark.parametrize("replaced", [False, True], ids=["a second relay", "a relay that is started then"])
def test_five_hundred_callers_behind_one_address_go_on_when_their_relay_was_killed(
    net: Network,
    tmp_path: Path,
    engine: str,
    transceivers: int,
    most: float,
    replaced: bool,
    record_property: Callable[[str, object], None],
) -> None:
    """Of these none sends checks, so whoever is heard again was asked for. 64 transceivers are asked 32,000 times."""
    callers, every = 500, ONE_PACKET
    start = functools.partial(relay_process, tmp_path, f"--engine={engine}")
    with contextlib.ExitStack() as stack:
        owners = stack.enter_context(Owners(transceivers, callers))
        owners.write_routes(tmp_path / "routes.json")
        first = stack.enter_context(start())
        running = None if replaced else stack.enter_context(start())
        clients = [net.client(first.udp) for _ in range(callers)]
        send_checks(clients, owners.route_of)
        until(lambda: first.metrics()[CONFIRMED] == callers, "all are connected", 20)
        crowd = stack.enter_context(Crowd(clients, every))
        second, figures = crowd.outlive(first, lambda: running or stack.enter_context(start()))
        print(f"\n{transceivers} transceivers; gaps, p50 p99 max in s, with a packet every {every} s: {figures}")
        record_property("gaps", figures)
        assert second.metrics()[CONFIRMED] == callers
        assert figures["after"][-1] <= figures["before"][-1] + most


@pytest.mark.timed
def test_a_flood_from_faked_addresses_costs_a_live_call_nothing_and_a_moved_one_little(
    run: Run, net: Network, owner: Owner, stranger: Owner
) -> None:
    with run() as first, run(limits=Limits(max_flows=100)) as second, Flood(second.at(1)) as flood:
        for relay in (first, second):
            relay.set_routes(owner.pod, stranger.pod)
        live, moving = net.client(second.at(1)), net.client(first.at(1))
        connect(live)
        connect(moving)
        flood.start()
        until(lambda: second.drops().get(Drop.LIMIT_QUESTIONS, 0), "more than may be asked")
        assert speak(live, 25) <= 2, "it loses what the kernel may drop"
        moving.relay = live.relay
        gap = speak(moving, 100)
        print(f"\nfound after {gap} packets, {flood.sent} faked ones in all")
        assert gap <= 50
        snapshot = second.engine.snapshot()
        assert 0 < snapshot.counters.waiting_bytes <= WAITING * 160
        assert snapshot.flows_confirmed == 2
        assert snapshot.flows_on_probation == 0
        assert stranger.paths == set()
        assert snapshot.counters.questions <= 1_000 * (time.monotonic() - flood.began + 1)
