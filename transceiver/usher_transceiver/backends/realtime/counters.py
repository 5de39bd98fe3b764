"""What the Realtime backend counts, over all calls of the process (docs/metrics.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from usher_transceiver.histogram import Histogram

CONNECT_BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OUTCOMES = (
    "completed",
    "abandoned",
    "refused",
    "rate_limited",
    "upstream_error",
    "unreachable",
    "timeout",
    "closed",
    "stalled",
    "internal_error",
)
DIRECTIONS = ("to_upstream", "from_upstream")
DROPS = ("audio_overflow", "event_overflow", "cancelled_audio", "bad_audio", "bad_event")
TRUNCATIONS = ("partly_heard", "unheard", "refused")


def _zeros(names: tuple[str, ...]) -> Callable[[], Counter[str]]:
    # A series that begins at 1 has no rate: the first refused call would raise no alert.
    return lambda: Counter(dict.fromkeys(names, 0))


@dataclass(slots=True)
class RealtimeCounters:
    """Plain numbers, read at a scrape."""

    calls: Counter[str] = field(default_factory=_zeros(OUTCOMES))
    events: Counter[str] = field(default_factory=_zeros(DIRECTIONS))
    dropped_bytes: Counter[str] = field(default_factory=_zeros(DROPS))
    truncations: Counter[str] = field(default_factory=_zeros(TRUNCATIONS))
    queued_bytes: int = 0
    """What waits for all WebSockets together."""
    held_bytes: int = 0
    """What came from all WebSockets and was neither played nor passed on yet."""
    held_back: int = 0
    """How often a server was not read because all calls together held too much."""
    connects: Histogram = field(default_factory=lambda: Histogram(CONNECT_BUCKETS_S))
    """Seconds that connections took to be made."""
