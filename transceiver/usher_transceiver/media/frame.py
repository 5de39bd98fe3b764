"""What one piece of audio is, and the numbers everybody in media agrees on."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

SAMPLE_RATE: Final = 24_000
"""Hz of all PCM inside usher: what realtime models speak, and a rate libopus codes without resampling."""

FRAME_MS: Final = 20
FRAME_SECONDS: Final = FRAME_MS / 1000
FRAME_SAMPLES: Final = SAMPLE_RATE * FRAME_MS // 1000
FRAME_BYTES: Final = 2 * FRAME_SAMPLES
SILENCE: Final = bytes(FRAME_BYTES)


class Origin(Enum):
    """Where the audio of a frame came from."""

    RECEIVED = auto()
    CONCEALED = auto()  # made up, because the packet was lost or is late
    SILENCE = auto()  # the client sends nothing (muted, DTX, gone)


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """One frame of a client's audio, in order, as a backend gets it.

    For a backend of kind ``pcm``, `data` is always 960 bytes: 20 ms of signed 16 bit little-endian mono PCM at
    24 kHz; from the first packet on there is one frame every 20 ms, silence included. For kind ``opus``, `data` is
    one Opus packet of any legal duration, and empty when the origin is not RECEIVED.
    `position_ms` is the media time at which the frame begins, from the first frame of the call.
    """

    data: bytes
    position_ms: int
    origin: Origin = Origin.RECEIVED


AudioSink = Callable[[AudioFrame], None]
"""Takes a frame and returns at once: it is called from the ticker that serves every call of the process."""
