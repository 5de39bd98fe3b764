"""Metrics of this program out of plain numbers, each in one call; names get the program's prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from usher_transceiver.histogram import Histogram

PREFIX: Final = "usher_transceiver_"


def counter(name: str, text: str, value: float) -> Metric:
    """Return one counter."""
    return CounterMetricFamily(PREFIX + name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a counter for each value of a label."""
    family = CounterMetricFamily(PREFIX + name, text, labels=(label,))
    for value, count in values.items():
        family.add_metric((str(value),), count)
    return family


def gauge(name: str, text: str, value: float) -> Metric:
    """Return one gauge."""
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    """Return a gauge for each value of a label."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=(label,))
    for value, count in values.items():
        family.add_metric((str(value),), count)
    return family


def histogram(name: str, text: str, values: Histogram) -> Metric:
    """Return one histogram."""
    return HistogramMetricFamily(PREFIX + name, text, values.buckets, values.sum)


def histograms(name: str, text: str, label: str, values: Mapping[str, Histogram]) -> Metric:
    """Return a histogram for each value of a label."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=(label,))
    for value, counted in values.items():
        family.add_metric((value,), counted.buckets, counted.sum)
    return family
