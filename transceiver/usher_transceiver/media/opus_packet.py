"""What the outside of an Opus packet tells without a decoder (RFC 6716 section 3)."""

from typing import Final

from usher_core.errors import RemoteError

OPUS_CLOCK: Final = 48_000
MAX_DURATION: Final = OPUS_CLOCK * 120 // 1000  # RFC 6716 section 3.2.5, R5

# Samples at 48 kHz of one frame, by the configuration in the upper five bits (RFC 6716 table 2).
_SILK: Final = (480, 960, 1920, 2880)
_HYBRID: Final = (480, 960)
_CELT: Final = (120, 240, 480, 960)
_FRAME_SAMPLES: Final = _SILK * 3 + _HYBRID * 2 + _CELT * 4
_FIRST_CELT: Final = 16


def packet_duration(packet: bytes) -> int:
    """Return the duration of an Opus packet in samples at 48 kHz, 120 to 5760.

    Raises RemoteError (reason ``opus_packet``) when the packet is empty, or says more than 120 ms or no frame at all.
    """
    if not packet:
        raise RemoteError("opus_packet", "an Opus packet has at least one byte")
    code = packet[0] & 3
    if code < 3:
        count = 1 if code == 0 else 2
    elif len(packet) < 2:
        raise RemoteError("opus_packet", "an Opus packet of code 3 has a frame count byte")
    else:
        count = packet[1] & 0x3F
    duration = count * _FRAME_SAMPLES[packet[0] >> 3]
    if not 0 < duration <= MAX_DURATION:
        raise RemoteError("opus_packet", f"an Opus packet is 2.5 to 120 ms long, this one {duration / 48} ms")
    return duration


def is_dtx(packet: bytes) -> bool:
    """Tell whether the packet says "silence from here on": at most the configuration byte and one more."""
    return len(packet) <= 2


def has_redundancy(packet: bytes) -> bool:
    """Tell whether the packet also carries the one before it (in-band FEC; RFC 6716 section 4.2.4)."""
    configuration, code = packet[0] >> 3, packet[0] & 3
    if configuration >= _FIRST_CELT or code or len(packet) < 2:
        return False  # CELT has none; of packets of several frames nobody sends any in calls
    # After one bit of speech detection for each 20 ms: the first bits of a frame are coded as they are.
    frames = max(1, _FRAME_SAMPLES[configuration] // 960)
    return bool(packet[1] >> (7 - frames) & 1)


def dtx_packet(like: bytes) -> bytes:
    """Return the packet of one empty frame in the configuration of `like`: what libopus sends in DTX."""
    return bytes((like[0] & 0xFC,))


class OpusFormat:
    """See `codec.PayloadFormat`."""

    silence_interval = 20  # 400 ms, as libopus (RFC 6716 section 2.1.9)
    duration = staticmethod(packet_duration)
    is_dtx = staticmethod(is_dtx)
    has_redundancy = staticmethod(has_redundancy)
    silence = staticmethod(dtx_packet)


OPUS_FORMAT: Final = OpusFormat()
