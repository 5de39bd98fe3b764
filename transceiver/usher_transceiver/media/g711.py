"""G.711 (PCMU and PCMA, RFC 3551 section 4.5.14): telephone audio at 8 kHz, for clients that have no Opus.

One byte is one sample, so a packet's length is its duration. Towards the rest of usher it is audio at 24 kHz with
nothing above 3.4 kHz. A lost packet is made up by `conceal`; the codec has no redundancy of its own.
"""

from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from usher_core.errors import RemoteError
from usher_transceiver.media.codec import EncoderSettings
from usher_transceiver.media.conceal import Concealer
from usher_transceiver.media.frame import FRAME_MS, SAMPLE_RATE
from usher_transceiver.media.opus_packet import MAX_DURATION, OPUS_CLOCK
from usher_transceiver.media.resample import Decimator, Interpolator, Samples, low_pass

Law = Literal["pcmu", "pcma"]

_RATE: Final = 8_000
_FACTOR: Final = SAMPLE_RATE // _RATE
# The band of a telephone: flat to 3.4 kHz, nothing from 4 kHz on, 3 ms of delay.
_KERNEL: Final = low_pass(144, 3_700, SAMPLE_RATE)
_SILENCE: Final[dict[Law, int]] = {"pcmu": 0xFF, "pcma": 0xD5}


class G711Format:
    """See `codec.PayloadFormat`. Silence is said all the time: telephones take a stream that stops for a dead one."""

    silence_interval = 1

    def __init__(self, law: Law) -> None:
        self._silence = bytes((_SILENCE[law],)) * (_RATE * FRAME_MS // 1000)

    def duration(self, payload: bytes) -> int:
        duration = len(payload) * (OPUS_CLOCK // _RATE)
        if not 0 < duration <= MAX_DURATION:
            raise RemoteError("g711_packet", f"a G.711 packet has 1 to 960 bytes (120 ms), this one {len(payload)}")
        return duration

    def is_dtx(self, payload: bytes) -> bool:
        return False

    def has_redundancy(self, payload: bytes) -> bool:
        return False

    def silence(self, like: bytes) -> bytes:
        return self._silence


class G711:
    """See `codec.Codec`."""

    def __init__(self, law: Law) -> None:
        self.name = "PCMU" if law == "pcmu" else "PCMA"
        self.format = G711Format(law)
        self._law = law

    def encoder(self, settings: EncoderSettings) -> "G711Encoder":
        return G711Encoder(self._law)

    def decoder(self) -> "G711Decoder":
        return G711Decoder(self._law)


class G711Encoder:
    """See `codec.Encoder`."""

    def __init__(self, law: Law) -> None:
        self._codes = _codes(law)
        self._down = Decimator(_KERNEL, _FACTOR)

    def encode(self, pcm: bytes) -> bytes:
        samples = self._down(np.frombuffer(pcm, np.int16).astype(np.float32))
        return self._codes[_rounded(samples).view(np.uint16)].tobytes()

    def expect_loss(self, percent: int) -> None:
        """Change nothing: there is no redundancy to turn on."""


class G711Decoder:
    """See `codec.Decoder`."""

    def __init__(self, law: Law) -> None:
        self._values = _values(law)
        self._up = Interpolator(_KERNEL, _FACTOR)
        self._concealer = Concealer()

    def decode(self, packet: bytes) -> bytes:
        samples = self._up(self._values[np.frombuffer(packet, np.uint8)])
        return _rounded(self._concealer.heard(samples)).tobytes()

    def recover(self, following: bytes, samples: int) -> bytes:
        return self.conceal(samples)

    def conceal(self, samples: int) -> bytes:
        return _rounded(self._concealer.make_up(samples)).tobytes()


def _rounded(samples: Samples) -> NDArray[np.int16]:
    return np.clip(np.rint(samples), -32768, 32767).astype(np.int16)


@cache
def _values(law: Law) -> Samples:
    """Return the sample, at 16 bit, that each of the 256 codes means (ITU-T G.711 tables 1 and 2)."""
    codes = np.arange(256)
    if law == "pcmu":
        turned = codes ^ 0xFF
        magnitude = ((turned & 15) * 8 + 0x84 << (turned >> 4 & 7)) - 0x84
        negative = turned >= 0x80
    else:
        turned = codes ^ 0x55
        segment = turned >> 4 & 7
        magnitude = (turned & 15) * 16 + 8 + np.where(segment > 0, 0x100, 0) << np.maximum(segment - 1, 0)
        negative = turned < 0x80
    return np.where(negative, -magnitude, magnitude).astype(np.float32)


@cache
def _codes(law: Law) -> NDArray[np.uint8]:
    """Return the nearest code of each sample, the sample taken as an unsigned index."""
    values = _values(law)
    order = np.lexsort((np.arange(256), values))
    ordered = values[order]
    bounds = (ordered[:-1] + ordered[1:]) / 2
    samples = np.arange(1 << 16).astype(np.uint16).view(np.int16)
    # On a bound the upper one: so 0 becomes the positive of two zeros, which is what everybody sends for silence.
    return order[np.searchsorted(bounds, samples, side="right")].astype(np.uint8)
