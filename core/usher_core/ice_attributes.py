"""ICE in SDP (RFC 8839): credentials and host candidates, as both SDP answers and WHIP fragments carry them."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from usher_core.sdplines import Line

# RFC 8839 §5.4: ice-char = ALPHA / DIGIT / "+" / "/".
_UFRAG = re.compile(r"[A-Za-z0-9+/]{4,256}")
_PWD = re.compile(r"[A-Za-z0-9+/]{22,256}")

# RFC 8445 §5.1.2.1 and §5.1.2.2: type preference of host candidates, highest local preference.
_HOST_TYPE_PREFERENCE = 126
_HIGHEST_LOCAL_PREFERENCE = 65535
_RTP_COMPONENT = 1  # RTCP is multiplexed (RFC 5761), so there is no component 2


def checked_ufrag(line: Line) -> str:
    """The value of an `a=ice-ufrag` line. Raises RemoteError if it is not 4 to 256 ice-chars."""
    if not _UFRAG.fullmatch(line.argument):
        raise line.error("expected a ufrag of 4 to 256 characters A-Z a-z 0-9 + /")
    return line.argument


def checked_pwd(line: Line) -> str:
    """The value of an `a=ice-pwd` line. Raises RemoteError if it is not 22 to 256 ice-chars."""
    if not _PWD.fullmatch(line.argument):
        raise line.error("expected a password of 22 to 256 characters A-Z a-z 0-9 + /")
    return line.argument


@dataclass(frozen=True, slots=True)
class Candidate:
    """One public address clients send to: an IPv4 or IPv6 address and a UDP port.

    Raises ValueError for a host name, an address with a zone, or a port outside 1 to 65535.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        address = ipaddress.ip_address(self.host)
        if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
            raise ValueError(f"a candidate address has no zone: {self.host}")
        if not 1 <= self.port <= 65535:
            raise ValueError(f"a candidate port is 1 to 65535, not {self.port}")

    @property
    def version(self) -> int:
        """The IP version, 4 or 6."""
        return ipaddress.ip_address(self.host).version


def candidate_values(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """The values of the `a=candidate` lines (RFC 8839 §5.1), the most preferred first.

    The order given is the order of preference, so who lists the addresses decides
    between IPv4 and IPv6 (RFC 8421 §4).
    """
    foundations: dict[str, int] = {}
    values = []
    for index, candidate in enumerate(candidates):
        # RFC 8445 §5.1.1.3: one foundation per base address; type and protocol are the same for all.
        foundation = foundations.setdefault(candidate.host, len(foundations) + 1)
        priority = (_HOST_TYPE_PREFERENCE << 24) + ((_HIGHEST_LOCAL_PREFERENCE - index) << 8) + (256 - _RTP_COMPONENT)
        values.append(f"{foundation} {_RTP_COMPONENT} udp {priority} {candidate.host} {candidate.port} typ host")
    return tuple(values)
