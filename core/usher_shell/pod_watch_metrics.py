"""Metrics of a Pod watch, beside those that every source of routes has."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from usher_core.pod_routes import REASONS
from usher_shell.object_watch import RESTARTS, TOO_MANY
from usher_shell.pod_watch import PodWatch


class PodWatchCollector(Collector):
    """Shows how a Pod watch is; `prefix` is the program's, such as `usher_relay`."""

    def __init__(self, watch: PodWatch, prefix: str) -> None:
        self._watch = watch
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield GaugeMetricFamily(
            f"{self._prefix}_pods_conflicting",
            "Pods whose route an older pod has",
            value=float(self._watch.conflicts),
        )
        skipped = GaugeMetricFamily(
            f"{self._prefix}_pods_skipped", "Pods that have no route though they should", labels=("reason",)
        )
        for reason in (*REASONS, TOO_MANY):
            skipped.add_metric((reason,), float(self._watch.skipped[reason]))
        yield skipped
        restarts = CounterMetricFamily(
            f"{self._prefix}_pods_watch_restarts", "Ends of lists and watches of pods, by reason", labels=("reason",)
        )
        for reason in RESTARTS:
            restarts.add_metric((reason,), float(self._watch.restarts[reason]))
        yield restarts
