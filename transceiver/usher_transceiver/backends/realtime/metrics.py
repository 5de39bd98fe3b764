"""What /metrics shows of the Realtime backend, where it is set up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from usher_transceiver.backends.realtime.counters import RealtimeCounters

_PREFIX = "usher_transceiver_realtime_"


class RealtimeCollector(Collector):
    """Reads the counters of one process."""

    def __init__(self, counters: RealtimeCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        counters = self._counters
        yield _counters("calls", "Calls by what became of their Realtime connection", "outcome", counters.calls)
        yield self._connect_seconds()
        yield _counters("events", "Messages to and from the Realtime server", "direction", counters.events)
        yield _counters("dropped_bytes", "Dropped between client and server", "reason", counters.dropped_bytes)
        yield _counters("truncations", "Interrupted parts of answers", "kind", counters.truncations)
        text = "Waiting for the WebSockets of all calls"
        yield GaugeMetricFamily(_PREFIX + "queued_bytes", text, value=counters.queued_bytes)

    def _connect_seconds(self) -> Metric:
        took = self._counters.connects
        text = "From the start of a connection until it was open"
        return HistogramMetricFamily(_PREFIX + "connect_seconds", text, buckets=took.buckets, sum_value=took.sum)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family
