"""Tones and what can be measured of them; s16le mono PCM at 24 kHz."""

from collections.abc import Iterator

import numpy as np

from usher_transceiver.media.frame import FRAME_BYTES, SAMPLE_RATE
from usher_transceiver.media.level import level_dbov

level = level_dbov


def tone(hertz: float, *, seconds: float, amplitude: int = 8000) -> bytes:
    t = np.arange(round(SAMPLE_RATE * seconds)) / SAMPLE_RATE
    return bytes(np.rint(amplitude * np.sin(2 * np.pi * hertz * t)).astype(np.int16))


def frames_of(pcm: bytes) -> Iterator[bytes]:
    """20 ms each; a rest is left out."""
    return (pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm) - FRAME_BYTES + 1, FRAME_BYTES))


def frequency(pcm: bytes) -> float:
    """The strongest frequency in Hz, between the bins of a padded spectrum."""
    samples = np.frombuffer(pcm, np.int16)
    length = max(1 << 18, len(samples))
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), length))
    return float(np.argmax(spectrum) * SAMPLE_RATE / length)
