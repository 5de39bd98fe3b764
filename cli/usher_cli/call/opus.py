"""Opus through PyAV: 20 ms packets, mono, 48 kHz. Time in seconds, samples as int16."""

from __future__ import annotations

import fractions
from collections.abc import Iterable, Iterator

import av
import numpy as np
from numpy.typing import NDArray

RATE = 48_000
FRAME_SAMPLES = 960
FRAME_S = FRAME_SAMPLES / RATE
_BIT_RATE = 32_000

Samples = NDArray[np.int16]


def encode(samples: Samples) -> list[bytes]:
    """Return the packets of `samples`, which are padded with silence to whole frames."""
    encoder = av.CodecContext.create("libopus", "w")
    assert isinstance(encoder, av.AudioCodecContext)
    encoder.bit_rate = _BIT_RATE
    encoder.format = "s16"
    encoder.layout = "mono"
    encoder.sample_rate = RATE
    encoder.options = {"application": "voip", "frame_duration": "20"}
    padded = np.pad(samples, (0, -len(samples) % FRAME_SAMPLES))
    packets: list[bytes] = []
    for index, start in enumerate(range(0, len(padded), FRAME_SAMPLES)):
        frame = av.AudioFrame.from_ndarray(padded[np.newaxis, start : start + FRAME_SAMPLES], "s16", "mono")
        frame.sample_rate = RATE
        frame.pts = index * FRAME_SAMPLES
        frame.time_base = fractions.Fraction(1, RATE)
        packets += (bytes(packet) for packet in encoder.encode(frame))
    # FFmpeg holds the encoder's look-ahead back; what flushing yields belongs to the last frames.
    packets += (bytes(packet) for packet in encoder.encode(None))
    return packets[: len(padded) // FRAME_SAMPLES]


def decode(payloads: Iterable[bytes]) -> Iterator[Samples]:
    """Yield the samples of each payload, in the order given; an undecodable one yields none."""
    decoder = av.CodecContext.create("libopus", "r")
    assert isinstance(decoder, av.AudioCodecContext)
    decoder.format = "s16"
    decoder.layout = "mono"
    decoder.sample_rate = RATE
    for payload in payloads:
        try:
            frames = decoder.decode(av.Packet(payload)) if payload else []
        except av.FFmpegError:
            frames = []
        parts = [frame.to_ndarray().reshape(-1).astype(np.int16) for frame in frames]
        yield np.concatenate(parts) if parts else np.zeros(0, np.int16)
