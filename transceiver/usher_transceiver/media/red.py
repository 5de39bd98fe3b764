"""Redundant audio data (RFC 2198): a packet that carries copies of those before it, so that a lost one is no loss.

Browsers offer it and always send one copy. So do we, but only while a client reports loss (docs/decisions/0018).
"""

from typing import Final, NamedTuple

from usher_core.errors import RemoteError

_MORE: Final = 0x80
_MAX_BLOCKS: Final = 8
_TIMES: Final = 1 << 14
_LENGTHS: Final = 1 << 10


class Copy(NamedTuple):
    """An earlier packet: how many packets and how much RTP time it is behind the one that carries it."""

    packets: int
    time: int
    payload: bytes


def split_red(payload: bytes, payload_type: int) -> tuple[bytes, list[Copy]]:
    """Return the packet's own payload and the copies in it, oldest first; copies of another payload type are left out.

    Raises RemoteError (reason ``red_packet``) when it is malformed, or its own payload is of another type.
    """
    headers: list[tuple[int, int, int]] = []
    position = 0
    while position < len(payload) and payload[position] & _MORE:
        if position + 4 > len(payload) or len(headers) == _MAX_BLOCKS:
            raise RemoteError("red_packet", f"a RED header is cut off, or there are more than {_MAX_BLOCKS} copies")
        header = int.from_bytes(payload[position : position + 4])
        headers.append((header >> 24 & 0x7F, header >> 10 & 0x3FFF, header & 0x3FF))
        position += 4
    if position >= len(payload):
        raise RemoteError("red_packet", "the RED packet ends within its headers")
    if payload[position] != payload_type:
        raise RemoteError("red_packet", f"RED of payload type {payload_type} was agreed, not of {payload[position]}")
    position += 1
    copies = []
    for index, (kind, time, length) in enumerate(headers):
        if position + length > len(payload):
            raise RemoteError("red_packet", "a copy is longer than the RED packet that carries it")
        # RFC 2198 names a time and no sequence number; senders copy the packets right before.
        if kind == payload_type and length:
            copies.append(Copy(len(headers) - index, time, payload[position : position + length]))
        position += length
    return payload[position:], copies


def build_red(payload: bytes, payload_type: int, copy: Copy) -> bytes | None:
    """Return a packet's payload with the copy of the one before it, None where the header cannot name that."""
    if not 0 < copy.time < _TIMES or len(copy.payload) >= _LENGTHS:
        return None
    header = (_MORE | payload_type) << 24 | copy.time << 10 | len(copy.payload)
    return header.to_bytes(4) + bytes((payload_type,)) + copy.payload + payload
