"""What was heard against what was said: intelligibility, delay, its growth, and stalls."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benches.voice.ends import HeardFrame
from usher_transceiver.media.frame import FRAME_SECONDS, SAMPLE_RATE, Origin

Samples = NDArray[np.float64]

_BLOCK: Final = SAMPLE_RATE // 2
_LATEST: Final = round(0.8 * SAMPLE_RATE)
_SPEECH_RMS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Score:
    """Of one direction of one call."""

    stoi: float
    """0 to 1 (Taal 2011). Each half second is put in its place first, so delay by itself takes nothing from it."""
    delay: float
    """Seconds from mouth to ear, codec included, the mean over all half seconds with speech."""
    growth: float
    """Seconds by which the last third of the call is later than the second; in the first the delay finds its size."""
    stall: float
    """Seconds of the longest time in which nothing received was heard; made-up audio counts as nothing."""


def score(said: bytes, said_from: float, heard: Sequence[HeardFrame], heard_from: float) -> Score:
    """Compare; times in seconds of the same clock."""
    clean = np.frombuffer(said, "<i2").astype(np.float64)
    offset = round((heard_from - said_from) * SAMPLE_RATE)
    line = np.frombuffer(b"".join(frame.pcm for frame in heard), "<i2").astype(np.float64)
    line = np.concatenate((np.zeros(max(0, offset)), line, np.zeros(len(clean) + _LATEST)))
    delays: list[int] = []
    parts: list[Samples] = []
    lag = 0
    for at in range(0, len(clean) - _BLOCK + 1, _BLOCK):
        block = clean[at : at + _BLOCK]
        if _rms(block) > _SPEECH_RMS:
            lag = _lag(block, line[at : at + _BLOCK + _LATEST])
            delays.append(lag)
        parts.append(line[at + lag : at + lag + _BLOCK])
    placed = np.concatenate(parts)
    from pystoi import stoi  # noqa: PLC0415 - with all of SciPy, for which others of this module need not wait

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pystoi warns where there is too little speech to judge
        intelligibility = float(stoi(clean[: len(placed)], placed, SAMPLE_RATE))
    third = len(delays) // 3
    middle, last = float(np.mean(delays[third:-third])), float(np.mean(delays[-third:]))
    return Score(
        stoi=intelligibility,
        delay=float(np.mean(delays)) / SAMPLE_RATE,
        growth=(last - middle) / SAMPLE_RATE,
        stall=longest_stall(heard),
    )


def longest_stall(heard: Sequence[HeardFrame]) -> float:
    """Seconds; what comes before the first and after the last frame received does not count, nor do pauses (DTX)."""
    runs = [
        (received, [frame.origin for frame in frames])
        for received, frames in groupby(heard, key=lambda frame: frame.origin is Origin.RECEIVED)
    ]
    inner = runs[1:-1] if len(runs) > 2 else []
    stalls = [len(origins) for received, origins in inner if not received and Origin.CONCEALED in origins]
    return max(stalls, default=0) * FRAME_SECONDS


def _rms(samples: Samples) -> float:
    return float(np.sqrt(np.mean(samples**2)))


def _lag(block: Samples, line: Samples) -> int:
    """Where in `line` the block is most like it."""
    size = 1 << (len(line) - 1).bit_length()
    spectrum = np.fft.rfft(line, size) * np.conj(np.fft.rfft(block, size))
    likeness = np.fft.irfft(spectrum, size)[: len(line) - len(block) + 1]
    sums = np.concatenate(([0.0], np.cumsum(line**2)))
    power = sums[len(block) :] - sums[: -len(block)]
    return int(np.argmax(likeness / np.sqrt(power[: len(likeness)] + 1)))
