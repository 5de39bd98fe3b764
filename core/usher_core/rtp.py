"""What a relay may read of SRTP and SRTCP: the parts that are sent in clear (RFC 3711 sections 3.1, 3.4)."""

from __future__ import annotations

RTP_HEADER_LENGTH = 12
RTCP_HEADER_LENGTH = 8


def is_rtcp(packet: bytes) -> bool:
    """Tell RTCP from RTP by the packet type, 192..223 (RFC 5761 section 4)."""
    return len(packet) >= 2 and 192 <= packet[1] <= 223


def peek_ssrc(packet: bytes) -> int | None:
    """Return the SSRC of an RTP packet, the sender's SSRC of an RTCP packet, or None when it is too short for one."""
    if len(packet) < RTCP_HEADER_LENGTH or packet[0] >> 6 != 2:
        return None
    if is_rtcp(packet):
        return int.from_bytes(packet[4:8])
    return int.from_bytes(packet[8:12]) if len(packet) >= RTP_HEADER_LENGTH else None
