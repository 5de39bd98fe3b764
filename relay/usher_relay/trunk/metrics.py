"""Metrics of a relay's peers. Labels are bounded by the peers file: 64 clusters, 32 addresses of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from usher_relay.trunk.endpoints import EndpointView

_LABELS = ("cluster", "address")


class PeersCollector(Collector):
    """Turns what the probes tell into metrics."""

    def __init__(self, endpoints: Callable[[], Sequence[EndpointView]]) -> None:
        self._endpoints = endpoints

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        up = GaugeMetricFamily("usher_relay_peer_up", "1 while a peer's endpoint answers probes", labels=_LABELS)
        used = GaugeMetricFamily("usher_relay_peer_used", "1 while clients are sent there", labels=_LABELS)
        rtt = GaugeMetricFamily(
            "usher_relay_peer_rtt_seconds", "Median round trip of the last 30 probes that were answered", labels=_LABELS
        )
        loss = GaugeMetricFamily("usher_relay_peer_loss_ratio", "Lost share of the last 30 probes", labels=_LABELS)
        lacks = GaugeMetricFamily(
            "usher_relay_peer_lacks_newest_hop_key",
            "1 while a peer's endpoint says that it does not hold our newest hop key of the trunk to it",
            labels=_LABELS,
        )
        sent = CounterMetricFamily("usher_relay_peer_probes", "Probes sent", labels=_LABELS)
        answered = CounterMetricFamily("usher_relay_peer_probes_answered", "Probes answered", labels=_LABELS)
        for view in self._endpoints():
            labels = (str(view.cluster), view.address)
            up.add_metric(labels, view.up)
            used.add_metric(labels, view.used)
            loss.add_metric(labels, view.loss)
            sent.add_metric(labels, view.sent)
            answered.add_metric(labels, view.answered)
            if view.rtt_ms is not None:
                rtt.add_metric(labels, view.rtt_ms / 1000)
                lacks.add_metric(labels, view.lacks_newest_hop)
        yield from (up, used, rtt, loss, lacks, sent, answered)
