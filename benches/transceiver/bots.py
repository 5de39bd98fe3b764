"""The backends of the bench: a bot that talks 40 % of the time, and one that passes packets through undecoded."""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from usher_transceiver.backends.protocol import AudioFrame, AudioKind, BackendCall, BackendConfig, Event
from usher_transceiver.media.frame import FRAME_MS

TALKS_MS, EVERY_MS = 2_000, 5_000
RATE = 24_000
ENTRY_POINTS = """[usher.backends]
bench-talker = benches.transceiver.bots:Talker
bench-passing = benches.transceiver.bots:Passing
"""


class _Bot:
    """Answers no event, and has nothing to let go."""

    audio: AudioKind

    def __init__(self, config: BackendConfig) -> None:
        self.call: BackendCall | None = None

    async def start(self, call: BackendCall) -> None:
        self.call = call

    def on_event(self, event: Event) -> bool:
        return False

    async def close(self, reason: str) -> None:
        self.call = None


def _speech() -> bytes:
    """Something that costs an encoder about what a voice costs it: a tone that glides, with overtones."""
    phase, samples = 0.0, []
    for number in range(RATE * TALKS_MS // 1000):
        phase += 2 * math.pi * (130 + 25 * math.sin(number / 5000)) / RATE
        samples.append(round(3000 * sum(math.sin(k * phase) / k for k in range(1, 12))))
    return struct.pack(f"<{len(samples)}h", *samples)


class Talker(_Bot):
    """Hears all the client says, and says 2 s of every 5 s by itself.

    Each at its own time. The load places all calls at once, and bots that begin to talk when they are called talk all
    together, for which the transceiver needs what as many calls with full codec need.
    """

    audio: AudioKind = "pcm"
    SPEECH = _speech()
    _numbers = count()

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        # Steps of the golden section fall evenly, however many there are.
        self._at_ms = int(next(self._numbers) * 0.618 % 1 * EVERY_MS) // FRAME_MS * FRAME_MS

    def on_audio(self, frame: AudioFrame) -> None:
        if self.call is not None and frame.position_ms % EVERY_MS == self._at_ms:
            self.call.play(self.SPEECH)


class Passing(_Bot):
    """Sends back the packets as they came."""

    audio: AudioKind = "opus"

    def on_audio(self, frame: AudioFrame) -> None:
        if self.call is not None and frame.data:
            self.call.play_opus(frame.data)


@contextmanager
def installed() -> Iterator[str]:
    """Give the backends their entry points; yield the PYTHONPATH with which a transceiver finds them."""
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "usher_bench-0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: usher-bench\nVersion: 0\n")
        (described / "entry_points.txt").write_text(ENTRY_POINTS)
        yield f"{folder}:{Path(__file__).parents[2]}"
