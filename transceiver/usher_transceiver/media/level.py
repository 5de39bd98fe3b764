"""How loud a piece of PCM is."""

import math
from typing import Final

import numpy as np

QUIETEST_DBOV: Final = -127.0
"""What digital silence counts as: the least that RFC 6464 can say."""

_FULL_SCALE_POWER: Final = float(32768**2)


def level_dbov(pcm: bytes) -> float:
    """Return the RMS level of s16le PCM in dBov, -127.0 to 0.0; a full scale square wave has 0 (RFC 6464 section 3)."""
    samples = np.frombuffer(pcm, np.int16).astype(np.float32)
    energy = float(samples.dot(samples))
    if energy <= 0:
        return QUIETEST_DBOV
    return max(QUIETEST_DBOV, 10 * math.log10(energy / len(samples) / _FULL_SCALE_POWER))
