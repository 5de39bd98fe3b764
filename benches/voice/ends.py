"""Far ends of a call, in virtual time: usher's and stock aiortc's; and the ear of the client, the same for both."""

from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Protocol

import av
import numpy as np
from aiortc.codecs.opus import OpusDecoder, OpusEncoder
from aiortc.jitterbuffer import JitterBuffer
from aiortc.rtp import RtpPacket as StockPacket

from benches.voice.speech import OPUS, RED
from usher_core.rtp import is_rtcp
from usher_transceiver.media.codec import Codec, EncoderSettings
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_SAMPLES, SAMPLE_RATE, SILENCE, AudioFrame, Origin
from usher_transceiver.media.resample import Decimator, low_pass
from usher_transceiver.media.rtp import RtpPacket, build_rtp
from usher_transceiver.media.stream import AudioStream, StreamParameters

OURS = 0x1111
STOCK_BITRATE = 96_000
"""Bits per second that aiortc's `OpusEncoder` sets."""
_ENCODER = EncoderSettings()


@dataclass(frozen=True, slots=True)
class HeardFrame:
    """20 ms of what somebody hears: received, made up for want of it, or the silence of somebody who says nothing."""

    pcm: bytes
    origin: Origin


class End(Protocol):
    """One end of a call."""

    heard: list[HeardFrame]
    """One frame for each tick from the first audio on."""
    heard_from: float
    """Time of the first of them."""

    def receive(self, now: float, packet: bytes) -> None:
        """Take a packet from the network."""

    def tick(self, now: float) -> list[bytes]:
        """Hear the next 20 ms and return what is sent."""


class UsherEnd:
    """`AudioStream` as a session has it; says `pcm`, or nothing."""

    def __init__(
        self, codec: Codec, pcm: bytes = b"", *, red: bool = False, encoder: EncoderSettings = _ENCODER
    ) -> None:
        self.heard: list[HeardFrame] = []
        self.heard_from = 0.0
        self._now = 0.0
        parameters = StreamParameters(OURS, "bench", OPUS, encoder=encoder, red_payload_type=RED if red else None)
        self.stream = AudioStream(parameters, codec, self._hear, 0.0, Random(1))
        self.stream.play(pcm)

    def _hear(self, frame: AudioFrame) -> None:
        self.heard_from = self.heard_from if self.heard else self._now
        self.heard.append(HeardFrame(frame.data, frame.origin))

    def receive(self, now: float, packet: bytes) -> None:
        (self.stream.on_rtcp if is_rtcp(packet) else self.stream.on_rtp)(now, packet)

    def tick(self, now: float) -> list[bytes]:
        self._now = now
        return self.stream.tick(now)


class StockEnd:
    """The parts of `RTCRtpReceiver` and `RTCRtpSender` that touch audio, as they put them together, without threads.

    A track has no clock: frames come when packets come. The ear here plays them one after the other, as a loudspeaker
    or a model that counts samples does, and hears silence while there is none.
    """

    def __init__(self, pcm: bytes = b"") -> None:
        self.heard: list[HeardFrame] = []
        self.heard_from = 0.0
        self._buffer = JitterBuffer(capacity=16, prefetch=4)
        self._decoder = OpusDecoder()
        self._halve = Decimator(low_pass(64, 11_000, 48_000), 2)
        self._waiting: deque[bytes] = deque()
        self._packets = deque(_stock_packets(pcm))

    def receive(self, now: float, packet: bytes) -> None:
        if is_rtcp(packet):
            return
        parsed = StockPacket.parse(packet)
        parsed._data = parsed.payload  # type: ignore[attr-defined]  # noqa: SLF001 - as RTCRtpReceiver does
        frame = self._buffer.add(parsed)[1]
        if frame is None:
            return
        for decoded in self._decoder.decode(frame):
            assert isinstance(decoded, av.AudioFrame)
            mono = decoded.to_ndarray().reshape(-1, 2).mean(axis=1, dtype=np.float32)
            samples = np.clip(np.rint(self._halve(mono)), -32768, 32767).astype("<i2").tobytes()
            self._waiting += (samples[at : at + FRAME_BYTES] for at in range(0, len(samples), FRAME_BYTES))

    def tick(self, now: float) -> list[bytes]:
        if self._waiting or self.heard:
            self.heard_from = self.heard_from if self.heard else now
            if self._waiting:
                self.heard.append(HeardFrame(self._waiting.popleft(), Origin.RECEIVED))
            else:
                self.heard.append(HeardFrame(SILENCE, Origin.CONCEALED))
        return [self._packets.popleft()] if self._packets else []


def _stock_packets(pcm: bytes) -> list[bytes]:
    encoder = OpusEncoder()
    packets = []
    for number, at in enumerate(range(0, len(pcm) - FRAME_BYTES + 1, FRAME_BYTES)):
        samples = np.frombuffer(pcm[at : at + FRAME_BYTES], "<i2")
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), "s16", "mono")
        frame.sample_rate, frame.pts = SAMPLE_RATE, number * FRAME_SAMPLES
        frame.time_base = Fraction(1, SAMPLE_RATE)
        packets += encoder.encode(frame)[0]
    return [build_rtp(RtpPacket(OPUS, 500 + n, 960 * n, OURS, payload)) for n, payload in enumerate(packets)]
