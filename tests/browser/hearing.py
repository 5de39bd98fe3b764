"""Tells from recorded samples whether a tone came through whole: pitch, level, share of the time, longest gap."""

import base64
import math
import wave
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TONE_HZ = 440
TONE_DB = 20 * math.log10(0.25 / math.sqrt(2))  # a sine of a quarter of full scale
BLOCK_S = 0.01


@dataclass(frozen=True, slots=True)
class Heard:
    seconds: float
    frequency_hz: float  # of the strongest sound
    level_db: float  # below full scale, median over blocks of 10 ms
    share: float  # of the blocks that hold the tone, 0 to 1
    longest_gap_ms: float  # without the tone


def write_tone(path: Path, seconds: int = 4) -> None:
    """A 48 kHz mono file of whole periods, so that a player that loops it makes no click."""
    rate = 48_000
    samples = 0.25 * np.sin(2 * np.pi * TONE_HZ * np.arange(seconds * rate) / rate)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def hear(recording: dict[str, Any], hertz: float = TONE_HZ) -> Heard:
    """What `ear.listen()` of ear.js returned, and how much of it is a tone."""
    rate = recording["rate"]
    samples = np.frombuffer(base64.b64decode(recording["pcm"]), "<i2") / 32768
    skipped = recording["skipped"]
    assert skipped < 20 * len(samples) / rate, f"the recorder itself lost {skipped} ms, more than 2 %"
    size = round(rate * BLOCK_S)
    blocks = samples[: len(samples) // size * size].reshape(-1, size)
    holds_tone = _tone_share(blocks, rate, hertz) > 0.9
    level_db = 10 * np.log10(np.mean(blocks**2, axis=1) + 1e-12)
    holds_tone &= np.abs(level_db - np.median(level_db)) < 6
    gaps = [len(list(run)) for tone, run in groupby(holds_tone) if not tone]
    return Heard(
        seconds=len(samples) / rate,
        frequency_hz=_strongest(samples, rate),
        level_db=float(np.median(level_db)),
        share=float(np.mean(holds_tone)),
        longest_gap_ms=max(gaps, default=0) * BLOCK_S * 1000,
    )


def _tone_share(blocks: NDArray[np.float64], rate: int, hertz: float) -> NDArray[np.float64]:
    """How much of each block's energy a sine of the tone's pitch explains (least squares)."""
    phase = 2 * np.pi * hertz * np.arange(blocks.shape[1]) / rate
    basis, _ = np.linalg.qr(np.column_stack([np.sin(phase), np.cos(phase)]))
    explained = np.sum((blocks @ basis) ** 2, axis=1)
    return np.asarray(explained / (np.sum(blocks**2, axis=1) + 1e-9))


def _strongest(samples: NDArray[np.float64], rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate / len(samples))
