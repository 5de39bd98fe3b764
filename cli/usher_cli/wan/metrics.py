"""Metrics of links. The label is bounded by the settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from usher_cli.wan.link import UdpLink
from usher_core.ids import join_host_port


class LinksCollector(Collector):
    """Tells what became of the packets of each link."""

    def __init__(self, links: Sequence[UdpLink]) -> None:
        self._links = links

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        packets = CounterMetricFamily("usher_wan_packets", "Packets by what became of them", labels=("there", "fate"))
        waiting = GaugeMetricFamily("usher_wan_waiting", "Packets on the way", labels=("there",))
        held = GaugeMetricFamily("usher_wan_waiting_bytes", "Bytes of packets on the way", labels=("there",))
        for link in self._links:
            there = join_host_port(*link.target)
            for fate, count in (
                ("forwarded", link.forwarded),
                ("lost", link.lost),
                ("dropped", link.dropped),
                ("unreachable", link.unreachable),
            ):
                packets.add_metric((there, fate), count)
            waiting.add_metric((there,), link.waiting)
            held.add_metric((there,), link.waiting_bytes)
        yield from (packets, waiting, held)
