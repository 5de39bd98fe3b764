"""Which endpoints of a peer are used, by nearness and loss, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from usher_relay.trunk.order import PROVED_AFTER_S, EndpointOrder, Seen
from usher_relay.trunk.probe import DOWN_AFTER_S, JUDGED, LOSS_KNOWN_FROM, PROBE_EVERY_S, EndpointHealth

STEP_S = 0.05


class Peer:
    """Endpoints with a round trip (s), its jitter (a share of it) and loss each, probed as a relay does."""

    def __init__(self, rtts: dict[str, float], seed: int = 0, jitter: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.rtts, self.jitter = dict(rtts), jitter
        self.loss = dict.fromkeys(rtts, 0.0)
        self.health = {name: EndpointHealth() for name in rtts}
        self.order = EndpointOrder()
        self.now = 1_000.0
        self.used: Collection[str] = ()
        self.changes: dict[str, list[float]] = {name: [] for name in rtts}
        self._coming: list[tuple[float, str, bytes]] = []
        self._sent = 0

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Let time pass; return how much did."""
        began = self.now
        while self.now - began < seconds and not until():
            self.now += STEP_S
            self._probe()
            seen = {
                name: Seen(found.is_up(self.now), found.rtt, found.known_loss) for name, found in self.health.items()
            }
            before, self.used = self.used, self.order.choose(self.now, seen)
            for name in set(before) ^ set(self.used):
                self.changes[name].append(self.now)
        return self.now - began

    def _probe(self) -> None:
        for name, health in self.health.items():
            if health.is_due(self.now):
                self._sent += 1
                nonce = self._sent.to_bytes(8)
                health.on_sent(nonce, self.now)
                if self.random.random() >= self.loss[name]:
                    rtt = self.rtts[name] * self.random.uniform(1 - self.jitter, 1 + self.jitter)
                    self._coming.append((self.now + rtt, name, nonce))
        for arrival in [arrival for arrival in self._coming if arrival[0] <= self.now]:
            self._coming.remove(arrival)
            self.health[arrival[1]].on_answer(arrival[2], arrival[0])


def test_near_endpoints_share_and_far_ones_wait() -> None:
    peer = Peer({"near": 0.020, "beside": 0.035, "far": 0.090})
    peer.run(10)
    assert set(peer.used) == {"near", "beside"}
    assert max(peer.changes["far"]) < 1_000.3, "the first answers tell already"


def test_all_are_used_until_one_has_answered() -> None:
    peer = Peer({"a": 0.2, "b": 0.4})
    peer.run(STEP_S)
    assert set(peer.used) == {"a", "b"}
    peer.run(0.3)
    assert set(peer.used) == {"a"}


def test_a_dead_best_is_left_within_a_second_and_taken_back_when_it_has_proved_steady() -> None:
    peer = Peer({"best": 0.020, "far": 0.150})
    peer.run(10)
    assert set(peer.used) == {"best"}
    peer.loss["best"] = 1.0
    assert peer.run(2, until=lambda: "best" not in peer.used) <= DOWN_AFTER_S + PROBE_EVERY_S + 2 * STEP_S
    assert set(peer.used) == {"far"}
    peer.run(5)
    peer.loss["best"] = 0.0
    back = peer.run(20, until=lambda: "best" in peer.used)
    assert PROVED_AFTER_S <= back <= PROVED_AFTER_S + JUDGED * PROBE_EVERY_S + 1
    peer.run(5)
    assert set(peer.used) == {"best"}


def test_an_endpoint_that_comes_and_goes_is_left_alone() -> None:
    peer = Peer({"best": 0.020, "far": 0.150})
    peer.run(10)
    for _ in range(20):
        peer.loss["best"] = 1.0
        peer.run(1.5)
        peer.loss["best"] = 0.0
        peer.run(3)
    assert len(peer.changes["best"]) == 2, "it was taken at the start, and left once"


def test_one_that_loses_a_third_is_worse_than_a_far_one_that_loses_nothing() -> None:
    peer = Peer({"best": 0.020, "far": 0.150}, seed=3)
    peer.run(10)
    peer.loss["best"] = 0.35
    peer.run(20)
    assert set(peer.used) == {"far"}


