"""A call that writes down what a backend does to it."""

from collections.abc import Mapping
from typing import Any

from usher_transceiver.backends.protocol import Event
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_MS


class WrittenCall:
    """Keeps what is played as the queue of a stream would: `played` is what was never cleared."""

    id = "call-1"
    session: Mapping[str, Any] = {}
    metadata: Mapping[str, str] = {}
    played_ms = 0

    def __init__(self) -> None:
        self.queue = bytearray()
        self.events: list[Event] = []
        self.clears = 0

    @property
    def queued_ms(self) -> int:
        return len(self.queue) // FRAME_BYTES * FRAME_MS

    def play(self, pcm: bytes) -> int:
        self.queue += pcm
        return len(pcm) // 48

    def play_opus(self, packet: bytes) -> int:
        raise AssertionError("these backends play PCM")

    def clear(self) -> int:
        self.clears += 1
        dropped = self.queued_ms
        self.queue.clear()
        return dropped

    def send_event(self, event: Event) -> None:
        self.events.append(event)

    def end(self, reason: str) -> None:
        raise AssertionError("these backends never hang up")

    def end_when_told(self, reason: str) -> None:
        raise AssertionError("these backends never hang up")

    @property
    def times(self) -> list[tuple[str, int]]:
        return [(event["type"], event.get("audio_start_ms", 0) or event["audio_end_ms"]) for event in self.events]
