"""SRTP and SRTCP of one client: keys from DTLS, protection, and which packet is newer (RFC 3711, 5764, 7714)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import pylibsrtp
from pylibsrtp import Policy, Session

from usher_core.errors import RemoteError
from usher_core.rtp import is_rtcp, peek_ssrc

EXPORTER_LABEL = b"EXTRACTOR-dtls_srtp"
MAX_SOURCES = 64
"""SSRCs of one client that have authenticated; libsrtp keeps state for each and would never stop."""
WINDOW = 1024
"""Packets of the replay window: 20 s of audio."""

_SRTCP_INDEX_MASK = 0x7FFF_FFFF


class Unprotected(NamedTuple):
    """A packet that authenticated. `new_source` is its SSRC when none of this kind came from there before."""

    plain: bytes
    is_rtcp: bool
    newer: bool
    new_source: int | None


@dataclass(frozen=True, slots=True)
class Profile:
    """An SRTP protection profile: OpenSSL's and libsrtp's names, lengths in bytes (RFC 5764 section 4.1.2, RFC
    7714).
    """

    name: bytes
    number: int
    key_length: int
    salt_length: int
    srtcp_tail: int
    """Bytes after the SRTCP index: the tag of SHA1_80 follows it, that of AEAD stands before it."""

    @property
    def keying_length(self) -> int:
        """Bytes to export from DTLS."""
        return 2 * (self.key_length + self.salt_length)


PROFILES = (
    Profile(b"SRTP_AEAD_AES_256_GCM", Policy.SRTP_PROFILE_AEAD_AES_256_GCM, 32, 12, 0),
    Profile(b"SRTP_AEAD_AES_128_GCM", Policy.SRTP_PROFILE_AEAD_AES_128_GCM, 16, 12, 0),
    # GStreamer and older libwebrtc offer nothing else.
    Profile(b"SRTP_AES128_CM_SHA1_80", Policy.SRTP_PROFILE_AES128_CM_SHA1_80, 16, 14, 10),
)
"""In our order of preference."""


def profile_named(name: bytes) -> Profile | None:
    """Return the profile that DTLS negotiated, or None."""
    return next((profile for profile in PROFILES if profile.name == name), None)


class Srtp:
    """Both directions of one client.

    Args:
        profile: as negotiated.
        keying: `profile.keying_length` exported bytes (RFC 5764 section 4.2).
        role: our DTLS role.
    """

    def __init__(self, profile: Profile, keying: bytes, role: Literal["client", "server"]) -> None:
        keys = profile.key_length
        salts = 2 * keys
        client = keying[:keys] + keying[salts : salts + profile.salt_length]
        server = keying[keys:salts] + keying[salts + profile.salt_length : salts + 2 * profile.salt_length]
        ours, theirs = (server, client) if role == "server" else (client, server)
        self._rx = _session(profile, theirs, Policy.SSRC_ANY_INBOUND)
        self._tx = _session(profile, ours, Policy.SSRC_ANY_OUTBOUND)
        self._index_end = profile.srtcp_tail
        self._newest_rtp: dict[int, int] = {}
        self._newest_rtcp: dict[int, int] = {}

    def unprotect(self, packet: bytes) -> Unprotected:
        """Return the plain packet, and whether it is newer than all before of its SSRC and kind.

        Raises RemoteError: `srtp_length`, `srtp_sources` (too many SSRCs), `srtp_authentication` (forged, replayed or
        too old).
        """
        ssrc = peek_ssrc(packet)
        if ssrc is None:
            raise RemoteError("srtp_length", "an RTP packet has at least 12 bytes, an RTCP packet 8")
        control = is_rtcp(packet)
        newest = self._newest_rtcp if control else self._newest_rtp
        if ssrc not in newest and len(newest) >= MAX_SOURCES:
            raise RemoteError("srtp_sources", f"a client has at most {MAX_SOURCES} SSRCs")
        try:
            plain = self._rx.unprotect_rtcp(packet) if control else self._rx.unprotect(packet)
        except (pylibsrtp.Error, ValueError):
            raise RemoteError("srtp_authentication", "forged, replayed or too old") from None
        previous = newest.get(ssrc)
        if control:
            end = len(packet) - self._index_end
            position = int.from_bytes(packet[end - 4 : end]) & _SRTCP_INDEX_MASK
            newer = previous is None or position > previous
        else:
            position = int.from_bytes(packet[2:4])
            newer = previous is None or 0 < (position - previous) & 0xFFFF < 0x8000
        if newer:
            newest[ssrc] = position
        return Unprotected(plain, control, newer, ssrc if previous is None else None)

    def protect(self, packet: bytes) -> bytes:
        """Return the protected form of a plain RTP or RTCP packet of ours."""
        protected: bytes = self._tx.protect_rtcp(packet) if is_rtcp(packet) else self._tx.protect(packet)
        return protected


def _session(profile: Profile, key: bytes, direction: int) -> Session:
    policy = Policy(key=key, ssrc_type=direction, srtp_profile=profile.number)
    policy.window_size = WINDOW
    # A packet that the client asks for again (NACK) is protected again, into the same bytes.
    policy.allow_repeat_tx = True
    return Session(policy)