def test_loss_that_all_share_leaves_the_near_ones_in_use() -> None:
    for seed in range(30):
        peer = Peer({"best": 0.020, "far": 0.150}, seed=seed)
        peer.run(10)
        peer.loss = dict.fromkeys(peer.loss, 0.05)
        for changes in peer.changes.values():
            changes.clear()
        peer.run(60)
        assert peer.changes == {"best": [], "far": []}, seed


def test_a_new_endpoint_does_not_take_all_flows_where_loss_is_shared_by_all() -> None:
    order, shared = EndpointOrder(), Seen(True, 0.020, 0.30)
    assert set(order.choose(1.0, {"a": shared, "b": shared})) == {"a", "b"}
    new = EndpointHealth()
    for number in range(60):
        now = 2.0 + number * PROBE_EVERY_S
        new.on_sent(number.to_bytes(8), now)
        if number % 10 not in (2, 5, 8):
            assert new.on_answer(number.to_bytes(8), now + 0.02)
        seen = {"a": shared, "b": shared, "c": Seen(new.is_up(now), new.rtt, new.known_loss)}
        assert {"a", "b"} <= set(order.choose(now, seen)), f"after {number} probes of the new one"
    assert new.known_loss is not None
    assert set(order.choose(20.0, {"a": shared, "b": shared, "c": shared})) == {"a", "b", "c"}


def test_of_few_probes_no_loss_is_told_and_one_whose_loss_is_not_known_is_neither_best_nor_worst() -> None:
    health = EndpointHealth()
    for number in range(LOSS_KNOWN_FROM):
        assert health.known_loss is None
        health.on_sent(number.to_bytes(8), 1.0 + number)
        health.on_answer(number.to_bytes(8), 1.1 + number)
    assert health.known_loss == 0
    lossy, unknown = Seen(True, 0.020, 0.5), Seen(True, 0.020, None)
    assert set(EndpointOrder().choose(1.0, {"lossy": lossy, "unknown": unknown})) == {"lossy", "unknown"}
    assert set(EndpointOrder().choose(1.0, {"lossy": lossy, "clean": Seen(True, 0.090, 0.0)})) == {"clean"}


def test_when_all_are_lost_all_are_used_and_the_first_that_is_heard_again_is_used_alone() -> None:
    peer = Peer({"best": 0.020, "far": 0.150})
    peer.run(10)
    peer.loss = dict.fromkeys(peer.loss, 1.0)
    peer.run(3)
    assert set(peer.used) == {"best"}, "all are down, and the last round trips are still the best guess"
    peer.loss["far"] = 0.0
    peer.run(1)
    assert set(peer.used) == {"far"}


def test_a_way_that_became_long_is_left_for_one_that_is_near_now() -> None:
    peer = Peer({"a": 0.020, "b": 0.060})
    peer.run(10)
    assert set(peer.used) == {"a"}
    peer.rtts["a"] = 0.200
    peer.run(15)
    assert set(peer.used) == {"b"}


@settings(max_examples=25)
@given(st.lists(st.floats(0.001, 0.2), min_size=2, max_size=6), st.floats(0, 0.4), st.integers(0, 1 << 32))
def test_jitter_does_not_move_flows_to_and_fro(rtts: list[float], jitter: float, seed: int) -> None:
    peer = Peer({f"e{number}": rtt for number, rtt in enumerate(rtts)}, seed, jitter)
    peer.run(10)
    for changes in peer.changes.values():
        changes.clear()
    peer.run(60)
    assert max(map(len, peer.changes.values())) <= 1, "one that is at the bound may come in or go, once"
    assert peer.used


@given(st.lists(st.floats(0.001, 0.2), min_size=2, max_size=6), st.floats(0, 0.4), st.integers(0, 1 << 32))
def test_whichever_dies_is_left_within_a_second_and_somebody_is_always_used(
    rtts: list[float], jitter: float, seed: int
) -> None:
    peer = Peer({f"e{number}": rtt for number, rtt in enumerate(rtts)}, seed, jitter)
    peer.run(8)
    victim = min(peer.rtts, key=lambda name: peer.rtts[name])
    assert victim in peer.used
    peer.loss[victim] = 1.0
    late = peer.rtts[victim] * 1.4
    assert peer.run(2, until=lambda: victim not in peer.used) <= DOWN_AFTER_S + late + 2 * STEP_S
    assert peer.used
