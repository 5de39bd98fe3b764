"""What a codec does; `choose_codec` has the Opus of this process, `g711` the only other one."""

from dataclasses import dataclass
from typing import Literal, Protocol

from usher_core.errors import LocalError

MIN_BITRATE = 6_000
"""bit/s; the least that Opus does (RFC 7587 section 3.1.1)."""


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How we encode speech. Raises LocalError for what no codec takes."""

    bitrate: int = 64_000
    """bit/s, 6000 to 128000. At complexity 5 32000 is audibly coded and 64000 is not; the CPU is the same."""
    complexity: int = 5
    """0-10. Above 5 libopus analyses each frame and picks SILK: four times the CPU (benches/media_capacity.py)."""
    application: Literal["audio", "voip"] = "audio"
    """``audio`` lets libopus use CELT, a third of the CPU of ``voip`` at this bitrate."""
    wideband: bool = False
    """Nothing above 8 kHz, for devices that decode at 16 kHz."""

    def __post_init__(self) -> None:
        if not MIN_BITRATE <= self.bitrate <= 128_000:
            raise LocalError(f"an Opus bitrate of {self.bitrate} bit/s was asked for", "choose 6000 to 128000")
        if not 0 <= self.complexity <= 10:
            raise LocalError(f"an Opus complexity of {self.complexity} was asked for", "choose 0 to 10")


class Encoder(Protocol):
    """20 ms of s16le mono 24 kHz PCM in, one packet out."""

    def encode(self, pcm: bytes) -> bytes:
        """Encode 960 bytes of PCM into at most `MAX_PACKET` bytes."""

    def expect_loss(self, percent: int) -> None:
        """Say how many of 100 packets the far end loses: the encoder then spends bits on redundancy (in-band FEC)."""


class Decoder(Protocol):
    """Packets in order in, s16le mono 24 kHz PCM out. Durations are samples at 24 kHz."""

    def decode(self, packet: bytes) -> bytes:
        """Decode a packet. Raises RemoteError (reason ``opus_packet``) when it is none; go on with `conceal`."""

    def recover(self, following: bytes, samples: int) -> bytes:
        """Make up a lost packet of that duration, from the redundancy in the packet that follows it, if it has any."""

    def conceal(self, samples: int) -> bytes:
        """Make up audio from what came before."""


class PayloadFormat(Protocol):
    """What the outside of a codec's packets tells without a decoder, and how the codec says silence."""

    silence_interval: int
    """Ticks from one packet that says silence to the next, once a silence has lasted for a while."""

    def duration(self, payload: bytes) -> int:
        """Return the duration in samples at 48 kHz. Raises RemoteError when the payload cannot be this codec's."""

    def is_dtx(self, payload: bytes) -> bool:
        """Tell whether the packet says "silence from here on"."""

    def has_redundancy(self, payload: bytes) -> bool:
        """Tell whether `Decoder.recover` makes more of this packet than `Decoder.conceal` does of nothing."""

    def silence(self, like: bytes) -> bytes:
        """Return a packet of 20 ms of silence, to follow `like`; made without an encoder."""


class Codec(Protocol):
    """Makes encoders and decoders; that of Opus is one per process."""

    name: str
    """For logs and metrics."""

    def encoder(self, settings: EncoderSettings) -> Encoder: ...

    def decoder(self) -> Decoder: ...


MAX_PACKET = 1000
"""Bytes of an encoded packet at most, so that RTP, SRTP and hop headers fit beside it in 1200."""
