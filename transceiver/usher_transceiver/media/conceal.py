"""Makes up lost audio where a codec does not: the last period of the voice again and again, fading.

After ITU-T G.711 appendix I, without its extra delay: the period is where the recent past resembles itself best. One
period is made seamless by fading its end into what preceded it, and is repeated at full level for 10 ms and then
more and more quietly, to silence at 60 ms. What comes next is faded in over 5 ms of the same.
"""

from typing import Final

import numpy as np

from usher_transceiver.media.frame import SAMPLE_RATE
from usher_transceiver.media.resample import Samples

_MS: Final = SAMPLE_RATE // 1000
_SHORTEST: Final = 5 * _MS // 2  # a voice of 400 Hz
_LONGEST: Final = 15 * _MS  # 67 Hz
_COMPARED: Final = 20 * _MS
_HISTORY: Final = _COMPARED + _LONGEST
_FULL: Final = 10 * _MS
_FADED: Final = 60 * _MS
_JOINT: Final = 5 * _MS


class Concealer:
    """For one decoder, at `SAMPLE_RATE`: tell it what was decoded, ask it for what was lost."""

    def __init__(self) -> None:
        self._history: Samples = np.zeros(_HISTORY, np.float32)
        self._cycle: Samples | None = None
        self._made_up = 0  # samples since the last that was decoded

    def heard(self, samples: Samples) -> Samples:
        """Take decoded samples, remember them, and return them, joined to what was made up before."""
        if self._cycle is not None:
            made_up = self._repeat(min(_JOINT, len(samples)))
            ramp = np.linspace(0, 1, len(made_up), dtype=np.float32)
            samples = samples.copy()
            samples[: len(made_up)] = samples[: len(made_up)] * ramp + made_up * (1 - ramp)
            self._cycle = None
            self._made_up = 0
        self._history = np.concatenate((self._history, samples))[-_HISTORY:]
        return samples

    def make_up(self, count: int) -> Samples:
        """Return `count` samples for what was lost."""
        if self._cycle is None:
            self._cycle = _seamless(self._history, _period(self._history))
        return self._repeat(count)

    def _repeat(self, count: int) -> Samples:
        assert self._cycle is not None
        at = np.arange(self._made_up, self._made_up + count)
        self._made_up += count
        gain = np.clip((_FADED - at) / (_FADED - _FULL), 0, 1).astype(np.float32)
        repeated: Samples = self._cycle[at % len(self._cycle)] * gain
        return repeated


def _period(history: Samples) -> int:
    """Return the distance at which the end of the history resembles itself best, in samples."""
    recent = history[-_COMPARED:]
    # At index i stands the part that begins _LONGEST - i before the recent one.
    likeness = np.correlate(history, recent, "valid")[: _LONGEST - _SHORTEST + 1]
    power = np.convolve(history * history, np.ones(_COMPARED, np.float32), "valid")[: len(likeness)]
    return _LONGEST - int(np.argmax(likeness / np.sqrt(power + 1)))


def _seamless(history: Samples, period: int) -> Samples:
    cycle = history[-period:].copy()
    joint = period // 4
    ramp = np.linspace(0, 1, joint, dtype=np.float32)
    cycle[-joint:] = cycle[-joint:] * (1 - ramp) + history[-period - joint : -period] * ramp
    return cycle
