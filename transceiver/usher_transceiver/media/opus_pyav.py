"""Opus through PyAV, for machines without a libopus of their own. Slower, and a lost packet is made up by `conceal`.

FFmpeg's API offers no concealment and no decoding at 24 kHz; see `opus` for the codec to prefer.
"""

from fractions import Fraction
from typing import Final

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext

from usher_core.errors import LocalError, RemoteError
from usher_transceiver.media.codec import MAX_PACKET, EncoderSettings
from usher_transceiver.media.conceal import Concealer
from usher_transceiver.media.frame import FRAME_SAMPLES, SAMPLE_RATE
from usher_transceiver.media.opus_packet import OPUS_CLOCK
from usher_transceiver.media.resample import Decimator, Samples, low_pass

_KERNEL: Final = low_pass(64, 11_000, OPUS_CLOCK)


class PyAvOpus:
    """The codec made of PyAV's libopus."""

    def __init__(self) -> None:
        self.name = f"libopus in PyAV {av.__version__}"

    def encoder(self, settings: EncoderSettings) -> "PyAvEncoder":
        return PyAvEncoder(settings)

    def decoder(self) -> "PyAvDecoder":
        return PyAvDecoder()


class PyAvEncoder:
    """See `codec.Encoder`."""

    def __init__(self, settings: EncoderSettings) -> None:
        context = AudioCodecContext.create("libopus", "w")
        context.sample_rate = SAMPLE_RATE
        context.layout = "mono"
        context.format = "s16"
        context.bit_rate = settings.bitrate
        context.time_base = Fraction(1, SAMPLE_RATE)
        context.options = {
            "application": settings.application,
            "compression_level": str(settings.complexity),
            "frame_duration": "20",
        } | ({"cutoff": "8000"} if settings.wideband else {})
        self._context = context
        self._samples = 0

    def encode(self, pcm: bytes) -> bytes:
        frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm, np.int16).reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = SAMPLE_RATE
        frame.pts = self._samples
        self._samples += FRAME_SAMPLES
        packets = self._context.encode(frame)
        if len(packets) != 1 or packets[0].size > MAX_PACKET:
            raise LocalError(f"PyAV gave {len(packets)} packets for one frame", "install libopus")
        return bytes(packets[0])

    def expect_loss(self, percent: int) -> None:
        """Change nothing: FFmpeg takes this only when the encoder is opened."""


class PyAvDecoder:
    """See `codec.Decoder`."""

    def __init__(self) -> None:
        context = AudioCodecContext.create("libopus", "r")
        context.sample_rate = OPUS_CLOCK
        context.layout = "mono"
        context.format = "s16"
        self._context = context
        self._halve = Decimator(_KERNEL, OPUS_CLOCK // SAMPLE_RATE)
        self._concealer = Concealer()

    def decode(self, packet: bytes) -> bytes:
        try:
            frames = self._context.decode(av.Packet(packet))
        except av.FFmpegError as error:
            raise RemoteError("opus_packet", f"FFmpeg could not decode: {error}") from None
        if not frames:
            raise RemoteError("opus_packet", "FFmpeg found no audio in the packet")
        decoded = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])
        return _pcm(self._concealer.heard(self._halve(decoded.astype(np.float32))))

    def recover(self, following: bytes, samples: int) -> bytes:
        return self.conceal(samples)

    def conceal(self, samples: int) -> bytes:
        return _pcm(self._concealer.make_up(samples))


def _pcm(samples: Samples) -> bytes:
    return np.clip(np.rint(samples), -32768, 32767).astype("<i2").tobytes()
