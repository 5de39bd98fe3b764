"""Choice of the sources of transceivers and relay addresses."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from usher_shell.watched_file import SourceStatus
from usher_signaling.addresses import AddressBook, FixedAddresses
from usher_signaling.metrics import Metrics
from usher_signaling.settings import SignalingSettings
from usher_signaling.transceivers import RouteFile, TransceiverSource, WatchedPods


@dataclass(frozen=True, slots=True)
class Sources:
    """What signaling knows transceivers and relay addresses from; `follow` has to run meanwhile."""

    transceivers: TransceiverSource
    addresses: AddressBook
    statuses: tuple[Callable[[], SourceStatus], ...]
    follow: tuple[Callable[[], Awaitable[None]], ...] = ()

    @property
    def wrong_files(self) -> int:
        """How many of them are files that are missing or wrong."""
        return int(isinstance(self.transceivers, RouteFile) and bool(self.transceivers.status().fault))


def select_sources(settings: SignalingSettings, metrics: Metrics) -> Sources:
    """Return the sources that the settings name, and show how they are in the metrics."""
    if settings.routes_file is not None:
        file = RouteFile(settings.routes_file)
        _show(metrics, "routes", file.status)
        return Sources(file, FixedAddresses(settings.advertised), (file.status,))
    # Imported here: they cost 18 MB and 0.3 s, which signaling with a route file need not pay.
    from usher_shell.pod_watch import PodWatch  # noqa: PLC0415
    from usher_shell.pod_watch_metrics import PodWatchCollector  # noqa: PLC0415
    from usher_signaling.pool_addresses import PoolAddresses  # noqa: PLC0415

    watch = PodWatch(settings.pods_namespace, settings.pods_selector, settings.pods_settle)
    pods = WatchedPods(watch)
    _show(metrics, "routes", pods.status)
    metrics.add(PodWatchCollector(watch, "usher_signaling"))
    if not settings.relay_pools_namespace:
        return Sources(pods, FixedAddresses(settings.advertised), (pods.status,), (pods.run,))
    pools = PoolAddresses(settings.advertised, settings.relay_pools_namespace, watch)
    _show(metrics, "relay_pools", pools.status)
    return Sources(pods, pools, (pods.status, pools.status), (pods.run, pools.run))


def _show(metrics: Metrics, name: str, status: Callable[[], SourceStatus]) -> None:
    def age() -> float:
        found = status().age
        return math.nan if found is None else found

    metrics.watch(f"{name}_source_up", f"Whether the source of the {name} is good now", lambda: not status().fault)
    metrics.watch(
        f"{name}_age_seconds", f"Since the source of the {name} was last good; NaN until it was good once", age
    )
