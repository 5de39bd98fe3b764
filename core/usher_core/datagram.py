"""What kind of datagram a first byte announces (RFC 7983 section 7, RFC 9443 section 3)."""

from __future__ import annotations

from enum import StrEnum


class DatagramClass(StrEnum):
    """The protocols that share one port."""

    STUN = "stun"
    ZRTP = "zrtp"
    DTLS = "dtls"
    TURN = "turn"
    QUIC = "quic"
    RTP = "rtp"
    """RTP or RTCP; `rtp.is_rtcp` tells which."""
    UNKNOWN = "unknown"


def _class_of(first: int) -> DatagramClass:
    match first:
        case _ if first <= 3:
            return DatagramClass.STUN
        case _ if 16 <= first <= 19:
            return DatagramClass.ZRTP
        case _ if 20 <= first <= 63:
            return DatagramClass.DTLS
        case _ if 64 <= first <= 79:
            # RFC 9443 section 3: TURN channel numbers that QUIC left over; on the wire to us neither occurs.
            return DatagramClass.TURN
        case _ if 80 <= first <= 127 or first >= 192:
            return DatagramClass.QUIC
        case _ if 128 <= first <= 191:
            return DatagramClass.RTP
        case _:
            return DatagramClass.UNKNOWN


_TABLE = tuple(_class_of(first) for first in range(256))


def classify(datagram: bytes) -> DatagramClass:
    """Return the class of a datagram by its first byte; an empty one is UNKNOWN."""
    return _TABLE[datagram[0]] if datagram else DatagramClass.UNKNOWN
