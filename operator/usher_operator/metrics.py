"""Metrics of the operator (docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class OperatorMetrics:
    """All metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.leader = Gauge("usher_operator_leader", "1 while this replica does the work", registry=registry)
        self.passes = Counter(
            "usher_operator_passes", "Looks at a pool, by kind and outcome", ("kind", "outcome"), registry=registry
        )
        self.pass_seconds = Histogram(
            "usher_operator_pass_seconds",
            "Duration of a look at a pool and of what it led to",
            ("kind",),
            buckets=SECONDS,
            registry=registry,
        )
        self.errors = Counter(
            "usher_operator_errors", "What went wrong in passes, by reason", ("reason",), registry=registry
        )
        self.pods_waiting = Gauge(
            "usher_operator_pods_waiting", "Transceiver pods without a pod id, as of the last look", registry=registry
        )
        self.pods_waiting_seconds = Gauge(
            "usher_operator_pods_waiting_seconds", "How long the oldest of them has waited", registry=registry
        )
        self.keys_waiting_seconds = Gauge(
            "usher_operator_keys_waiting_seconds",
            "How long the step of a key rotation that waits longest has waited for programs",
            registry=registry,
        )
        self.api_requests = Counter(
            "usher_operator_api_requests",
            "Requests to the API server by verb and status code, kopf's own left out",
            ("verb", "code"),
            registry=registry,
        )
        self.watch_age = Gauge(
            "usher_operator_watch_age_seconds", "Since an event came from any watch", registry=registry
        )
        self.loads = Counter(
            "usher_operator_load_requests", "Requests for the load of a transceiver, by outcome", ("outcome",),
            registry=registry,
        )  # fmt: skip
