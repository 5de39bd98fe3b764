"""What arrived: RTP packets as they came, put in order and decoded after the call.

Everything here is taken from the packets themselves, at the moment the client's RTP receiver got them, before aiortc's
jitter buffer: that one stands still for 300 ms after a single loss and stays late for the rest of the call, so a gap
measured behind it would be the client's own. Decoding happens after the call, so it costs the call nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from usher_cli.call import opus
from usher_cli.call.opus import RATE, Samples

MAX_PACKETS = 50 * 3600
"""Packets kept of one call: an hour."""


@dataclass(frozen=True, slots=True)
class RtpArrival:
    """A received packet: `at` in monotonic seconds, RTP sequence number (16 bits) and timestamp (32 bits), payload."""

    at: float
    sequence: int
    timestamp: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class HeardFrame:
    """A decoded packet: `at` as it arrived; `media_s` its place on the sender's clock, from 0."""

    at: float
    media_s: float
    samples: Samples

    @property
    def duration_s(self) -> float:
        return len(self.samples) / RATE


@dataclass(frozen=True, slots=True)
class Reception:
    """The frames of one call by their sequence numbers, and how many packets of the sequence never came."""

    frames: tuple[HeardFrame, ...]
    lost: int


def receive(arrivals: Sequence[RtpArrival]) -> Reception:
    """Put packets in order, drop duplicates, count losses (RFC 3550 appendix A.3), decode."""
    if not arrivals:
        return Reception((), 0)
    by_sequence: dict[int, tuple[RtpArrival, int]] = {}
    sequence, timestamp = 0, 0
    previous = arrivals[0]
    for arrival in arrivals:
        # Both counters wrap, and a late packet lies a little before the one that came last.
        sequence += _signed(arrival.sequence - previous.sequence, 16)
        timestamp += _signed(arrival.timestamp - previous.timestamp, 32)
        previous = arrival
        by_sequence.setdefault(sequence, (arrival, timestamp))
    ordered = [by_sequence[number] for number in sorted(by_sequence)]
    decoded = opus.decode(arrival.payload for arrival, _ in ordered)
    origin = ordered[0][1]
    frames = tuple(
        HeardFrame(arrival.at, (stamp - origin) / RATE, samples)
        for (arrival, stamp), samples in zip(ordered, decoded, strict=True)
    )
    return Reception(frames, max(by_sequence) - min(by_sequence) + 1 - len(by_sequence))


def _signed(difference: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (difference + half) % (1 << bits) - half
