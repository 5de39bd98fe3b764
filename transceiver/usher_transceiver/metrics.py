"""What /metrics shows. Counted as plain numbers where it happens, read here at a scrape: a packet pays for no lock.

Labels are reasons, kinds and states from fixed sets; never an address, a ufrag or a name from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from usher_transceiver.hop_socket import HopSocket
from usher_transceiver.media.ticker import Ticker
from usher_transceiver.metric_families import PREFIX, counter, counters, gauge, gauges, histogram, histograms
from usher_transceiver.mux import Mux
from usher_transceiver.process_load import ProcessLoad
from usher_transceiver.sessions import SessionRegistry
from usher_transceiver.transceiver_keys import TransceiverKeys

PACKET_EVENTS = ("received", "sent", "resent", "lost", "late", "recovered", "skipped", "refused")


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
        load, totals = self._sessions.load(), self._sessions.totals
        states = dict.fromkeys(("new", "connecting", "connected"), 0)
        for session in self._sessions:
            states[session.state] = states.get(session.state, 0) + 1
        yield gauges("sessions", "Live sessions by state", "state", states)
        yield gauge("sessions_limit", "Most sessions at a time", load.max_sessions)
        yield gauge("draining", "1 while no new calls are taken", load.draining)
        yield counter("sessions_created", "Sessions made", self._sessions.created)
        yield counters("sessions_ended", "Sessions ended by reason", "reason", totals.ended)
        yield counters("sessions_refused", "Creates refused by reason", "reason", self._sessions.refused)
        sent = totals.unsent
        yield gauge("observers", "Observers (side-bands) of all calls", totals.observers)
        dropped = self._sessions.observers_dropped
        yield counters("observers_dropped", "Observers turned away or dropped by reason", "reason", dropped)
        yield counter("unsent", "Datagrams without a path, or beyond the bound of an unconfirmed address", sent)
        refused = totals.refused_events
        yield counter("events_refused", "Events that the policy of their sender's key did not allow", refused)
        waiting = totals.channel_bytes
        yield gauge("channel_bytes", "Waiting to be sent on the data channels of all calls", waiting)
        yield counter("events_dropped", "Events that did not fit the channel or its queue", totals.lost_events)

        stages = totals.histograms.setup
        yield histograms("setup_seconds", "From the offer to each stage of a call's set-up", "stage", stages)

    def _of_audio(self) -> Iterable[Metric]:
        totals = self._sessions.totals
        counts = totals.audio
        packets = {event: counts[event] for event in PACKET_EVENTS}
        yield counters("audio_packets", "RTP packets of all calls, by what happened to them", "event", packets)
        seconds = {event: counts[f"{event}_ms"] / 1000 for event in ("concealed", "played", "unplayed")}
        yield counters("audio_seconds", "Audio made up, played, and dropped from the play queue", "event", seconds)
        waiting = totals.play_queue_ms / 1000
        yield gauge("play_queue_seconds", "Audio that waits to be played, of all calls", waiting)
        networks = totals.histograms
        yield histogram("jitter_seconds", "Jitter of the packets of clients, of ended calls", networks.jitter)
        yield histogram("round_trip_seconds", "Round trip by RTCP, of ended calls", networks.round_trip)

    def _of_backends(self) -> Iterable[Metric]:
        watch = self._sessions.backend_watch
        yield counters("backend_slow", "Callbacks of backends that held up the loop", "callback", watch.slow)
        unheard = watch.unheard_ms / 1000
        yield counter("backend_unheard_seconds", "Audio for which a coroutine was too late", unheard)
        yield counter("backend_events_refused", "Events that found no room before a coroutine", watch.refused_events)

    def _of_packets(self) -> Iterable[Metric]:
        mux, socket = self._mux, self._socket
        yield counter("hop_received", "Hop datagrams received", mux.received)
        yield counter("hop_records", "Records in accepted hop datagrams", mux.records)
        yield counter("hop_sent", "Hop datagrams sent", mux.sent)
        yield counter("hop_sent_records", "Records in hop datagrams sent", mux.sent_records)
        yield counters("drops", "Datagrams and records dropped by reason", "reason", mux.drops)
        yield counters("checks", "Binding requests by outcome", "outcome", mux.checks)
        yield counters("reports", "UNKNOWN-FLOW and HERE sent", "kind", mux.reports)
        yield counters("send_failures", "Datagrams the kernel did not take", "reason", socket.send_failures)
        yield counter("receive_failures", "Errors of the hop socket while reading", socket.receive_failures)
        remembered = self._sessions.totals.transaction_ids
        yield gauge("transaction_ids", "Ids of checks remembered for live sessions", remembered)
        yield gauge("client_paths", "Client addresses that belong to a session", mux.paths)
        yield counter("split_joined", "Datagrams put together from two halves", mux.joiner.joined)
        yield counter("split_expired", "Halves of datagrams whose other half did not come", mux.joiner.expired)
        yield counter("split_overflowed", "Halves that had to make room", mux.joiner.overflowed)
        yield gauge("hop_time_offset_seconds", "How far the last relay's clock is ahead", mux.time_offset_ms / 1000)
        buffers = {"receive": socket.receive_buffer, "send": socket.send_buffer}
        if socket.kernel_drops is not None:
            yield counter("kernel_drops", "Datagrams the kernel dropped: the buffer was full", socket.kernel_drops)
        yield gauges("socket_buffer_bytes", "Buffers of the hop socket", "direction", buffers)

    def _of_process(self) -> Iterable[Metric]:
        yield counter("ticks", "Ticks of 20 ms", self._ticker.ticks)
        yield counter("late_ticks", "Ticks that came more than 10 ms late", self._ticker.late_ticks)
        yield counter("skipped_ticks", "Ticks given up after a stall", self._ticker.skipped_ticks)
        yield gauge("worst_late_seconds", "Latest tick since the beginning", self._ticker.worst_late)
        yield histogram("tick_lateness_seconds", "How late ticks came: the lag of the loop", self._ticker.lateness)
        yield gauge("tasks", "Tasks of the loop: a few, some for each live call and each HTTP request", _tasks())
        yield counter("cpu_seconds", "CPU that the process has used, user and system", self._process.cpu_seconds)
        yield gauge("loop_lag_seconds", "How late the event loop was at most in the last 5 s", self._process.lag)
        yield gauge("key_file_wrong", "1 while the key file is lost or broken", self._keys.is_wrong)
        yield InfoMetricFamily(f"{PREFIX}codec", "The Opus codec in use", {"codec": self._codec})


def make_metrics(collector: TransceiverCollector) -> CollectorRegistry:
    """Return the registry that /metrics shows."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0  # a scrape outside of the loop
