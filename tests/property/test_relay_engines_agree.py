"""The native engine's path does what the Python one does, datagram by datagram and counter by counter."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usher_relay.counters import Drop, FlowEvent

pytestmark = pytest.mark.needs("native engine")

AT_SOCKETS = {Drop.SEND_AGAIN, Drop.SEND_NO_BUFFERS, Drop.SEND_TOO_LONG, Drop.SEND_REFUSED, Drop.INTERNAL}
ON_TRUNKS = {Drop.PEER_KEY}  # test_relay_trunks_agree.py has more of these
BY_STORE = ("store_asked", "store_loaded", "store_found")
STEPS = 300


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


def test_they_agree_on_a_hundred_thousand_datagrams() -> None:
    compare(range(1_000), 100_000)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_they_agree_on_a_million_datagrams() -> None:
    compare(range(1_000, 10_000), 1_000_000)
