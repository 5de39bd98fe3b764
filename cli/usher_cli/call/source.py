"""What a call sends: Opus packets made once, and the level of each, so that what comes back can be compared.

The test tone changes its level a little: 0 or -4 dB, every 100 ms, in an order that does not repeat for 5 s. The
pattern tells how late the tone comes back, which a steady tone can't.
"""

from __future__ import annotations

import random
import wave
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from usher_cli.call import opus
from usher_cli.call.opus import FRAME_S, FRAME_SAMPLES, RATE, Samples
from usher_core.errors import LocalError

TONE_LEVEL_DBFS = -15.0
PATTERN_S = 5.0
_STEP_S = 0.1
_STEP_DB = -4.0
MAX_WAV_S = 3600
SILENCE_DBFS = -100.0
SOUND_DBFS = -50.0
"""A frame above this level sounds."""


@dataclass(frozen=True, slots=True)
class Source:
    """Packets of 20 ms to send.

    `levels` holds the level of each packet in dBFS; `loop` starts again at the end; `frequency` is that of the test
    tone in Hz, or None.
    """

    packets: tuple[bytes, ...]
    levels: tuple[float, ...]
    loop: bool
    frequency: float | None
    silence: bytes

    def payload(self, index: int) -> bytes:
        """Return packet number `index` of a call; silence after the end."""
        if self.loop:
            return self.packets[index % len(self.packets)]
        return self.packets[index] if index < len(self.packets) else self.silence

    def levels_at(self, indices: NDArray[np.int_]) -> NDArray[np.float64]:
        """Return the levels of packets by their numbers in dBFS; silence before the first and after the last."""
        levels = np.array(self.levels)
        if self.loop:
            return np.where(indices >= 0, levels[indices % len(levels)], SILENCE_DBFS)
        inside = (indices >= 0) & (indices < len(levels))
        return np.where(inside, levels[np.clip(indices, 0, len(levels) - 1)], SILENCE_DBFS)

    def sounding_s(self, within_s: float) -> float:
        """Return for how long it sounds within the first `within_s` seconds of a call."""
        indices = np.arange(max(0, round(within_s / FRAME_S)))
        return float(np.sum(self.levels_at(indices) > SOUND_DBFS)) * FRAME_S

    @property
    def seconds(self) -> float | None:
        """How long it sounds; None: without end."""
        return None if self.loop else len(self.packets) * FRAME_S


def tone(frequency: float, talk_s: float | None = None) -> Source:
    """Return the test tone, for `talk_s` seconds or without end. Raises LocalError for a frequency that can't be sent.

    A multiple of 0.2 Hz fits the pattern a whole number of times, so the loop has no click; others are rounded to it.
    """
    if not 50 <= frequency <= 8000:
        raise LocalError(f"a tone of {frequency:g} Hz is of no use", "choose one within 50..8000 Hz")
    cycles = round(frequency * PATTERN_S)
    frequency = cycles / PATTERN_S
    total = int(PATTERN_S * RATE)
    # Full scale counts as 0 dBFS for the RMS, so a sine is 3 dB above its level.
    loud = 32768 * 10 ** (TONE_LEVEL_DBFS / 20) * np.sqrt(2)
    draw = random.Random(440)  # noqa: S311  (a pattern, no secret)
    steps = np.array([draw.choice((1.0, 10 ** (_STEP_DB / 20))) for _ in range(round(PATTERN_S / _STEP_S))])
    gains = np.repeat(steps, total // len(steps))
    # A step without a ramp would click.
    gains = np.convolve(np.concatenate([gains[-240:], gains, gains[:240]]), np.ones(481) / 481, mode="valid")
    sine = np.sin(2 * np.pi * frequency * np.arange(total) / RATE)
    samples = (loud * gains * sine).astype(np.int16)
    if talk_s is None:
        # The second round: there the encoder has its history, so the loop joins.
        frames = len(samples) // FRAME_SAMPLES
        packets = opus.encode(np.concatenate([samples, samples]))[frames : 2 * frames]
        return _source(packets, samples, loop=True, frequency=frequency)
    wanted = np.resize(samples, max(1, round(talk_s / FRAME_S)) * FRAME_SAMPLES)
    return _source(opus.encode(wanted), wanted, loop=False, frequency=frequency)


def file(path: Path) -> Source:
    """Return the sound of a WAV (or any other audio) file, sent once. Raises LocalError when it can't be read."""
    samples = read_audio(path)
    return _source(opus.encode(samples), samples, loop=False, frequency=None)


def read_audio(path: Path) -> Samples:
    """Return a file's sound as 48 kHz mono. Raises LocalError when it can't be read or is too long."""
    parts: list[Samples] = []
    length = 0
    try:
        with av.open(str(path)) as container:
            resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
            for frame in container.decode(audio=0):
                for resampled in resampler.resample(frame):
                    parts.append(_flat(resampled))
                    length += len(parts[-1])
                if length > MAX_WAV_S * RATE:
                    raise LocalError(f"{path} is longer than {MAX_WAV_S} s")
            parts += [_flat(resampled) for resampled in resampler.resample(None)]
    except (OSError, IndexError, av.FFmpegError) as error:
        reason = getattr(error, "strerror", None) or "no audio in it"
        raise LocalError(f"can't read sound from {path}: {reason}") from None
    if not length:
        raise LocalError(f"{path} holds no sound")
    return np.concatenate(parts)


def write_wav(path: Path, samples: Samples) -> None:
    """Write 48 kHz mono samples. Raises LocalError when the file can't be written."""
    try:
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(RATE)
            out.writeframes(samples.astype("<i2").tobytes())
    except OSError as error:
        raise LocalError(f"can't write {path}: {error.strerror}") from None


def level_dbfs(samples: Samples) -> float:
    """Return the RMS level of samples in dB below full scale (a full-scale sine has -3 dBFS), at least -100."""
    if not len(samples):
        return SILENCE_DBFS
    rms = float(np.sqrt(np.mean(np.square(samples.astype(np.float64)))))
    return max(SILENCE_DBFS, 20 * float(np.log10(rms / 32768))) if rms > 0 else SILENCE_DBFS


def _flat(frame: av.AudioFrame) -> Samples:
    return frame.to_ndarray().reshape(-1).astype(np.int16)


def _source(packets: list[bytes], samples: Samples, *, loop: bool, frequency: float | None) -> Source:
    levels = [level_dbfs(samples[start : start + FRAME_SAMPLES]) for start in range(0, len(samples), FRAME_SAMPLES)]
    silence = opus.encode(np.zeros(10 * FRAME_SAMPLES, np.int16))[-1]
    return Source(tuple(packets), tuple(levels[: len(packets)]), loop, frequency, silence)
