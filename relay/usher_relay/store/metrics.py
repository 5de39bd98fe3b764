"""Metrics of the store of mappings; only where Redis is configured. Labels are bounded."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from usher_relay.store.counters import Lookup, Refusal, StoreCounters, Write
from usher_relay.store.redis_store import RedisStore


class StoreCollector(Collector):
    """Turns what the store counts into metrics."""

    def __init__(self, counters: StoreCounters, store: RedisStore) -> None:
        self._counters = counters
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        counters = self._counters
        yield GaugeMetricFamily(
            "usher_relay_redis_away", "1 while Redis does not answer in time", value=float(not self._store.is_up)
        )
        yield GaugeMetricFamily(
            "usher_relay_redis_refuses_writes",
            "1 while Redis takes no mappings",
            value=float(self._store.refuses_writes),
        )
        yield CounterMetricFamily(
            "usher_relay_redis_failures", "Operations that failed or were late", value=counters.failures
        )
        yield _by("usher_relay_redis_lookups", "Look-ups of unknown clients", "result", counters.lookups)
        yield _by("usher_relay_redis_writes", "Mappings to be written", "result", counters.writes)
        yield _by("usher_relay_redis_refusals", "Values that are not believed", "reason", counters.refusals)
        yield GaugeMetricFamily(
            "usher_relay_redis_write_queue", "Mappings that wait to be written", value=counters.queued
        )
        yield GaugeMetricFamily(
            "usher_relay_redis_loaded", "Mappings that were loaded at the start", value=counters.loaded
        )


def _by(name: str, text: str, label: str, counts: dict[Lookup, int] | dict[Write, int] | dict[Refusal, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value.value,), count)
    return family
