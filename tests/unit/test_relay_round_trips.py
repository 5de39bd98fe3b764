"""How far transceivers are: which probes a relay sends them, which answers count, and how they are answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.relay_rig import HOP_KEY, POD_A, POD_B
from tests.trunk_rig import HOME_CLUSTER, trunk_keys
from usher_core import hop
from usher_core.hop import HopType
from usher_core.ids import Route
from usher_core.keys import HopKey, KeyFile
from usher_relay.routes.round_trips import JUDGED, RoundTrips

KEYS = trunk_keys(HOME_CLUSTER)
UNIX = 1_800_000_000.0
A, B = ("10.1.2.3", 7200), ("10.1.2.4", 7200)


def answer(probe: bytes, key: bytes = HOP_KEY, **outer: int | bool) -> bytes:
    """As a transceiver answers."""
    parsed = hop.parse(probe)
    head = replace(parsed.outer, type=HopType.PROBE_REPLY, to_client=True)
    head = replace(head, **outer)  # type: ignore[arg-type]  # names and types are checked by the class
    record = parsed.records[0]._replace(payload=parsed.records[0].payload[:16] + bytes(2))
    return hop.encode(head, (record,), key)


def sent(trips: RoundTrips, seconds: Iterable[float]) -> Iterator[tuple[float, bytes, tuple[str, int]]]:
    return ((now, probe, to) for now in seconds for probe, to in trips.due(now, UNIX + now))


def steps(until: float, begin: float = 0.0) -> Iterable[float]:
    return (begin + number * 0.05 for number in range(int((until - begin) * 20)))


def test_each_transceiver_is_probed_about_every_5_seconds_at_moments_of_its_own() -> None:
    trips = RoundTrips(KEYS, seed=1)
    trips.set_addresses({POD_A: A, POD_B: B}, 0.0)
    probes = list(sent(trips, steps(60)))
    for address in (A, B):
        times = [now for now, _, to in probes if to == address]
        assert times[0] < 5.05
        assert {round(after - before) for before, after in pairwise(times)} <= {4, 5, 6}
        assert len(times) in range(10, 15)


def test_a_large_fleet_gets_no_more_than_100_probes_a_second_and_nobody_is_left_out() -> None:
    trips = RoundTrips(KEYS, seed=1)
    trips.set_addresses({Route(1, pod): (f"10.1.{pod >> 8}.{pod & 255}", 7200) for pod in range(3_000)}, 0.0)
    probes = list(sent(trips, steps(40)))
    assert 3_900 <= len(probes) <= 4_012
    assert len({to for _, _, to in probes}) == 3_000
    per_second = [sum(1 for now, *_ in probes if int(now) == second) for second in range(40)]
    assert max(per_second) <= 112


def test_the_round_trip_is_the_median_of_the_last_answers() -> None:
    trips = RoundTrips(KEYS, seed=1)
    trips.set_addresses({POD_A: A}, 0.0)
    assert trips.milliseconds(str(POD_A)) is None
    rtts = [0.9, 0.9, 0.9, 0.001, 0.002, 0.003, 0.9, 0.002]
    for (now, probe, to), rtt in zip(sent(trips, steps(60)), rtts, strict=False):
        trips.on_reply(answer(probe), to, now + rtt, UNIX + now)
    assert len(rtts) > JUDGED
    assert trips.milliseconds(str(POD_A)) == pytest.approx(2.0)
    assert trips.milliseconds(str(POD_B)) is None


def test_only_an_authentic_timely_answer_of_the_transceiver_itself_counts_and_once() -> None:
    trips = RoundTrips(KEYS, seed=1)
    trips.set_addresses({POD_A: A, POD_B: B}, 0.0)
    now, probe, to = next(each for each in sent(trips, steps(6)) if each[2] == A)
    good = answer(probe)
    for forged, source, at in (
        (answer(probe, key=bytes(16)), A, now),
        (answer(probe, pod=POD_B.pod), A, now),
        (answer(probe, to_client=False), A, now),
        (answer(probe, time_ms=0), A, now),
        (good[:-3], A, now),
        (b"", A, now),
        (good, B, now),
        (good, A, now + 5.1),
    ):
        trips.on_reply(forged, source, at, UNIX + at)
        assert trips.milliseconds(str(POD_A)) is None
    trips.on_reply(good, to, now + 0.010, UNIX + now)
    trips.on_reply(good, to, now + 3, UNIX + now)
    assert trips.milliseconds(str(POD_A)) == pytest.approx(10.0)


def test_a_transceiver_that_moved_begins_anew_and_one_that_comes_and_goes_is_not_probed_more_often() -> None:
    trips = RoundTrips(KEYS, seed=1)
    trips.set_addresses({POD_A: A}, 0.0)
    now, probe, to = next(sent(trips, steps(6)))
    trips.on_reply(answer(probe), to, now + 0.01, UNIX + now)
    trips.set_addresses({POD_A: B}, 10.0)
    assert trips.milliseconds(str(POD_A)) is None
    for number in range(100):
        trips.set_addresses({POD_A: B} if number % 2 else {}, 10.0 + number / 100)
    assert len(list(sent(trips, steps(41, 11)))) <= 10


def test_a_new_key_is_used_and_without_one_nothing_is_sent() -> None:
    trips = RoundTrips(KEYS, seed=1)
    trips.set_addresses({POD_A: A}, 0.0)
    trips.set_keys(KeyFile(version=1))
    assert list(sent(trips, steps(20))) == []
    trips.set_keys(KeyFile(version=1, hop=(HopKey(id=8, key=bytes(16)),)))
    assert hop.parse(next(sent(trips, steps(27, 20)))[1]).outer.key_id == 8
