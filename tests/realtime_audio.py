"""Audio as a Realtime server sees it: the three formats of the protocol, tones, and speech by its energy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.int16]

FRAME_MS = 20
SPEECH_RMS = 600
"""Of full scale 32768, that is -35 dB: quieter sound is no speech."""
START_MS = 60
"""Of sound on end that make a beginning."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """What `delta` and `audio` hold once base64 is off. `name` is that of the protocol, `beta` that of its beta."""

    name: str
    beta: str
    rate: int

    def encode(self, samples: Samples) -> bytes:
        if self is PCM:
            return samples.astype("<i2").tobytes()
        levels, codes = _BY_LEVEL[self.name]
        # The nearest level: half way between two of them the upper one begins.
        middles = (levels[1:].astype(np.int32) + levels[:-1]) / 2
        return bytes(codes[np.searchsorted(middles, samples)])

    def decode(self, data: bytes) -> Samples:
        if self is PCM:
            return np.frombuffer(data, "<i2").astype(np.int16)
        return np.take(_LEVELS[self.name], np.frombuffer(data, np.uint8))

    def milliseconds(self, data: bytes) -> float:
        return len(data) / (2 if self is PCM else 1) / self.rate * 1000


PCM = AudioFormat("audio/pcm", "pcm16", 24_000)
PCMU = AudioFormat("audio/pcmu", "g711_ulaw", 8_000)
PCMA = AudioFormat("audio/pcma", "g711_alaw", 8_000)
FORMATS = (PCM, PCMU, PCMA)


def _mu_law(code: int) -> int:
    """ITU-T G.711 table 2a: sign, 3 bits of exponent, 4 bits of mantissa, all inverted."""
    code ^= 0xFF
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code >> 4) & 7)) - 0x84
    return -magnitude if code & 0x80 else magnitude


def _a_law(code: int) -> int:
    """ITU-T G.711 table 1a: every other bit is inverted; a set sign means positive."""
    code ^= 0x55
    exponent, mantissa = (code >> 4) & 7, code & 0x0F
    magnitude = (mantissa << 4) + 8 if exponent == 0 else ((mantissa << 4) + 0x108) << (exponent - 1)
    return magnitude if code & 0x80 else -magnitude


_LEVELS = {
    PCMU.name: np.array([_mu_law(code) for code in range(256)], np.int16),
    PCMA.name: np.array([_a_law(code) for code in range(256)], np.int16),
}
_BY_LEVEL = {
    name: (levels[order], order.astype(np.uint8))
    for name, levels in _LEVELS.items()
    for order in [np.argsort(levels, kind="stable")]
}


def tone(hertz: float, seconds: float, rate: int, amplitude: int = 8000) -> Samples:
    phase = 2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate
    samples: Samples = np.rint(amplitude * np.sin(phase)).astype(np.int16)
    return samples


def strongest_hertz(samples: Samples, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate / len(samples))


@dataclass(slots=True)
class EnergyVad:
    """Server VAD: audio of any length in, `("started", ms)` and `("stopped", ms)` out, on the scale of all audio."""

    silence_ms: int = 500
    speaking: bool = False
    heard_ms: float = 0.0
    _rest: Samples = field(default_factory=lambda: np.zeros(0, np.int16))
    _run_ms: int = 0  # of sound while silent, of silence while speaking

    def hear(self, samples: Samples, rate: int) -> list[tuple[str, int]]:
        size = rate * FRAME_MS // 1000
        waiting = np.concatenate([self._rest, samples])
        whole = len(waiting) // size * size
        self._rest = waiting[whole:]
        return [change for frame in waiting[:whole].reshape(-1, size) for change in self._hear_frame(frame)]

    def _hear_frame(self, frame: Samples) -> list[tuple[str, int]]:
        loud = float(np.sqrt(np.mean(np.square(frame.astype(np.float64))))) > SPEECH_RMS
        self.heard_ms += FRAME_MS
        self._run_ms = self._run_ms + FRAME_MS if loud is not self.speaking else 0
        if self._run_ms < (self.silence_ms if self.speaking else START_MS):
            return []
        self.speaking = not self.speaking
        at = round(self.heard_ms - self._run_ms)
        self._run_ms = 0
        return [("started" if self.speaking else "stopped", at)]
