"""Says every frame back at once: for testing the path, not the patience."""

from usher_transceiver.backends.protocol import AudioFrame, AudioKind, BackendCall, BackendConfig, Event
from usher_transceiver.backends.speech import SpeechEvents
from usher_transceiver.media.frame import Origin


class EchoBackend:
    """Plays from within `on_audio`, so a frame leaves in the tick in which it was heard."""

    audio: AudioKind = "pcm"

    def __init__(self, config: BackendConfig) -> None:
        self._speech = SpeechEvents()
        self._call: BackendCall | None = None

    async def start(self, call: BackendCall) -> None:
        self._call = call

    def on_audio(self, frame: AudioFrame) -> None:
        if self._call is None:
            return
        if frame.origin is not Origin.SILENCE:
            self._call.play(frame.data)
        event = self._speech.on_frame(frame)
        if event is not None:
            self._call.send_event(event)

    def on_event(self, event: Event) -> bool:
        return False

    async def close(self, reason: str) -> None:
        self._call = None
