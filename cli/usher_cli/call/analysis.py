"""Judges what was heard: frequency, level, gaps, delay. Pure: frames in, numbers out.

A frame *sounds* when its level is above -50 dBFS; it holds the *tone* when at least half of its energy lies at the
tone's frequency. A gap is time without sound:

* by arrival: from the arrival of one sounding frame to that of the next, less the 20 ms that a frame lasts;
* by content: on the sender's clock, the silence or loss between two sounding frames.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usher_cli.call.opus import FRAME_S, RATE, Samples
from usher_cli.call.reception import HeardFrame
from usher_cli.call.source import SOUND_DBFS, Source, level_dbfs

TONE_ENERGY_SHARE = 0.5
GAP_LISTED_S = 0.1
EDGE_S = 0.06
"""Not counted as time without tone: the first frame may hold half a tone, the last ones are still on their way."""
MAX_GAPS = 100
_FFT_SAMPLES = 32_768
_GRID_S = 0.005
_MAX_DELAY_S = 3.0
_DELAY_WINDOW_S = 5.0
_MIN_DELAY_FRAMES = 25
_MIN_DEVIATION_DB = 0.1
_LEVEL_FLOOR = -60.0
MIN_SIMILARITY = 0.5
"""Below this correlation of levels, what came back does not follow what was sent: there is no delay to speak of."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Time without sound: where it began, in seconds from the first sound, and how long it was."""

    at_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Delay:
    """How late the sound came back: median, and the last window less the first, in seconds."""

    median_s: float
    growth_s: float
    similarity: float


@dataclass(frozen=True, slots=True)
class Findings:
    """What was heard; None where nothing was.

    `tone_share` is the part of the time from the first sound to the end in which the tone was there. `gaps` lists those
    of at least 100 ms by arrival.
    """

    first_sound_at: float | None = None
    heard_s: float = 0.0
    tone_hz: float | None = None
    level_dbfs: float | None = None
    tone_share: float | None = None
    longest_arrival_gap_s: float | None = None
    longest_content_gap_s: float | None = None
    gaps: tuple[Gap, ...] = ()
    delay: Delay | None = None


def analyse(frames: Sequence[HeardFrame], source: Source, sent_from: float, ended_at: float) -> Findings:
    """Judge the frames of a call.

    Args:
        frames: by their place on the sender's clock.
        source: what was sent.
        sent_from: when its first packet was sent, monotonic seconds as in the frames.
        ended_at: when we hung up, or the call ended.
    """
    sounding = [frame for frame in frames if level_dbfs(frame.samples) > SOUND_DBFS]
    if not sounding:
        return Findings()
    first = min(frame.at for frame in sounding)
    arrivals = sorted(frame.at for frame in sounding)
    if source.loop:
        # Sound is due until the end.
        arrivals.append(ended_at)
    gaps = [Gap(a - first, b - a - FRAME_S) for a, b in itertools.pairwise(arrivals)]
    share = None
    if source.frequency is not None:
        with_tone = sum(frame.duration_s for frame in sounding if _has_tone(frame.samples, source.frequency))
        share = min(1.0, with_tone / max(FRAME_S, ended_at - first - EDGE_S))
    return Findings(
        first_sound_at=first,
        heard_s=sum(frame.duration_s for frame in sounding),
        tone_hz=strongest_frequency(np.concatenate([frame.samples for frame in sounding])),
        level_dbfs=level_dbfs(np.concatenate([frame.samples for frame in sounding])),
        tone_share=share,
        longest_arrival_gap_s=max((max(0.0, gap.length_s) for gap in gaps), default=0.0),
        longest_content_gap_s=_longest_content_gap(sounding),
        gaps=tuple(gap for gap in gaps if gap.length_s >= GAP_LISTED_S)[:MAX_GAPS],
        delay=measure_delay(frames, source, sent_from),
    )


