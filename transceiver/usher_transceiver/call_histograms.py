"""How calls were set up, and how their networks were: histograms over calls, for /metrics.

Each call is noted once, when it has ended, so that no packet pays for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from usher_core.internal_api import Timings
from usher_transceiver.histogram import Histogram
from usher_transceiver.media.stream import StreamStats

SETUP_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
NETWORK_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)


class CallHistograms:
    """See the module."""

    def __init__(self) -> None:
        self.jitter = Histogram(NETWORK_S)
        self.round_trip = Histogram(NETWORK_S)
        self._answer = Histogram(SETUP_S)
        self._ice = Histogram(SETUP_S)
        self._dtls = Histogram(SETUP_S)
        self._first_audio_in = Histogram(SETUP_S)
        self._first_audio_out = Histogram(SETUP_S)

    @property
    def setup(self) -> Mapping[str, Histogram]:
        """From the arrival of the offer, by what was reached then."""
        return {
            "answer": self._answer,
            "ice": self._ice,
            "dtls": self._dtls,
            "first_audio_in": self._first_audio_in,
            "first_audio_out": self._first_audio_out,
        }

    def note(self, timings: Timings, stats: StreamStats) -> None:
        """Count a call that has ended; what it never reached, and what nobody measured, does not count."""
        _note_ms(self._answer, timings.answer_ms)
        _note_ms(self._ice, timings.ice_ms)
        _note_ms(self._dtls, timings.dtls_ms)
        _note_ms(self._first_audio_in, timings.first_audio_in_ms)
        _note_ms(self._first_audio_out, timings.first_audio_out_ms)
        _note_ms(self.jitter, stats.jitter_ms if stats.packets_received else None)
        _note_ms(self.round_trip, stats.rtt_ms)


def _note_ms(histogram: Histogram, ms: float | None) -> None:
    if ms is not None:
        histogram.note(ms / 1000)
