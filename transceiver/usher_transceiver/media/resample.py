"""Sample rates changed by whole factors: windowed-sinc FIR filters in polyphase form that remember what came before.

Mono float32 samples, in pieces that are not empty and divide by the factor; each piece gives exactly its share, so a
filter's delay (half its length) is the only one there is.
"""

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Samples = NDArray[np.float32]

_KAISER_BETA: Final = 5.65  # 60 dB of stop band: below what 8 bit or a codec's noise leave audible


def low_pass(taps: int, cutoff_hz: float, rate_hz: int) -> Samples:
    """Return the symmetric kernel that passes what is below `cutoff_hz` (there -6 dB) with a gain of 1."""
    offsets = np.arange(taps) - (taps - 1) / 2
    kernel = np.sinc(offsets * 2 * cutoff_hz / rate_hz) * np.kaiser(taps, _KAISER_BETA)
    normed: Samples = (kernel / kernel.sum()).astype(np.float32)
    return normed


class Decimator:
    """Takes `factor` samples for one. `kernel` is a low pass at the higher rate."""

    def __init__(self, kernel: Samples, factor: int) -> None:
        self._kernel = kernel
        self._factor = factor
        self._before: Samples = np.zeros(len(kernel) - 1, np.float32)

    def __call__(self, samples: Samples) -> Samples:
        line = np.concatenate((self._before, samples))
        self._before = line[-len(self._before) :]
        windows = sliding_window_view(line, len(self._kernel))[:: self._factor]
        filtered: Samples = windows @ self._kernel
        return filtered


class Interpolator:
    """Makes `factor` samples of one. `kernel` is a low pass at the higher rate, its length a multiple of `factor`."""

    def __init__(self, kernel: Samples, factor: int) -> None:
        # Each output phase has its own taps, the newest sample last as in the windows below.
        self._phases = np.ascontiguousarray(kernel.reshape(-1, factor)[::-1] * np.float32(factor))
        self._before: Samples = np.zeros(len(self._phases) - 1, np.float32)

    def __call__(self, samples: Samples) -> Samples:
        line = np.concatenate((self._before, samples))
        self._before = line[-len(self._before) :]
        filtered: Samples = sliding_window_view(line, len(self._phases)) @ self._phases
        return filtered.reshape(-1)
