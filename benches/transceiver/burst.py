"""Many calls that begin at once: how long their offers wait, and what the calls notice that go on beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benches import _up
from benches.transceiver.holding import quantile_ms, start_load, wait_connected
from benches.transceiver.servers import Server

RATE = 50
LIVE_SPARE_S = 2.0


@dataclass(frozen=True, slots=True)
class Burst:
    """Times in ms: p50 and p99 of one burst. `live_*` is what the calls noticed that were there before."""

    calls: int
    failed: int
    answer_p50: float
    answer_p99: float
    connected_p50: float
    connected_p99: float
    lag_p99: float
    live_gap_p50: float
    live_gap_p99: float
    live_lost_percent: float
    live_check_p99: float


def measure(server: Server, load_cpu: int, calls: int, live: int) -> Burst:
    """Let `calls` begin at RATE a second while `live` go on."""
    length = calls / RATE + 1.0
    steady = start_load(server.url, load_cpu, live, length + 6.0 + LIVE_SPARE_S)
    try:
        wait_connected(server, live, steady)
        time.sleep(1.0)
        before = server.sample()
        burst = start_load(server.url, load_cpu, calls, 1.0, f"--rate={RATE}")
        found = _up.result(burst)["load"]
        after = server.sample()
        beside = _up.result(steady)["load"]
    finally:
        steady.kill()
    late = [last - first for first, last in zip(before.lateness, after.lateness, strict=True)]
    return Burst(
        calls=found["light_calls"],
        failed=sum(found["wrong"].values()),
        answer_p50=found["offer_answer_ms"]["p50"],
        answer_p99=found["offer_answer_ms"]["p99"],
        connected_p50=_sum_of(found, "p50"),
        connected_p99=_sum_of(found, "p99"),
        lag_p99=quantile_ms(late, 0.99),
        live_gap_p50=beside["longest_gap_ms"]["p50"],
        live_gap_p99=beside["longest_gap_ms"]["p99"],
        live_lost_percent=round(100 * beside["lost_share"], 3),
        live_check_p99=beside["check_rtt_ms"]["p99"],
    )


def _sum_of(found: dict[str, Any], share: str) -> float:
    """Offer to DTLS done; the sum of the shares of its three parts is an upper bound of the sum's share."""
    return round(sum(float(found[part][share]) for part in ("offer_answer_ms", "ice_ms", "dtls_ms")), 1)


def median_of(bursts: Sequence[Burst]) -> dict[str, float]:
    """Return the medians of all values, and the most of the failures."""
    names = Burst.__dataclass_fields__
    medians = {name: statistics.median(getattr(burst, name) for burst in bursts) for name in names}
    return {**medians, "failed": max(burst.failed for burst in bursts), "bursts": len(bursts)}
