"""The queues between a backend and the RTP sender: PCM that is encoded when its time comes, or packets as they are.

Bounded by duration. What does not fit is dropped, newest first: a listener then hears the beginning of an answer
unbroken, and the backend is told by the return value.
"""

from collections import deque
from typing import Final, NamedTuple, Protocol

from usher_core.errors import RemoteError
from usher_transceiver.media.codec import MAX_PACKET, Encoder, PayloadFormat
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_MS, SAMPLE_RATE, SILENCE
from usher_transceiver.media.level import QUIETEST_DBOV, level_dbov
from usher_transceiver.media.opus_packet import OPUS_CLOCK, OPUS_FORMAT, packet_duration

_BYTES_PER_MS: Final = 2 * SAMPLE_RATE // 1000
_FRAME: Final = OPUS_CLOCK * FRAME_MS // 1000
_TAIL_FRAMES: Final = 3


class Chunk(NamedTuple):
    """One packet to send; `samples` at 48 kHz; the level is None when nobody decoded it."""

    payload: bytes
    samples: int
    level_dbov: float | None


class Feed(Protocol):
    """Gives what is due, 20 ms at a time."""

    played_ms: int
    dropped_ms: int
    payload_format: PayloadFormat
    """Of the packets that it gives."""

    @property
    def queued_ms(self) -> int: ...

    def tick(self) -> list[Chunk]:
        """Return the packets whose time begins within the next 20 ms."""

    def clear(self) -> int:
        """Drop what is queued and return the milliseconds."""


class PcmFeed:
    """Encodes on time. Digital silence is not encoded, except for a short tail that ends the speech before it."""

    def __init__(self, encoder: Encoder, max_ms: int, payload_format: PayloadFormat = OPUS_FORMAT) -> None:
        self.payload_format = payload_format
        self.played_ms = 0
        self.dropped_ms = 0
        self.encoder: Final = encoder
        self._max_bytes = max_ms * _BYTES_PER_MS
        self._pcm = bytearray()
        self._waited = False
        self._tail = 0

    @property
    def queued_ms(self) -> int:
        return len(self._pcm) // _BYTES_PER_MS

    def play(self, pcm: bytes) -> int:
        """Queue PCM and return the milliseconds accepted. A sample may be cut in two by the pieces it comes in."""
        accepted = pcm[: self._max_bytes - len(self._pcm)]
        self._pcm += accepted
        self.dropped_ms += (len(pcm) - len(accepted)) // _BYTES_PER_MS
        return len(accepted) // _BYTES_PER_MS

    def clear(self) -> int:
        dropped = self.queued_ms
        self._pcm.clear()
        self.dropped_ms += dropped
        return dropped

    def tick(self) -> list[Chunk]:
        frame = self._take()
        if frame is not None and frame != SILENCE:
            self._tail = _TAIL_FRAMES
            return [Chunk(self.encoder.encode(frame), _FRAME, level_dbov(frame))]
        if self._tail:
            # The encoder still holds the last 6.5 ms of the speech, and the far end's concealment should find
            # silence to go on from, not a vowel.
            self._tail -= 1
            return [Chunk(self.encoder.encode(SILENCE), _FRAME, QUIETEST_DBOV)]
        return []

    def _take(self) -> bytes | None:
        pcm = self._pcm
        if len(pcm) < FRAME_BYTES and not (pcm and self._waited):
            # A rest shorter than a frame waits one tick for more: backends deliver in pieces of any size.
            self._waited = bool(pcm)
            return None
        self._waited = False
        frame = bytes(pcm[:FRAME_BYTES])
        del pcm[:FRAME_BYTES]
        self.played_ms += len(frame) // _BYTES_PER_MS
        return frame.ljust(FRAME_BYTES, b"\0")


class OpusFeed:
    """Passes packets through, paced by the durations they carry."""

    def __init__(self, max_ms: int) -> None:
        self.payload_format: PayloadFormat = OPUS_FORMAT
        self.played_ms = 0
        self.dropped_ms = 0
        self._max_samples = max_ms * OPUS_CLOCK // 1000
        self._packets: deque[Chunk] = deque()
        self._samples = 0
        self._ahead = 0  # samples sent before their time

    @property
    def queued_ms(self) -> int:
        return self._samples * 1000 // OPUS_CLOCK

    def play_opus(self, packet: bytes) -> int:
        """Queue a packet and return the milliseconds accepted; what is not Opus, or fits no datagram, counts as 0."""
        try:
            samples = packet_duration(packet)
        except RemoteError:
            return 0
        if len(packet) > MAX_PACKET:
            self.dropped_ms += samples * 1000 // OPUS_CLOCK
            return 0
        if self._samples + samples > self._max_samples:
            self.dropped_ms += samples * 1000 // OPUS_CLOCK
            return 0
        self._packets.append(Chunk(packet, samples, None))
        self._samples += samples
        return samples * 1000 // OPUS_CLOCK

    def clear(self) -> int:
        dropped = self.queued_ms
        self._packets.clear()
        self._samples = 0
        self.dropped_ms += dropped
        return dropped

    def tick(self) -> list[Chunk]:
        due = []
        while self._packets and self._ahead < _FRAME:
            chunk = self._packets.popleft()
            self._samples -= chunk.samples
            self._ahead += chunk.samples
            self.played_ms += chunk.samples * 1000 // OPUS_CLOCK
            due.append(chunk)
        self._ahead = max(0, self._ahead - _FRAME)
        return due
