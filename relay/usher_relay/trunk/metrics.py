"""Metrics of a relay's peers. Labels are bounded by the peers file: 64 clusters, 32 addresses of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from usher_relay.trunk.peering import EndpointView

_LABELS = ("cluster", "address")


class PeersCollector(Collector):
    """Turns what the probes tell into metrics."""

    def __init__(self, endpoints: Callable[[], Sequence[EndpointView]]) -> None:
        self._endpoints = endpoints

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        up = GaugeMetricFamily("usher_relay_peer_up", "1 while a peer's endpoint answers probes", labels=_LABELS)
        rtt = GaugeMetricFamily(
            "usher_relay_peer_rtt_seconds", "Round trip of the last probe that was answered", labels=_LABELS
        )
        sent = CounterMetricFamily("usher_relay_peer_probes", "Probes sent", labels=_LABELS)
        answered = CounterMetricFamily("usher_relay_peer_probes_answered", "Probes answered", labels=_LABELS)
        for view in self._endpoints():
            labels = (str(view.cluster), view.address)
            up.add_metric(labels, view.up)
            sent.add_metric(labels, view.sent)
            answered.add_metric(labels, view.answered)
            if view.rtt_ms is not None:
                rtt.add_metric(labels, view.rtt_ms / 1000)
        yield from (up, rtt, sent, answered)
