"""RTCP compound packets (RFC 3550 section 6): sender and receiver reports, CNAME, BYE, NACK (RFC 4585 section 6.2.1).

Other packet types (other feedback, XR, APP) are passed over: nothing in them changes what a voice stream does.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from usher_core.errors import RemoteError

SR: Final = 200
RR: Final = 201
SDES: Final = 202
BYE: Final = 203
RTPFB: Final = 205

_NACK: Final = 1
_MAX_NACK_ENTRIES: Final = 16
"""Of one packet, each for 17 sequence numbers; far more than anybody keeps of a voice."""

_MAX_BLOCKS: Final = 31  # five bits count them
_HEADER: Final = struct.Struct("!BBH")
_BLOCK: Final = struct.Struct("!IIIIII")
_SENDER: Final = struct.Struct("!IIIII")
_CNAME: Final = 1


@dataclass(frozen=True, slots=True)
class ReportBlock:
    """How one receiver gets one source (RFC 3550 section 6.4.1); numbers as on the wire."""

    ssrc: int
    """Of the source that the block is about."""
    fraction_lost: int
    """In 1/256, since the report before."""
    cumulative_lost: int
    """Since the beginning, -2^23 to 2^23 - 1; duplicates make it negative."""
    highest_sequence: int
    """Extended by the count of wraps in the upper half."""
    jitter: int
    """In units of the source's RTP clock."""
    last_sr: int
    """Middle 32 bits of the NTP time in the last sender report, 0 if none came."""
    delay_since_last_sr: int
    """In 1/65536 s."""


@dataclass(frozen=True, slots=True)
class Report:
    """A sender report (when `ntp` is not None) or a receiver report."""

    ssrc: int
    """Of the one who reports."""
    blocks: tuple[ReportBlock, ...] = ()
    ntp: int | None = None
    """Seconds in the upper, fraction in the lower 32 bits."""
    rtp_timestamp: int = 0
    packets: int = 0
    octets: int = 0


@dataclass(frozen=True, slots=True)
class Bye:
    """Sources that say they leave."""

    ssrcs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nack:
    """Packets of one source that the far end misses, by their sequence numbers."""

    ssrc: int
    sequences: tuple[int, ...]


RtcpItem = Report | Bye | Nack


def parse_rtcp(compound: bytes) -> list[RtcpItem]:
    """Parse a decrypted compound packet, also a reduced-size one (RFC 5506). Types not known here are left out.

    Raises RemoteError (reasons ``rtcp_length``, ``rtcp_version``).
    """
    items: list[RtcpItem] = []
    position = 0
    while position < len(compound):
        if position + 4 > len(compound):
            raise RemoteError("rtcp_length", "the RTCP packet ends within a header")
        first, kind, words = _HEADER.unpack_from(compound, position)
        if first >> 6 != 2:
            raise RemoteError("rtcp_version", f"RTP version 2 was expected, this RTCP packet says {first >> 6}")
        end = position + 4 + 4 * words
        if end > len(compound):
            raise RemoteError("rtcp_length", "an RTCP packet is longer than its datagram")
        body = compound[position + 4 : end]
        count = first & 0x1F
        if kind in (SR, RR):
            items.append(_parse_report(body, count, sender=kind == SR))
        elif kind == BYE:
            if len(body) < 4 * count:
                raise RemoteError("rtcp_length", "a BYE is shorter than its list of sources")
            items.append(Bye(struct.unpack_from(f"!{count}I", body)))
        elif kind == RTPFB and count == _NACK:
            items.append(_parse_nack(body))
        position = end
    return items


def _parse_report(body: bytes, count: int, *, sender: bool) -> Report:
    start = 4 + (_SENDER.size if sender else 0)
    if len(body) < start + count * _BLOCK.size:
        raise RemoteError("rtcp_length", f"an RTCP report of {len(body)} bytes cannot hold {count} blocks")
    blocks = tuple(_parse_block(body, start + index * _BLOCK.size) for index in range(count))
    ssrc = int.from_bytes(body[:4])
    if not sender:
        return Report(ssrc, blocks)
    seconds, fraction, rtp_timestamp, packets, octets = _SENDER.unpack_from(body, 4)
    return Report(ssrc, blocks, seconds << 32 | fraction, rtp_timestamp, packets, octets)


def _parse_block(body: bytes, offset: int) -> ReportBlock:
    ssrc, lost, highest, jitter, last_sr, delay = _BLOCK.unpack_from(body, offset)
    cumulative = lost & 0xFFFFFF
    if cumulative >= 1 << 23:
        cumulative -= 1 << 24
    return ReportBlock(ssrc, lost >> 24, cumulative, highest, jitter, last_sr, delay)


def _parse_nack(body: bytes) -> Nack:
    if len(body) < 8:
        raise RemoteError("rtcp_length", "a NACK is shorter than its two SSRCs")
    sequences: list[int] = []
    for offset in range(8, min(len(body), 8 + 4 * _MAX_NACK_ENTRIES), 4):
        first, following = struct.unpack_from("!HH", body, offset)
        sequences.append(first)
        sequences += (first + 1 + bit & 0xFFFF for bit in range(16) if following >> bit & 1)
    return Nack(int.from_bytes(body[4:8]), tuple(sequences))


def build_report(report: Report) -> bytes:
    """Return a sender report when it has an NTP time, else a receiver report."""
    blocks = report.blocks[:_MAX_BLOCKS]
    body = report.ssrc.to_bytes(4)
    if report.ntp is not None:
        body += _SENDER.pack(
            report.ntp >> 32 & 0xFFFFFFFF,
            report.ntp & 0xFFFFFFFF,
            report.rtp_timestamp & 0xFFFFFFFF,
            report.packets & 0xFFFFFFFF,
            report.octets & 0xFFFFFFFF,
        )
    for block in blocks:
        lost = min(max(block.cumulative_lost, -(1 << 23)), (1 << 23) - 1) & 0xFFFFFF
        body += _BLOCK.pack(
            block.ssrc,
            block.fraction_lost << 24 | lost,
            block.highest_sequence & 0xFFFFFFFF,
            min(block.jitter, 0xFFFFFFFF),
            block.last_sr,
            min(block.delay_since_last_sr, 0xFFFFFFFF),
        )
    return _packet(RR if report.ntp is None else SR, len(blocks), body)


def build_cname(ssrc: int, cname: str) -> bytes:
    """Return the source description that every compound packet must hold (RFC 3550 section 6.1)."""
    name = cname.encode()[:255]
    item = bytes((_CNAME, len(name))) + name
    # Section 6.5: a null item ends the chunk, which is padded to a whole word.
    return _packet(SDES, 1, ssrc.to_bytes(4) + item + bytes(4 - len(item) % 4))


def build_bye(ssrcs: Sequence[int]) -> bytes:
    """Return a BYE for these sources."""
    return _packet(BYE, len(ssrcs), b"".join(ssrc.to_bytes(4) for ssrc in ssrcs))


def _packet(kind: int, count: int, body: bytes) -> bytes:
    return _HEADER.pack(0x80 | count, kind, len(body) // 4) + body
