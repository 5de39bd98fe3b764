"""Tells speech from silence by energy, one frame of 20 ms at a time, without I/O.

The threshold follows the background noise, but never above a fixed level: whatever is as loud as a voice counts as
one, so a steady tone is speech and not, after a while, background.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from usher_transceiver.media.frame import FRAME_MS
from usher_transceiver.media.level import QUIETEST_DBOV

_RISE_DB: Final = 0.02  # per frame: 1 dB/s
_HYSTERESIS_DB: Final = 4.0


@dataclass(frozen=True, slots=True)
class VadSettings:
    """How speech is told from silence."""

    loudest_threshold_dbov: float = -38.0
    """Always speech above this. Voices with automatic gain are at -30 to -15."""
    quietest_threshold_dbov: float = -52.0
    """Never speech below this: breath, and the hum of a quiet room."""
    above_noise_db: float = 12.0
    start_ms: int = 40
    """Of sound within the last `start_window_ms` that make a beginning; one click is less."""
    start_window_ms: int = 100
    stop_ms: int = 500
    """Of silence that make an end; the usual choice of realtime models."""


class SpeechChange(Enum):
    """What a frame brought."""

    STARTED = auto()
    STOPPED = auto()


class Vad:
    """Feed it every frame, silent ones too."""

    def __init__(self, settings: VadSettings | None = None) -> None:
        self.speaking = False
        self.changed_ms = 0
        """Media time at which the last change really happened: before the frame that made it known."""
        self._settings = settings or VadSettings()
        self._noise: float | None = None
        self._recent: deque[bool] = deque(maxlen=self._settings.start_window_ms // FRAME_MS)
        self._quiet_ms = 0

    def on_frame(self, level_dbov: float, position_ms: int) -> SpeechChange | None:
        """Take the level of the frame that begins at `position_ms`; return the change that it makes certain."""
        settings = self._settings
        noise = self._follow_noise(level_dbov)
        threshold = min(
            max(noise + settings.above_noise_db, settings.quietest_threshold_dbov), settings.loudest_threshold_dbov
        )
        if self.speaking:
            return self._while_speaking(level_dbov > threshold - _HYSTERESIS_DB, position_ms)
        self._recent.append(level_dbov > threshold)
        if sum(self._recent) * FRAME_MS < settings.start_ms:
            return None
        first = len(self._recent) - 1 - self._recent.index(True)  # frames ago
        self.speaking = True
        self.changed_ms = position_ms - first * FRAME_MS
        self._quiet_ms = 0
        self._recent.clear()
        return SpeechChange.STARTED

    def _while_speaking(self, loud: bool, position_ms: int) -> SpeechChange | None:
        self._quiet_ms = 0 if loud else self._quiet_ms + FRAME_MS
        if self._quiet_ms < self._settings.stop_ms:
            return None
        self.speaking = False
        self.changed_ms = position_ms + FRAME_MS - self._quiet_ms
        return SpeechChange.STOPPED

    def _follow_noise(self, level_dbov: float) -> float:
        """Down at once, up slowly: the quietest of the last while. Digital silence says nothing about a room."""
        if level_dbov > QUIETEST_DBOV:
            self._noise = level_dbov if self._noise is None else min(level_dbov, self._noise + _RISE_DB)
        return QUIETEST_DBOV if self._noise is None else self._noise
