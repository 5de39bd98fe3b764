"""How calls were set up and how their networks were, as /metrics tells it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.direct_rig import DirectRig
from tests.raw_client import RawClient
from tests.virtual_loop import run_virtual
from usher_core.internal_api import Timings
from usher_transceiver.histogram import Histogram
from usher_transceiver.session import EndReason


def count(histogram: Histogram) -> float:
    return histogram.buckets[-1][1]


def test_a_value_is_counted_in_each_bucket_that_holds_it_and_beyond_the_last_bound_too() -> None:
    histogram = Histogram((0.01, 0.1))
    for seconds in (0.01, 0.05, 7.0):
        histogram.note(seconds)
    assert histogram.buckets == [("0.01", 1), ("0.1", 2), ("+Inf", 3)]
    assert histogram.sum == pytest.approx(7.06)


def test_a_call_counts_once_when_it_has_ended_and_only_for_what_it_reached(tmp_path: Path) -> None:
    async def main() -> None:
        rig = DirectRig(tmp_path)
        talks, stays_away = (RawClient(rig, port) for port in (2000, 3000))  # type: ignore[arg-type]
        await stays_away.create()
        await talks.create()
        await talks.connect()
        for _ in range(25):
            talks.speak()
            await asyncio.sleep(0.02)
        found = rig.sessions.totals.histograms
        assert {stage: count(histogram) for stage, histogram in found.setup.items()} == dict.fromkeys(found.setup, 0)
        stats = talks.session.stream.stats(rig.sessions.clock())
        await rig.sessions.end_all(EndReason.SHUTDOWN)
        rig.close()

        reached = {stage: count(histogram) for stage, histogram in found.setup.items()}
        assert reached == {"answer": 2, "ice": 1, "dtls": 1, "first_audio_in": 1, "first_audio_out": 0}
        assert count(found.jitter) == 1
        assert count(found.round_trip) == 0
        found.note(Timings(), replace(stats, rtt_ms=80.0))
        assert found.round_trip.sum == pytest.approx(0.08)

    run_virtual(main())


def test_what_waits_to_be_played_is_the_sum_over_all_calls(tmp_path: Path) -> None:
    async def main() -> None:
        rig = DirectRig(tmp_path)
        for port in (2000, 3000):
            client = RawClient(rig, port)  # type: ignore[arg-type]
            await client.create()
            client.session.stream.play(bytes(48 * 500))
        assert rig.sessions.totals.play_queue_ms == 1_000
        await rig.sessions.end_all(EndReason.SHUTDOWN)
        rig.close()

    run_virtual(main())
