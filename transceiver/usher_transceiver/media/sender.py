"""From a codec's packets to the RTP packets of one stream (RFC 3550 section 5.1, RFC 7587).

Sequence and time begin at random values. Time goes on by 20 ms at every tick, sent or not; the sequence counts packets.

In silence nothing is encoded, but not nothing sent: browsers take a stream that stops for loss and stretch its last
sound. So a run of speech ends with a few one-byte DTX packets, as libopus itself would send them, and one every 400 ms
after that keeps the far end's comfort noise, and every mapping on the path, alive: 2.5 packets/s instead of 50.
G.711 has no such packets: its silence is said all the time, by one that was made once.
Before the first speech of the call nothing is sent at all.
"""

import struct
from random import Random
from typing import Final

from usher_transceiver.media.codec import MAX_PACKET
from usher_transceiver.media.feed import Chunk, Feed
from usher_transceiver.media.frame import FRAME_MS, FRAME_SECONDS
from usher_transceiver.media.level import QUIETEST_DBOV
from usher_transceiver.media.opus_packet import OPUS_CLOCK
from usher_transceiver.media.red import Copy, build_red
from usher_transceiver.media.rtp import ONE_BYTE_PROFILE, one_byte_extension

_FRAME: Final = OPUS_CLOCK * FRAME_MS // 1000
_OPENING: Final = 3  # ticks of a silence in which each says so, since one packet may be lost
_VOICE: Final = 0x80  # RFC 6464 section 3: the V bit
VOICE_DBOV: Final = -50.0
"""Below it is what a room sounds like when nobody speaks."""
_HEADER: Final = struct.Struct("!BBHII")
_EXTENSION: Final = struct.Struct("!HH")


class RtpSender:
    """Builds the packets of one SSRC from what `feed` gives."""

    def __init__(
        self,
        ssrc: int,
        payload_type: int,
        clock_rate: int,
        feed: Feed,
        now: float,
        random: Random,
        *,
        mid: tuple[int, str] | None = None,
        level_extension_id: int | None = None,
    ) -> None:
        self.packets = 0
        self.octets = 0
        self.spoken = 0
        """Packets with something to hear in them."""
        self._ssrc = ssrc
        self._payload_type = payload_type
        self._format = feed.payload_format
        self._scale = OPUS_CLOCK // clock_rate
        self._feed = feed
        self._started_at = now
        # In the lower half, so that the first wrap comes late (RFC 3711 section 3.3.1).
        self._sequence = random.getrandbits(15)
        self._offset = random.getrandbits(32)
        self._media = 0  # samples at 48 kHz since the start
        self._due = 0  # media time of the next packet, when packets are longer than a tick
        self._silent_ticks = 0
        self._talking = False
        self._last_payload = b""
        self._red_payload_type: int | None = None
        self._before: tuple[bytes, int] = (b"", 0)  # payload and media time of the packet before
        self._extension_ids = (mid, level_extension_id)
        self._with_level = self._extension_block(b"\0")
        self._without_level = self._extension_block(b"")

    def _extension_block(self, level: bytes) -> bytes:
        """The level comes first, so that its byte is always at offset 5 of the block."""
        mid, level_id = self._extension_ids
        elements = {} if level_id is None or not level else {level_id: level}
        if mid is not None:
            elements[mid[0]] = mid[1].encode()
        if not elements:
            return b""
        data = one_byte_extension(elements)
        return _EXTENSION.pack(ONE_BYTE_PROFILE, len(data) // 4) + data

    @property
    def timestamp(self) -> int:
        """The RTP time of this moment, for sender reports."""
        return self._offset + self._media // self._scale & 0xFFFFFFFF

    def send_copies(self, red_payload_type: int | None) -> None:
        """Let each packet carry a copy of the one before, under this payload type; None: no longer."""
        self._red_payload_type = red_payload_type

    def tick(self, now: float) -> list[bytes]:
        """Return the packets of the next 20 ms."""
        chunks = self._feed.tick()
        if chunks:
            if not self._talking:
                self._catch_up(now)
            packets = [self._speech(chunk) for chunk in chunks]
        elif self._due > self._media or not self._last_payload:
            packets = []
        else:
            packets = self._silence()
        self._media += _FRAME
        return packets

    def _speech(self, chunk: Chunk) -> bytes:
        # RFC 3551 section 4.1: the marker is on the first packet after a silence.
        marker = not self._talking
        self._talking = True
        self._silent_ticks = 0
        self._last_payload = chunk.payload
        # Without a decoder nobody knows the level; what is no DTX is taken for speech.
        is_heard = not self._format.is_dtx(chunk.payload) if chunk.level_dbov is None else chunk.level_dbov > VOICE_DBOV
        self.spoken += is_heard
        self._due = max(self._due, self._media)
        packet = self._packet(chunk, self._due, marker=marker)
        self._due += chunk.samples
        return packet

    def _silence(self) -> list[bytes]:
        self._talking = False
        self._silent_ticks += 1
        if self._silent_ticks > _OPENING and self._silent_ticks % self._format.silence_interval:
            return []
        silence = self._format.silence(self._last_payload)
        return [self._packet(Chunk(silence, _FRAME, QUIETEST_DBOV), self._media, marker=False)]

    def _catch_up(self, now: float) -> None:
        """Make up for ticks that were left out, while nobody hears it."""
        behind = int((now - self._started_at) / FRAME_SECONDS) * _FRAME - self._media
        if behind > 2 * _FRAME:
            self._media += behind

    def _packet(self, chunk: Chunk, media: int, *, marker: bool) -> bytes:
        extension = self._without_level
        if chunk.level_dbov is not None and self._extension_ids[1] is not None:
            level = -round(chunk.level_dbov) | (_VOICE if chunk.level_dbov > VOICE_DBOV else 0)
            extension = self._with_level[:5] + bytes((level,)) + self._with_level[6:]
        payload_type, payload = self._payload_type, chunk.payload
        if self._red_payload_type is not None:
            payload_type, payload = self._with_copy(self._red_payload_type, payload, media)
        self._before = chunk.payload, media
        header = _HEADER.pack(
            0x90 if extension else 0x80,
            payload_type | marker << 7,
            self._sequence,
            self._offset + media // self._scale & 0xFFFFFFFF,
            self._ssrc,
        )
        self._sequence = self._sequence + 1 & 0xFFFF
        self.packets += 1
        self.octets += len(payload)
        return header + extension + payload

    def _with_copy(self, red_payload_type: int, payload: bytes, media: int) -> tuple[int, bytes]:
        before, time = self._before
        if len(before) + len(payload) <= MAX_PACKET:
            copied = build_red(payload, self._payload_type, Copy(1, (media - time) // self._scale, before))
            if copied is not None:
                return red_payload_type, copied
        return self._payload_type, payload
