"""STUN messages as ICE uses them (RFC 8489, RFC 8445), parsed and built without I/O.

Rules:
* A message is parsed only when its length field, padding and every attribute stay inside the datagram.
* Order of attributes is free: libdatachannel puts USERNAME after SOFTWARE, libnice PRIORITY first.
* What follows MESSAGE-INTEGRITY, except FINGERPRINT, is ignored (RFC 8489 section 14.5).
* Unknown comprehension-optional attributes are skipped; unknown comprehension-required ones are listed, so that an
  ICE agent can answer 420.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from usher_core.errors import LocalError, RemoteError
from usher_core.ids import V4_MAPPED_PREFIX

MAGIC_COOKIE = 0x2112A442
HEADER_LENGTH = 20
MAX_LENGTH = 1232
"""The longest request that is looked at: 1280 bytes of IPv6 less IP and UDP headers."""
FINGERPRINT_XOR = 0x5354554E
MAX_USERNAME = 513

_COOKIE = MAGIC_COOKIE.to_bytes(4)
_HEADER = struct.Struct("!HHI12s")
_ATTRIBUTE = struct.Struct("!HH")


class StunClass(IntEnum):
    """Message classes (RFC 8489 section 5)."""

    REQUEST = 0x000
    INDICATION = 0x010
    SUCCESS = 0x100
    ERROR = 0x110


class Attribute(IntEnum):
    """Attribute types that ICE needs."""

    MAPPED_ADDRESS = 0x0001
    USERNAME = 0x0006
    MESSAGE_INTEGRITY = 0x0008
    ERROR_CODE = 0x0009
    UNKNOWN_ATTRIBUTES = 0x000A
    XOR_MAPPED_ADDRESS = 0x0020
    PRIORITY = 0x0024
    USE_CANDIDATE = 0x0025
    SOFTWARE = 0x8022
    FINGERPRINT = 0x8028
    ICE_CONTROLLED = 0x8029
    ICE_CONTROLLING = 0x802A


BINDING = 0x001
_KNOWN = frozenset(Attribute)
_MUST_KNOW_BELOW = 0x8000


@dataclass(frozen=True, slots=True)
class StunMessage:
    """A parsed message; it is not authentic before `verify_integrity` held.

    `attributes` holds the first of each type that is covered by MESSAGE-INTEGRITY (or all, when there is none).
    `raw` is the whole datagram; `integrity_offset` is where MESSAGE-INTEGRITY starts, or None.
    """

    method: int
    cls: StunClass
    transaction_id: bytes
    attributes: dict[int, bytes] = field(repr=False)
    unknown_required: tuple[int, ...]
    integrity_offset: int | None
    raw: bytes = field(repr=False)

    @property
    def is_binding_request(self) -> bool:
        """Whether this is a Binding request."""
        return self.method == BINDING and self.cls is StunClass.REQUEST

    @property
    def username(self) -> bytes | None:
        """The USERNAME as sent, `receiver-ufrag:sender-ufrag` in ICE (RFC 8445 section 7.2.2)."""
        return self.attributes.get(Attribute.USERNAME)

    @property
    def server_ufrag(self) -> bytes | None:
        """The part of USERNAME before the colon: the fragment of the agent that receives the request."""
        username = self.username
        if username is None:
            return None
        ufrag, colon, _ = username.partition(b":")
        return ufrag if colon else None

    @property
    def use_candidate(self) -> bool:
        """Whether the request nominates its pair."""
        return Attribute.USE_CANDIDATE in self.attributes

    @property
    def priority(self) -> int | None:
        """PRIORITY of a peer-reflexive candidate (RFC 8445 section 7.1.1)."""
        value = self.attributes.get(Attribute.PRIORITY)
        return int.from_bytes(value) if value is not None else None

    def verify_integrity(self, password: bytes) -> bool:
        """Tell in constant time whether MESSAGE-INTEGRITY was made with `password` (RFC 8489 section 14.5).

        The length field counts up to and including MESSAGE-INTEGRITY, whatever follows.
        """
        offset = self.integrity_offset
        if offset is None:
            return False
        covered = self.raw[:2] + struct.pack("!H", offset + 24 - HEADER_LENGTH) + self.raw[4:offset]
        expected = hmac.digest(password, covered, hashlib.sha1)
        return hmac.compare_digest(expected, self.raw[offset + 4 : offset + 24])


_FIXED_LENGTHS = {
    Attribute.MESSAGE_INTEGRITY: 20,
    Attribute.FINGERPRINT: 4,
    Attribute.PRIORITY: 4,
    Attribute.USE_CANDIDATE: 0,
    Attribute.ICE_CONTROLLED: 8,
    Attribute.ICE_CONTROLLING: 8,
}


def parse(datagram: bytes) -> StunMessage:
    """Parse a STUN message; FINGERPRINT, where present, is checked here (RFC 8489 section 14.7).

    Raises RemoteError: `stun_length`, `stun_cookie`, `stun_attribute`, `stun_fingerprint`.
    """
    size = len(datagram)
    if not HEADER_LENGTH <= size <= MAX_LENGTH:
        raise RemoteError("stun_length", f"a STUN message has {HEADER_LENGTH}..{MAX_LENGTH} bytes, this one {size}")
    message_type, length, cookie, transaction_id = _HEADER.unpack_from(datagram)
    if message_type & 0xC000 or cookie != MAGIC_COOKIE:
        raise RemoteError("stun_cookie", "no magic cookie, or the first two bits are not zero")
    if length % 4 or HEADER_LENGTH + length != size:
        raise RemoteError("stun_length", f"the length field says {length}, the datagram holds {size - HEADER_LENGTH}")
    attributes, integrity_offset = _parse_attributes(datagram)
    unknown = tuple(kind for kind in attributes if kind < _MUST_KNOW_BELOW and kind not in _KNOWN)
    method = (message_type & 0x000F) | (message_type & 0x00E0) >> 1 | (message_type & 0x3E00) >> 2
    return StunMessage(
        method,
        StunClass(message_type & 0x0110),
        transaction_id,
        attributes,
        unknown,
        integrity_offset,
        datagram,
    )


def _parse_attributes(datagram: bytes) -> tuple[dict[int, bytes], int | None]:
    """Return the attributes that MESSAGE-INTEGRITY covers, and where it starts."""
    size = len(datagram)
    attributes: dict[int, bytes] = {}
    integrity_offset: int | None = None
    offset = HEADER_LENGTH
    while offset < size:
        kind, value_length = _ATTRIBUTE.unpack_from(datagram, offset)
        start = offset + 4
        stop = start + value_length
        if stop > size:
            raise RemoteError("stun_attribute", f"attribute 0x{kind:04x} is longer than its message")
        fixed = _FIXED_LENGTHS.get(kind)
        if fixed is not None and fixed != value_length:
            raise RemoteError("stun_attribute", f"attribute 0x{kind:04x} has {value_length} bytes, not {fixed}")
        if kind == Attribute.FINGERPRINT:
            if stop != size:
                raise RemoteError("stun_attribute", "FINGERPRINT is not the last attribute")
            if _crc(datagram[:offset]) != int.from_bytes(datagram[start:stop]):
                raise RemoteError("stun_fingerprint", "FINGERPRINT does not match")
            attributes[kind] = datagram[start:stop]
        elif integrity_offset is None:
            if kind == Attribute.MESSAGE_INTEGRITY:
                integrity_offset = offset
            else:
                # RFC 8489 section 14: only the first occurrence counts.
                attributes.setdefault(kind, datagram[start:stop])
        offset = stop + (-value_length) % 4
    if offset != size:
        raise RemoteError("stun_attribute", "the padding of the last attribute is cut off")
    if len(attributes.get(Attribute.USERNAME, b"")) > MAX_USERNAME:
        raise RemoteError("stun_attribute", f"USERNAME is longer than {MAX_USERNAME} bytes")
    return attributes, integrity_offset


def build(
    cls: StunClass,
    transaction_id: bytes,
    attributes: Sequence[tuple[int, bytes]],
    password: bytes | None,
    *,
    fingerprint: bool = True,
) -> bytes:
    """Build a Binding message with MESSAGE-INTEGRITY (when a password is given) and FINGERPRINT.

    Raises LocalError when the transaction id has not 12 bytes.
    """
    if len(transaction_id) != 12:
        raise LocalError(f"a transaction id has 12 bytes, not {len(transaction_id)}")
    body = b"".join(_attribute(kind, value) for kind, value in attributes)

    def header(extra: int) -> bytes:
        return _HEADER.pack(cls | BINDING, len(body) + extra, MAGIC_COOKIE, transaction_id)

    if password is not None:
        body += _attribute(Attribute.MESSAGE_INTEGRITY, hmac.digest(password, header(24) + body, hashlib.sha1))
    if fingerprint:
        body += _attribute(Attribute.FINGERPRINT, _crc(header(8) + body).to_bytes(4))
    return header(0) + body


def build_success(request: StunMessage, address: bytes, port: int, password: bytes) -> bytes:
    """Build the success response to a Binding request: XOR-MAPPED-ADDRESS of the client as the relay saw it.

    Args:
        request: the request that is answered.
        address: 16 bytes, IPv4 mapped.
        port: the client's port.
        password: our ICE password (RFC 8445 section 7.3).
    """
    value = xor_address(address, port, request.transaction_id)
    return build(StunClass.SUCCESS, request.transaction_id, [(Attribute.XOR_MAPPED_ADDRESS, value)], password)


_REASONS = {420: b"Unknown Attribute", 487: b"Role Conflict"}


def build_error(request: StunMessage, code: int, password: bytes, unknown: tuple[int, ...] = ()) -> bytes:
    """Build an error response (RFC 8489 section 14.8); 420 lists the attributes that were not understood."""
    attributes: list[tuple[int, bytes]] = [
        (Attribute.ERROR_CODE, bytes((0, 0, code // 100, code % 100)) + _REASONS[code])
    ]
    if unknown:
        attributes.append((Attribute.UNKNOWN_ATTRIBUTES, struct.pack(f"!{len(unknown)}H", *unknown)))
    return build(StunClass.ERROR, request.transaction_id, attributes, password)


def xor_address(address: bytes, port: int, transaction_id: bytes) -> bytes:
    """Return the value of XOR-MAPPED-ADDRESS for 16 address bytes, IPv4 mapped (RFC 8489 section 14.2)."""
    xor_port = struct.pack("!H", port ^ (MAGIC_COOKIE >> 16))
    if address[:12] == V4_MAPPED_PREFIX:
        return b"\x00\x01" + xor_port + _xor(address[12:], _COOKIE)
    return b"\x00\x02" + xor_port + _xor(address, _COOKIE + transaction_id)


def unxor_address(value: bytes, transaction_id: bytes) -> tuple[bytes, int]:
    """Return (16 address bytes, port) of an XOR-MAPPED-ADDRESS value. Raises RemoteError `stun_attribute`."""
    if len(value) == 8 and value[1] == 1:
        address = V4_MAPPED_PREFIX + _xor(value[4:], _COOKIE)
    elif len(value) == 20 and value[1] == 2:
        address = _xor(value[4:], _COOKIE + transaction_id)
    else:
        raise RemoteError("stun_attribute", "XOR-MAPPED-ADDRESS holds no address")
    return address, int.from_bytes(value[2:4]) ^ (MAGIC_COOKIE >> 16)


def error_code(value: bytes) -> int:
    """Return the number in an ERROR-CODE value, 300..699. Raises RemoteError `stun_attribute`."""
    if len(value) < 4 or not 3 <= value[2] & 7 <= 6 or value[3] > 99:
        raise RemoteError("stun_attribute", "ERROR-CODE holds no code")
    return (value[2] & 7) * 100 + value[3]


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(kind, len(value)) + value + bytes((-len(value)) % 4)


def _crc(covered: bytes) -> int:
    return binascii.crc32(covered) ^ FINGERPRINT_XOR


def _xor(data: bytes, mask: bytes) -> bytes:
    return (int.from_bytes(data) ^ int.from_bytes(mask)).to_bytes(len(data))
