"""The native engine's path does what the Python one does, datagram by datagram and counter by counter."""

import json
from collections import Counter
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usher_core.ids import Route
from usher_core.keys import KeyFile
from usher_relay.counters import Counters, Drop, FlowEvent
from usher_relay.state import Limits

pytestmark = pytest.mark.needs("native engine")

AT_SOCKETS = {Drop.SEND_AGAIN, Drop.SEND_NO_BUFFERS, Drop.SEND_TOO_LONG, Drop.SEND_REFUSED, Drop.INTERNAL}
ON_TRUNKS = {Drop.PEER_KEY, Drop.HOP_UNASKED, Drop.LIMIT_PROBES}  # test_relay_trunks_agree.py has more of these
BY_STORE = ("store_asked", "store_loaded", "store_found")
STEPS = 300
RECORDED = Path(__file__).parents[1] / "vectors" / "recorded_call.json"


@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 40))
def test_they_agree_on_any_traffic(seed: int, steps: int) -> None:
    from tests.relay_both import Traffic

    Traffic(seed).run(steps)


def compare(seeds: range, datagrams: int) -> None:
    """Run seed after seed until so many datagrams went through both; whatever can happen to one has to occur."""
    from tests.relay_both import Traffic

    done, drops, events, by_store = 0, Counter[Drop](), Counter[FlowEvent](), Counter[str]()
    for seed in seeds:
        both = Traffic(seed).run(STEPS)
        drops.update(both.counters.drops)
        events.update(both.counters.flow_events)
        by_store.update({name: getattr(both.counters, name) for name in BY_STORE})
        done += both.datagrams
        if done >= datagrams:
            break
    assert done >= datagrams
    assert {reason for reason in Drop if not drops[reason]} == AT_SOCKETS | ON_TRUNKS
    assert {name for name in BY_STORE if not by_store[name]} == set()
    assert {event for event in FlowEvent if not events[event]} == set()


def replay(begin_at: int, *, bundles: bool) -> Counters:
    """Give both what a relay saw of one real call, from one of its batches on."""
    from tests.relay_both import Both

    call = json.loads(RECORDED.read_text())
    host, port = call["transceiver"]
    both = Both(Limits(), KeyFile.model_validate(call["keys"]), bundles=bundles)
    both.set_routes([(Route(*call["route"]), (host, port), 65_507)])
    ticks = 0
    for at, whose, datagrams in call["batches"][begin_at:]:
        now, unix = 1_000.0 + at, call["unix"] + at
        if ticks < ceil(4 * at):
            ticks = ceil(4 * at)
            both.tick(now, unix)
        if whose == "clients":
            packets = [(bytes.fromhex(path), 1, bytes.fromhex(datagram)) for path, datagram in datagrams]
            both.from_clients(now, unix, packets)
        else:
            both.from_transceivers(now, unix, [(bytes.fromhex(datagram), (host, port)) for datagram in datagrams])
        both.compare_flows(now)
    return both.counters


@pytest.mark.parametrize("bundles", [False, True])
def test_they_agree_on_a_recorded_call_all_of_which_is_forwarded_until_it_was_ended(*, bundles: bool) -> None:
    counters = replay(0, bundles=bundles)
    late = counters.drops[Drop.SESSION_ENDED]  # what was on its way when the transceiver said UNKNOWN-FLOW
    assert sum(counters.drops.values()) == late <= 3
    assert counters.uplink.received - late == counters.uplink.forwarded > 30
    assert counters.downlink.forwarded >= counters.downlink.received - 1 > 30, "answers may share a datagram"
    assert counters.flow_events[FlowEvent.CONFIRMED] == counters.flow_events[FlowEvent.ENDED] == 1


def test_they_agree_on_a_recorded_call_that_comes_to_them_at_any_time() -> None:
    batches = len(json.loads(RECORDED.read_text())["batches"])
    asked = sum(replay(begin_at, bundles=begin_at % 2 == 0).questions for begin_at in range(1, batches, 3))
    assert asked > 0


def test_they_agree_on_a_hundred_thousand_datagrams() -> None:
    compare(range(1_000), 100_000)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_they_agree_on_a_million_datagrams() -> None:
    compare(range(1_000, 10_000), 1_000_000)
