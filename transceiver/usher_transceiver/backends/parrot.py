"""Listens until you pause, then says back what you said: a whole conversation without a model."""

from typing import Final

from usher_transceiver.backends.protocol import AudioFrame, AudioKind, BackendCall, BackendConfig, Event
from usher_transceiver.backends.speech import SpeechEvents
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_MS

_PREFIX_MS: Final = 200
"""Kept from before the detected beginning, which the soft start of a word precedes."""
_SUFFIX_MS: Final = 100
"""Kept after the detected end; the rest of the pause is not said back."""
_MAX_RECORDING_MS: Final = 30_000
_CANCELLING: Final = ("output_audio_buffer.clear", "response.cancel")


class ParrotBackend:
    """States: waiting (keeps the last `_PREFIX_MS`), recording, and speaking, which is waiting with a play queue.

    New speech interrupts what is being said back. A recording is bounded; what is said after that is not kept.
    """

    audio: AudioKind = "pcm"

    def __init__(self, config: BackendConfig) -> None:
        self._speech = SpeechEvents()
        self._call: BackendCall | None = None
        self._recording = bytearray()
        self._begins_ms = 0  # media time of the recording's first sample

    async def start(self, call: BackendCall) -> None:
        self._call = call

    def on_audio(self, frame: AudioFrame) -> None:
        if self._call is None:
            return
        self._keep(frame)
        event = self._speech.on_frame(frame)
        if event is None:
            return
        self._call.send_event(event)
        if self._speech.speaking:
            self._call.clear()
        else:
            self._say_back(self._call, event["audio_end_ms"])

    def _keep(self, frame: AudioFrame) -> None:
        limit_ms = _MAX_RECORDING_MS if self._speech.speaking else _PREFIX_MS
        if not self._recording:
            self._begins_ms = frame.position_ms
        if len(self._recording) < limit_ms // FRAME_MS * FRAME_BYTES:
            self._recording += frame.data
        elif not self._speech.speaking:
            self._recording += frame.data
            del self._recording[:FRAME_BYTES]
            self._begins_ms += FRAME_MS

    def _say_back(self, call: BackendCall, end_ms: int) -> None:
        length_ms = end_ms + _SUFFIX_MS - self._begins_ms
        call.play(bytes(self._recording[: length_ms // FRAME_MS * FRAME_BYTES]))
        self._recording.clear()

    def on_event(self, event: Event) -> bool:
        if event.get("type") not in _CANCELLING:
            return False
        if self._call is not None:
            self._call.clear()
        return True

    async def close(self, reason: str) -> None:
        self._call = None
        self._recording.clear()
