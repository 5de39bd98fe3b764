"""Metrics of signaling. Every label has a fixed set of values: nothing that a caller writes becomes one."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "usher_signaling_requests",
            "Requests answered, by route template and status",
            ["route", "status"],
            registry=self._registry,
        )
        self.seconds = Histogram(
            "usher_signaling_request_seconds",
            "From a request's header to the end of its answer",
            ["route"],
            buckets=LATENCY_BUCKETS,
            registry=self._registry,
        )
        self.under_way = Gauge("usher_signaling_requests_under_way", "Requests being served", registry=self._registry)
        self.max_connections = Gauge(
            "usher_signaling_max_connections",
            "Client connections that may be open at once, by settings and descriptors",
            registry=self._registry,
        )
        self.evicted = Counter(
            "usher_signaling_connections_evicted",
            "Client connections without a request that were closed to make room for others",
            registry=self._registry,
        )
        self.placements = Counter(
            "usher_signaling_placements",
            "Tries to place a call at a transceiver: placed, refused (full or draining), timed_out, unreachable, "
            "failed, bad_offer, no_backend, backend_failed; and nobody: calls that no transceiver took",
            ["outcome"],
            registry=self._registry,
        )
        self.away = Counter(
            "usher_signaling_calls_away",
            "Calls placed at a transceiver of another region than their own",
            registry=self._registry,
        )
        self.region_forwards = Counter(
            "usher_signaling_region_forwards",
            "Requests handed on to other regions, by kind (offer, close, request, side_band): answered, refused, "
            "timed_out, failed, cancelled, own_fault; and skipped: not handed on, since the region failed, had no room "
            "or has enough of ours",
            ["region", "kind", "outcome"],
            registry=self._registry,
        )
        self.from_regions = Counter(
            "usher_signaling_from_regions",
            "Requests with a region token: taken, wrong_region_token, invalid_forward",
            ["outcome"],
            registry=self._registry,
        )
        self.auth_failures = Counter(
            "usher_signaling_auth_failures", "Callers turned away, by error code", ["code"], registry=self._registry
        )

        self.limited = Counter(
            "usher_signaling_limited",
            "Requests answered 429, by the limit that they would have gone beyond",
            ["limit"],
            registry=self._registry,
        )
        self.redis_failures = Counter(
            "usher_signaling_redis_failures", "Questions that Redis did not answer", registry=self._registry
        )
        self.redis_crowded = Counter(
            "usher_signaling_redis_crowded",
            "Questions that Redis was not asked, since all connections were busy",
            registry=self._registry,
        )
        self.traces_refused = Counter(
            "usher_signaling_traces_refused",
            "Looks at calls with ?trace=1 answered 503, since others were being traced",
            registry=self._registry,
        )
        self.closings_left_out = Counter(
            "usher_signaling_closings_left_out",
            "Placements without an answer that were not closed, since too many closings were under way",
            registry=self._registry,
        )

    def watch(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Show a number that is asked for when the metrics are read."""
        Gauge(f"usher_signaling_{name}", description, registry=self._registry).set_function(value)

    def add(self, collector: Collector) -> None:
        """Show the metrics of a part that has its own."""
        self._registry.register(collector)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)
