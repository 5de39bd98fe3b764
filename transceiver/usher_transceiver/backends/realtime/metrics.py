"""What /metrics shows of the Realtime backend, where it is set up."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from usher_transceiver.backends.realtime.counters import RealtimeCounters
from usher_transceiver.metric_families import counter, counters, gauge, histogram


class RealtimeCollector(Collector):
    """Reads the counters of one process."""

    def __init__(self, counters: RealtimeCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        counted = self._counters
        text = "Calls by what became of their Realtime connection"
        yield counters("realtime_calls", text, "outcome", counted.calls)
        text = "From the start of a connection until it was open"
        yield histogram("realtime_connect_seconds", text, counted.connects)
        text = "Messages to and from the Realtime server"
        yield counters("realtime_events", text, "direction", counted.events)
        text = "Dropped between client and server"
        yield counters("realtime_dropped_bytes", text, "reason", counted.dropped_bytes)
        yield counters("realtime_truncations", "Interrupted parts of answers", "kind", counted.truncations)
        yield gauge("realtime_queued_bytes", "Waiting for the WebSockets of all calls", counted.queued_bytes)
        yield gauge("realtime_held_bytes", "Come from the WebSockets of all calls and not played", counted.held_bytes)
        text = "How often a server was not read because all calls together held too much"
        yield counter("realtime_held_back", text, counted.held_back)
