"""RTP packets (RFC 3550 section 5.1) with one-byte and two-byte header extensions (RFC 8285).

Written here rather than taken from a library because every packet of every call passes through it.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from usher_core.errors import LocalError, RemoteError

HEADER_LENGTH: Final = 12
ONE_BYTE_PROFILE: Final = 0xBEDE
TWO_BYTE_PROFILE: Final = 0x1000  # and the 15 values after it: the low four bits are the application's

_HEADER: Final = struct.Struct("!BBHII")
_EXTENSION: Final = struct.Struct("!HH")


class RtpPacket(NamedTuple):
    """One parsed RTP packet; numbers as on the wire, `extension` raw (see `extensions`). A tuple: cheap to make."""

    payload_type: int
    sequence: int
    timestamp: int
    ssrc: int
    payload: bytes
    marker: bool = False
    extension_profile: int = 0
    extension: bytes = b""


def parse_rtp(packet: bytes) -> RtpPacket:
    """Parse a decrypted RTP packet. Raises RemoteError (reasons ``rtp_length``, ``rtp_version``, ``rtp_padding``)."""
    if len(packet) < HEADER_LENGTH:
        raise RemoteError("rtp_length", f"an RTP packet has at least {HEADER_LENGTH} bytes, this one {len(packet)}")
    first, second, sequence, timestamp, ssrc = _HEADER.unpack_from(packet)
    if first >> 6 != 2:
        raise RemoteError("rtp_version", f"RTP version 2 was expected, this packet says {first >> 6}")
    start, end = HEADER_LENGTH + 4 * (first & 0x0F), len(packet)
    profile, extension = 0, b""
    if first & 0x10:
        if start + 4 > end:
            raise RemoteError("rtp_length", "the RTP packet ends within its extension header")
        profile, words = _EXTENSION.unpack_from(packet, start)
        extension = packet[start + 4 : start + 4 + 4 * words]
        start += 4 + 4 * words
    if first & 0x20 and end > start:
        padding = packet[-1]
        if not 1 <= padding <= end - start:
            raise RemoteError("rtp_padding", f"{padding} bytes of padding do not fit the RTP packet")
        end -= padding
    if start > end:
        raise RemoteError("rtp_length", "the RTP packet ends within its header")
    return RtpPacket(second & 0x7F, sequence, timestamp, ssrc, packet[start:end], second >= 0x80, profile, extension)


def build_rtp(packet: RtpPacket) -> bytes:
    """Return the packet's bytes, without padding or contributing sources."""
    first = 0x90 if packet.extension else 0x80
    head = _HEADER.pack(first, packet.payload_type | packet.marker << 7, packet.sequence, packet.timestamp, packet.ssrc)
    if not packet.extension:
        return head + packet.payload
    words = len(packet.extension) // 4
    return b"".join((head, _EXTENSION.pack(packet.extension_profile, words), packet.extension, packet.payload))


def extensions(packet: RtpPacket) -> dict[int, bytes]:
    """Return the header extension elements by id, of either form; another profile has none we can read.

    Raises RemoteError (reason ``rtp_extension``) when an element is cut off.
    """
    if packet.extension_profile == ONE_BYTE_PROFILE:
        return _elements(packet.extension, one_byte=True)
    if packet.extension_profile & 0xFFF0 == TWO_BYTE_PROFILE:
        return _elements(packet.extension, one_byte=False)
    return {}


def _elements(data: bytes, *, one_byte: bool) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    position = 0
    while position < len(data):
        if data[position] == 0:  # padding, RFC 8285 sections 4.2 and 4.3
            position += 1
            continue
        if one_byte:
            identifier, length = data[position] >> 4, (data[position] & 0x0F) + 1
            position += 1
            if identifier == 15:  # section 4.2: stop here
                break
        else:
            if position + 2 > len(data):
                raise RemoteError("rtp_extension", "a header extension element is cut off")
            identifier, length = data[position], data[position + 1]
            position += 2
        if position + length > len(data):
            raise RemoteError("rtp_extension", "a header extension element is cut off")
        found[identifier] = data[position : position + length]
        position += length
    return found


def one_byte_extension(elements: Mapping[int, bytes]) -> bytes:
    """Return elements (id 1-14, 1-16 bytes each) in the one-byte form, padded to whole words (RFC 8285 section 4.2)."""
    block = bytearray()
    for identifier, data in elements.items():
        if not 1 <= identifier <= 14 or not 1 <= len(data) <= 16:
            raise LocalError(
                f"header extension {identifier} with {len(data)} bytes does not fit the one-byte form",
                "negotiate ids 1 to 14 and values of 1 to 16 bytes",
            )
        block += bytes((identifier << 4 | len(data) - 1,)) + data
    return bytes(block) + bytes(-len(block) % 4)
