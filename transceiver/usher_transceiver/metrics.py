"""What /metrics shows. Counted as plain numbers where it happens, read here at a scrape: a packet pays for no lock.

Labels are reasons, kinds and states from fixed sets; never an address, a ufrag or a name from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from usher_transceiver.histogram import Histogram
from usher_transceiver.hop_socket import HopSocket
from usher_transceiver.media.ticker import Ticker
from usher_transceiver.mux import Mux
from usher_transceiver.process_load import ProcessLoad
from usher_transceiver.sessions import SessionRegistry
from usher_transceiver.transceiver_keys import TransceiverKeys

PACKET_EVENTS = ("received", "sent", "resent", "lost", "late", "recovered", "skipped", "refused")

_PREFIX = "usher_transceiver_"


class TransceiverCollector(Collector):
    """Reads the counters of one process."""

    def __init__(
        self,
        sessions: SessionRegistry,
        mux: Mux,
        socket: HopSocket,
        ticker: Ticker,
        keys: TransceiverKeys,
        codec: str,
        process: ProcessLoad,
    ) -> None:
        self._sessions = sessions
        self._mux = mux
        self._socket = socket
        self._ticker = ticker
        self._keys = keys
        self._codec = codec
        self._process = process

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        yield from self._of_sessions()
        yield from self._of_audio()
        yield from self._of_backends()
        yield from self._of_packets()
        yield from self._of_process()

    def _of_sessions(self) -> Iterable[Metric]:
        load = self._sessions.load()
        states = dict.fromkeys(("new", "connecting", "connected"), 0)
        for session in self._sessions:
            states[session.state] = states.get(session.state, 0) + 1
        yield _gauges("sessions", "Live sessions by state", "state", states)
        yield _gauge("sessions_limit", "Most sessions at a time", load.max_sessions)
        yield _gauge("draining", "1 while no new calls are taken", load.draining)
        yield _counter("sessions_created", "Sessions made", self._sessions.created)
        yield _counters("sessions_ended", "Sessions ended by reason", "reason", self._sessions.ended)
        yield _counters("sessions_refused", "Creates refused by reason", "reason", self._sessions.refused)
        sent = self._sessions.unsent
        yield _gauge("observers", "Observers (side-bands) of all calls", self._sessions.observers)
        dropped = self._sessions.observers_dropped
        yield _counters("observers_dropped", "Observers turned away or dropped by reason", "reason", dropped)
        yield _counter("unsent", "Datagrams without a path, or beyond the bound of an unconfirmed address", sent)
        refused = self._sessions.refused_events
        yield _counter("events_refused", "Events that the policy of their sender's key did not allow", refused)
        waiting = self._sessions.channel_bytes
        yield _gauge("channel_bytes", "Waiting to be sent on the data channels of all calls", waiting)
        yield _counter("events_dropped", "Events that did not fit the channel or its queue", self._sessions.lost_events)

        stages = self._sessions.histograms.setup
        yield _histograms("setup_seconds", "From the offer to each stage of a call's set-up", "stage", stages)

    def _of_audio(self) -> Iterable[Metric]:
        counts = self._sessions.audio
        packets = {event: counts[event] for event in PACKET_EVENTS}
        yield _counters("audio_packets", "RTP packets of all calls, by what happened to them", "event", packets)
        seconds = {event: counts[f"{event}_ms"] / 1000 for event in ("concealed", "played", "unplayed")}
        yield _counters("audio_seconds", "Audio made up, played, and dropped from the play queue", "event", seconds)
        waiting = self._sessions.play_queue_ms / 1000
        yield _gauge("play_queue_seconds", "Audio that waits to be played, of all calls", waiting)
        histograms = self._sessions.histograms
        yield _histogram("jitter_seconds", "Jitter of the packets of clients, of ended calls", histograms.jitter)
        yield _histogram("round_trip_seconds", "Round trip by RTCP, of ended calls", histograms.round_trip)

    def _of_backends(self) -> Iterable[Metric]:
        watch = self._sessions.backend_watch
        yield _counters("backend_slow", "Callbacks of backends that held up the loop", "callback", watch.slow)
        unheard = watch.unheard_ms / 1000
        yield _counter("backend_unheard_seconds", "Audio for which a coroutine was too late", unheard)
        yield _counter("backend_events_refused", "Events that found no room before a coroutine", watch.refused_events)

    def _of_packets(self) -> Iterable[Metric]:
        mux, socket = self._mux, self._socket
        yield _counter("hop_received", "Hop datagrams received", mux.received)
        yield _counter("hop_records", "Records in accepted hop datagrams", mux.records)
        yield _counter("hop_sent", "Hop datagrams sent", mux.sent)
        yield _counter("hop_sent_records", "Records in hop datagrams sent", mux.sent_records)
        yield _counters("drops", "Datagrams and records dropped by reason", "reason", mux.drops)
        yield _counters("checks", "Binding requests by outcome", "outcome", mux.checks)
        yield _counters("reports", "UNKNOWN-FLOW and HERE sent", "kind", mux.reports)
        yield _counters("send_failures", "Datagrams the kernel did not take", "reason", socket.send_failures)
        yield _counter("receive_failures", "Errors of the hop socket while reading", socket.receive_failures)
        remembered = self._sessions.transaction_ids
        yield _gauge("transaction_ids", "Ids of checks remembered for live sessions", remembered)
        yield _gauge("client_paths", "Client addresses that belong to a session", mux.paths)
        yield _counter("split_joined", "Datagrams put together from two halves", mux.joiner.joined)
        yield _counter("split_expired", "Halves of datagrams whose other half did not come", mux.joiner.expired)
        yield _counter("split_overflowed", "Halves that had to make room", mux.joiner.overflowed)
        yield _gauge("hop_time_offset_seconds", "How far the last relay's clock is ahead", mux.time_offset_ms / 1000)
        buffers = {"receive": socket.receive_buffer, "send": socket.send_buffer}
        if socket.kernel_drops is not None:
            yield _counter("kernel_drops", "Datagrams the kernel dropped: the buffer was full", socket.kernel_drops)
        yield _gauges("socket_buffer_bytes", "Buffers of the hop socket", "direction", buffers)

    def _of_process(self) -> Iterable[Metric]:
        yield _counter("ticks", "Ticks of 20 ms", self._ticker.ticks)
        yield _counter("late_ticks", "Ticks that came more than 10 ms late", self._ticker.late_ticks)
        yield _counter("skipped_ticks", "Ticks given up after a stall", self._ticker.skipped_ticks)
        yield _gauge("worst_late_seconds", "Latest tick since the beginning", self._ticker.worst_late)
        yield _histogram("tick_lateness_seconds", "How late ticks came: the lag of the loop", self._ticker.lateness)
        yield _gauge("tasks", "Tasks of the loop: a few, some for each live call and each HTTP request", _tasks())
        yield _counter("cpu_seconds", "CPU that the process has used, user and system", self._process.cpu_seconds)
        yield _gauge("loop_lag_seconds", "How late the event loop was at most in the last 5 s", self._process.lag)
        yield _gauge("key_file_wrong", "1 while the key file is lost or broken", self._keys.is_wrong)
        yield InfoMetricFamily(f"{_PREFIX}codec", "The Opus codec in use", {"codec": self._codec})


def make_metrics(collector: TransceiverCollector) -> CollectorRegistry:
    """Return the registry that /metrics shows."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=(label,))
    for value, count in values.items():
        family.add_metric((str(value),), count)
    return family


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0  # a scrape outside of the loop


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(_PREFIX + name, text, histogram.buckets, histogram.sum)


def _histograms(name: str, text: str, label: str, histograms: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(_PREFIX + name, text, labels=(label,))
    for value, histogram in histograms.items():
        family.add_metric((value,), histogram.buckets, histogram.sum)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, text, labels=(label,))
    for value, count in values.items():
        family.add_metric((str(value),), count)
    return family
