"""Read the transport of an offer: ICE credentials (RFC 8839), certificate and DTLS role (RFC 8842)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from usher_core.ice_attributes import checked_pwd, checked_ufrag
from usher_transceiver.sdp.model import DtlsRole, Fingerprint
from usher_transceiver.sdp.sections import OfferedSection

# RFC 8122 §5, strongest first, with digest bytes. SHA-1 and MD5 no longer identify anybody.
_DIGEST_BYTES: Final = {"sha-512": 64, "sha-384": 48, "sha-256": 32}
_FINGERPRINT = re.compile(r"([^ ]+) ([0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2})*)")

_OUR_ROLE: Final[dict[str, DtlsRole]] = {"actpass": "server", "active": "server", "passive": "client"}


@dataclass(frozen=True, slots=True)
class Transport:
    """The client's end of the one transport of a call, and our DTLS role on it."""

    ufrag: str
    pwd: str = field(repr=False)
    fingerprints: tuple[Fingerprint, ...]
    role: DtlsRole


def choose_transport_section(accepted: Iterable[OfferedSection], others: Iterable[OfferedSection]) -> OfferedSection:
    """The section whose credentials count: the first accepted one that has any.

    An accepted section may have none of its own where it rides on a bundle (`a=bundle-only`,
    RFC 9143 §7.2.1); then another section of the bundle has them, even a rejected one.
    Sections come in the order of the BUNDLE group. Raises RemoteError if there are none at all.
    """
    accepted = list(accepted)
    for section in (*accepted, *others):
        if section.level.all("ice-ufrag"):
            return section
    raise accepted[0].media.line.error("expected a=ice-ufrag in this section")


def read_transport(section: OfferedSection) -> Transport:
    """Credentials, fingerprints and role, the session's where the section has none.

    Raises RemoteError for what is missing, malformed or not supported.
    """
    level = section.level
    ufrag, pwd = level.first("ice-ufrag"), level.first("ice-pwd")
    if ufrag is None or pwd is None:
        raise section.media.line.error("expected a=ice-ufrag and a=ice-pwd in this section")
    return Transport(checked_ufrag(ufrag), checked_pwd(pwd), _fingerprints(section), _role(section))


def _fingerprints(section: OfferedSection) -> tuple[Fingerprint, ...]:
    """All fingerprints of the strongest hash function offered (RFC 8122 §5.1)."""
    lines = section.level.all("fingerprint")
    if not lines:
        raise section.media.line.error("expected a=fingerprint in this section")
    found: dict[str, list[Fingerprint]] = {}
    for line in lines:
        match = _FINGERPRINT.fullmatch(line.argument)
        if match is None:
            raise line.error("expected a=fingerprint:<hash> <hex bytes with colons>")
        algorithm, value = match[1].lower(), match[2].upper()
        if algorithm not in _DIGEST_BYTES:
            continue
        if len(value) != _DIGEST_BYTES[algorithm] * 3 - 1:
            raise line.error(f"expected {_DIGEST_BYTES[algorithm]} bytes for {algorithm}")
        found.setdefault(algorithm, []).append(Fingerprint(algorithm, value))
    for algorithm in _DIGEST_BYTES:
        if algorithm in found:
            return tuple(found[algorithm])
    raise lines[0].error("expected a fingerprint with sha-256, sha-384 or sha-512")


def _role(section: OfferedSection) -> DtlsRole:
    """We are the server wherever the client lets us (design D11)."""
    setup = section.level.first("setup")
    if setup is None:
        return _OUR_ROLE["active"]  # RFC 4145 §4: what an offer without the line means
    role = _OUR_ROLE.get(setup.argument)
    if role is None:
        raise setup.error("expected setup actpass, active or passive")
    return role
