"""The relay's metrics, read from the engine when they are scraped. Labels are bounded: no address, no ufrag, no pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from usher_relay.engine.interface import Engine, Snapshot
from usher_shell.watched_file import SourceStatus


class RelayCollector(Collector):
    """Turns what engine and sources know into metrics; `sources` are `routes` and `keys`.

    `with_store` is whether a store of mappings is asked: nobody else sees what there is to count of one.
    """

    def __init__(
        self, engine: Engine, sources: Mapping[str, Callable[[], SourceStatus]], *, with_store: bool = False
    ) -> None:
        self._engine = engine
        self._sources = sources
        self._with_store = with_store

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        snapshot = self._engine.snapshot()
        yield InfoMetricFamily("usher_relay_engine", "Engine of the data path", {"engine": self._engine.name})
        yield from _traffic(snapshot, with_store=self._with_store)
        yield from _flows(snapshot)
        yield from _routes(snapshot)
        yield _keys(snapshot)
        for name, source in self._sources.items():
            yield from _source(name, source())
        yield from self._sockets()
        yield _gauge(
            "usher_relay_heartbeat_age_seconds", "Since the data thread last began a round", snapshot.heartbeat_age
        )

    def _sockets(self) -> Iterator[Metric]:
        labels = ("socket",)
        receive = GaugeMetricFamily("usher_relay_receive_buffer_bytes", "SO_RCVBUF as granted", labels=labels)
        send = GaugeMetricFamily("usher_relay_send_buffer_bytes", "SO_SNDBUF as granted", labels=labels)
        drops = CounterMetricFamily(
            "usher_relay_kernel_drops", "Datagrams the kernel dropped: the receive buffer was full", labels=labels
        )
        for status in self._engine.sockets():
            receive.add_metric((status.name,), status.receive_buffer)
            send.add_metric((status.name,), status.send_buffer)
            if status.kernel_drops is not None:
                drops.add_metric((status.name,), status.kernel_drops)
        yield from (receive, send, drops)


def relay_registry(
    engine: Engine, sources: Mapping[str, Callable[[], SourceStatus]], *, with_store: bool = False
) -> CollectorRegistry:
    """Return a registry of its own with the relay's metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RelayCollector(engine, sources, with_store=with_store))
    return registry


def _traffic(snapshot: Snapshot, *, with_store: bool) -> Iterator[Metric]:
    counters = snapshot.counters
    labels = ("direction",)
    batches = CounterMetricFamily("usher_relay_batches", "Batches that datagrams were received in", labels=labels)
    received = CounterMetricFamily("usher_relay_received", "Datagrams received", labels=labels)
    packets = CounterMetricFamily("usher_relay_packets", "Client datagrams forwarded", labels=labels)
    payload = CounterMetricFamily("usher_relay_bytes", "Payload bytes forwarded", labels=labels)
    for direction, traffic in (("uplink", counters.uplink), ("downlink", counters.downlink)):
        batches.add_metric((direction,), traffic.batches)
        received.add_metric((direction,), traffic.received)
        packets.add_metric((direction,), traffic.forwarded)
        payload.add_metric((direction,), traffic.forwarded_bytes)
    drops = CounterMetricFamily("usher_relay_drops", "Datagrams dropped, by reason", labels=("reason",))
    for reason, count in counters.drops.items():
        drops.add_metric((reason.value,), count)
    yield from (batches, received, packets, payload, drops)
    yield CounterMetricFamily(
        "usher_relay_tentative", "Packets of unknown addresses tried by SSRC", value=counters.tentative
    )
    lookups = CounterMetricFamily(
        "usher_relay_lookups", "Questions whose an unknown address is, and answers", labels=("event",)
    )
    lookups.add_metric(("asked",), counters.questions)
    lookups.add_metric(("found_address",), counters.found_by_address)
    lookups.add_metric(("found_ssrc",), counters.found_by_ssrc)
    if with_store:
        lookups.add_metric(("asked_store",), counters.store_asked)
        lookups.add_metric(("skipped_store",), counters.store_skipped)
        lookups.add_metric(("found_store",), counters.store_found)
        lookups.add_metric(("found_loaded",), counters.store_loaded)
        yield CounterMetricFamily(
            "usher_relay_unnamed_flows", "Flows that could not be named to Redis in time", value=counters.store_unnamed
        )
    yield lookups
    yield _gauge(
        "usher_relay_waiting_bytes",
        "Client datagrams that wait for an answer of Redis or of a transceiver",
        counters.waiting_bytes,
    )
    yield CounterMetricFamily("usher_relay_split", "Client datagrams cut in two to fit the hop", value=counters.split)
    yield _gauge(
        "usher_relay_hop_time_offset_seconds",
        "How far the clock of the last transceiver heard is ahead of ours",
        counters.hop_time_offset_ms / 1000,
    )
    yield _gauge(
        "usher_relay_hop_time_offset_max_seconds",
        "Largest clock offset of a transceiver, either way, within a minute; more than 60 is refused",
        counters.hop_time_offset_max_ms / 1000,
    )


def _flows(snapshot: Snapshot) -> Iterator[Metric]:
    flows = GaugeMetricFamily("usher_relay_flows", "Client addresses remembered, by state", labels=("state",))
    flows.add_metric(("confirmed",), snapshot.flows_confirmed)
    flows.add_metric(("probation",), snapshot.flows_on_probation)
    flows.add_metric(("ended",), snapshot.flows_ended)
    events = CounterMetricFamily("usher_relay_flow_events", "What happened to flows", labels=("event",))
    for event, count in snapshot.counters.flow_events.items():
        events.add_metric((event.value,), count)
    yield from (flows, events)


def _routes(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge("usher_relay_routes", "Transceivers in the route table", snapshot.routes)
    yield _gauge(
        "usher_relay_routes_unreachable",
        "Transceivers of an address family we have no socket for",
        snapshot.routes_unreachable,
    )


def _source(name: str, source: SourceStatus) -> Iterator[Metric]:
    yield _gauge(f"usher_relay_{name}_source_up", f"Whether the source of the {name} is good now", not source.fault)
    if source.age is not None:
        yield _gauge(f"usher_relay_{name}_age_seconds", f"Since the source of the {name} was last good", source.age)


def _keys(snapshot: Snapshot) -> Metric:
    keys = GaugeMetricFamily(
        "usher_relay_keys", "Keys held, by list, id (ice: letter) and state", labels=("list", "id", "state")
    )
    for (key_list, key_id, state), count in Counter((key.list, key.id, key.state) for key in snapshot.keys).items():
        keys.add_metric((key_list, key_id, state), count)
    return keys


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))