def strongest_frequency(samples: Samples) -> float | None:
    """Return the frequency with the most energy in Hz, to a fraction of a Hz; None for less than 20 ms."""
    if len(samples) < FRAME_S * RATE:
        return None
    size = min(_FFT_SAMPLES, len(samples))
    window = np.hanning(size)
    power = np.zeros(_FFT_SAMPLES // 2 + 1)
    for start in range(0, len(samples) - size + 1, size):
        spectrum = np.fft.rfft(samples[start : start + size] * window, _FFT_SAMPLES)
        power += np.abs(spectrum) ** 2
    peak = int(np.argmax(power[1:-1])) + 1
    # The top of the parabola through the logarithms of three bins is the frequency between them.
    low, mid, high = np.log(power[peak - 1 : peak + 2] + 1e-9)
    curve = low - 2 * mid + high
    shift = 0.5 * (low - high) / curve if curve else 0.0
    return float((peak + shift) * RATE / _FFT_SAMPLES)


def measure_delay(frames: Sequence[HeardFrame], source: Source, sent_from: float) -> Delay | None:
    """Find how late the levels of what was sent come back, in windows of 5 s; None when they do not come back.

    Sent and heard levels are correlated on a grid of 5 ms, for delays up to 3 s.
    """
    if not frames:
        return None
    start, end = min(frame.at for frame in frames), max(frame.at for frame in frames)
    count = max(1, int((end - start) / _DELAY_WINDOW_S))
    width = (end - start) / count
    found: list[tuple[float, float]] = []
    for index in range(count):
        since = start + index * width
        window = [frame for frame in frames if since <= frame.at < since + width]
        best = _best_delay(window, source, sent_from)
        if best is not None and best[1] >= MIN_SIMILARITY:
            found.append(best)
    if not found:
        return None
    delays = [delay for delay, _ in found]
    similarity = float(np.median([similarity for _, similarity in found]))
    return Delay(float(np.median(delays)), delays[-1] - delays[0], similarity)


def _best_delay(frames: Sequence[HeardFrame], source: Source, sent_from: float) -> tuple[float, float] | None:
    """Return (delay in s, correlation) where heard and sent levels agree best."""
    if len(frames) < _MIN_DELAY_FRAMES:
        return None
    heard = _standardised(np.array([[max(level_dbfs(frame.samples), _LEVEL_FLOOR) for frame in frames]]))
    times = np.array([frame.at for frame in frames]) - sent_from
    delays = np.arange(0.0, _MAX_DELAY_S, _GRID_S)
    indices = np.floor((times[np.newaxis, :] - delays[:, np.newaxis]) / FRAME_S).astype(int)
    sent = _standardised(np.maximum(source.levels_at(indices), _LEVEL_FLOOR))
    correlations = (sent * heard).mean(axis=1)
    best = float(correlations.max())
    # All delays within one frame look the same: take their middle.
    alike = delays[correlations >= best - 1e-9]
    return float(alike[alike <= alike[0] + FRAME_S].mean()), best


def _standardised(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row with mean 0 and deviation 1; a row that hardly varies becomes 0, so it resembles nothing."""
    deviation = rows.std(axis=1, keepdims=True)
    flat = deviation < _MIN_DEVIATION_DB
    return np.where(flat, 0.0, (rows - rows.mean(axis=1, keepdims=True)) / np.where(flat, 1.0, deviation))


def _has_tone(samples: Samples, frequency: float) -> bool:
    values: NDArray[np.float64] = samples.astype(np.float64)
    energy = float(np.sum(values**2))
    if not energy:
        return False
    turn = np.exp(-2j * np.pi * frequency * np.arange(len(values)) / RATE)
    at_tone = 2 * abs(complex(np.sum(values * turn))) ** 2 / len(values)
    return at_tone >= TONE_ENERGY_SHARE * energy


def _longest_content_gap(sounding: Sequence[HeardFrame]) -> float:
    longest = 0.0
    heard_until = sounding[0].media_s
    for frame in sounding:
        longest = max(longest, frame.media_s - heard_until)
        heard_until = max(heard_until, frame.media_s + frame.duration_s)
    return longest
