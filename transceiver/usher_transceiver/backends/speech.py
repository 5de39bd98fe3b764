"""The events that tell a client when it is heard to speak, as in OpenAI's Realtime protocol."""

from secrets import token_hex

from usher_transceiver.backends.protocol import AudioFrame, Event
from usher_transceiver.media.level import level_dbov
from usher_transceiver.media.vad import SpeechChange, Vad, VadSettings


class SpeechEvents:
    """For a backend of kind ``pcm`` whose model does not detect speech itself: feed it every frame."""

    def __init__(self, settings: VadSettings | None = None) -> None:
        self._vad = Vad(settings)
        self._item_id = ""

    @property
    def speaking(self) -> bool:
        return self._vad.speaking

    def on_frame(self, frame: AudioFrame) -> Event | None:
        """Return ``input_audio_buffer.speech_started`` or ``…speech_stopped`` when the frame makes it certain.

        Both name one new ``item_id`` per utterance, and the media time (ms since the call's first audio) at which
        the sound began or ended.
        """
        change = self._vad.on_frame(level_dbov(frame.data), frame.position_ms)
        if change is None:
            return None
        if change is SpeechChange.STARTED:
            self._item_id = f"item_{token_hex(12)}"
        started = change is SpeechChange.STARTED
        return {
            "type": f"input_audio_buffer.speech_{'started' if started else 'stopped'}",
            f"audio_{'start' if started else 'end'}_ms": self._vad.changed_ms,
            "item_id": self._item_id,
        }
