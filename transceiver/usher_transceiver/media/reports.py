"""What RTCP reports are made of and tell: loss, jitter and round trip of one stream each way (RFC 3550 section 6.4).

Our NTP times are seconds since the stream began, as section 6.4.1 allows to those who keep no wall clock.
"""

from typing import Final

from usher_transceiver.media.rtcp import ReportBlock
from usher_transceiver.media.sequence import Unwrapper

_MAX_RTT: Final = 10.0
"""Seconds. More than this is a report about something else."""


def ntp(seconds: float) -> int:
    """Return seconds as an NTP timestamp, 32.32 bits fixed point."""
    return round(seconds * (1 << 32)) & 0xFFFFFFFFFFFFFFFF


def compact(timestamp: int) -> int:
    """Return the middle 32 bits of an NTP timestamp."""
    return timestamp >> 16 & 0xFFFFFFFF


def round_trip(block: ReportBlock, now_ntp: int) -> float | None:
    """Return the round trip in seconds that a report block about us shows (section 6.4.1), or None if it shows none."""
    if block.last_sr == 0:
        return None
    elapsed = compact(now_ntp) - block.last_sr - block.delay_since_last_sr & 0xFFFFFFFF
    if elapsed >= 1 << 31:  # the far end's clock rounds: a little below nothing
        return 0.0
    seconds = elapsed / 65536
    return seconds if seconds <= _MAX_RTT else None


class Reception:
    """Counts what comes from one source, for its report block (appendices A.3 and A.8)."""

    def __init__(self, ssrc: int, clock_rate: int, sequence: int) -> None:
        self.ssrc = ssrc
        self.received = 0
        self.jitter = 0.0
        """In units of the RTP clock."""
        self._clock_rate = clock_rate
        self._sequence = Unwrapper(16, sequence)
        self._first = self._highest = sequence
        self._transit: int | None = None
        self._expected_before = 0
        self._received_before = 0
        self._last_sr = 0
        self._last_sr_at = 0.0

    @property
    def lost(self) -> int:
        """Packets that did not come, less those that came twice."""
        return self._highest - self._first + 1 - self.received

    def on_packet(self, now: float, sequence: int, timestamp: int) -> None:
        number = self._sequence.last + self._sequence.distance(sequence)
        if number > self._highest:
            self._highest = self._sequence.last = number
        self.received += 1
        transit = int(now * self._clock_rate) - timestamp & 0xFFFFFFFF
        if self._transit is not None:
            difference = (transit - self._transit + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
            self.jitter += (abs(difference) - self.jitter) / 16
        self._transit = transit

    def on_sender_report(self, now: float, ntp_timestamp: int) -> None:
        self._last_sr = compact(ntp_timestamp)
        self._last_sr_at = now

    def block(self, now: float) -> ReportBlock:
        """Return the block for the next report; the fraction lost is that since the last call."""
        expected = self._highest - self._first + 1
        expected_now = expected - self._expected_before
        lost_now = expected_now - (self.received - self._received_before)
        self._expected_before, self._received_before = expected, self.received
        fraction = min(255, (lost_now << 8) // expected_now) if expected_now > 0 and lost_now > 0 else 0
        # Never below 0, which no field holds: a report must not be able to end a call.
        delay = max(0, round((now - self._last_sr_at) * 65536)) if self._last_sr else 0
        return ReportBlock(self.ssrc, fraction, self.lost, self._highest, int(self.jitter), self._last_sr, delay)
