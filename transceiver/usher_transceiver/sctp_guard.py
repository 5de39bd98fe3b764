"""What an SCTP packet must look like before aiortc sees it (RFC 9260 section 3).

aiortc's parser trusts its peer: a parameter of length 0 makes it loop for ever, a SACK with wide gap blocks takes
seconds, and fragments that never end take memory without bound. Anybody who may place a call could so stop all calls
of a process.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from usher_core.errors import RemoteError

MAX_CHUNKS = 64
"""Per packet. Clients bundle a handful."""
MAX_GAP = 8192
"""TSNs that a SACK may reach ahead; 8 times what a receive window of 1 MiB holds in full chunks."""

_HEADER_LENGTH = 12
_CHUNK = struct.Struct("!BBH")
_PARAMETER = struct.Struct("!HH")
_DATA, _INIT, _INIT_ACK, _SACK, _ABORT, _SHUTDOWN, _ERROR = 0, 1, 2, 3, 6, 7, 9
_HEARTBEAT, _HEARTBEAT_ACK, _RECONFIG, _FORWARD_TSN = 4, 5, 130, 192
_INIT_LENGTH = 16
_RECONFIG_LENGTHS = {13: 12, 16: 8, 17: 8}
_WITH_PARAMETERS = {_INIT: _INIT_LENGTH, _INIT_ACK: _INIT_LENGTH}
_WITH_PARAMETERS |= dict.fromkeys((_HEARTBEAT, _HEARTBEAT_ACK, _ABORT, _ERROR, _RECONFIG), 0)


class DataChunk(NamedTuple):
    """What flow control has to know about a DATA chunk."""

    tsn: int
    stream: int


def check_packet(packet: bytes) -> list[DataChunk]:
    """Return the DATA chunks of a packet that is well-formed.

    Raises RemoteError `sctp_malformed`.
    """
    data: list[DataChunk] = []
    count = 0
    offset, size = _HEADER_LENGTH, len(packet)
    if size < offset + _CHUNK.size:
        raise _malformed("it holds no chunk")
    while offset + _CHUNK.size <= size:
        kind, _, length = _CHUNK.unpack_from(packet, offset)
        if length < _CHUNK.size or offset + length > size:
            raise _malformed("a chunk is longer than its packet")
        count += 1
        body = packet[offset + _CHUNK.size : offset + length]
        if kind == _DATA:
            if len(body) <= 12:
                raise _malformed("a DATA chunk holds no data")
            data.append(DataChunk(*struct.unpack_from("!LH", body)))
        else:
            _check_control(kind, body)
        offset += length + (-length) % 4
    if count > MAX_CHUNKS:
        raise _malformed(f"it holds more than {MAX_CHUNKS} chunks")
    return data


def _check_control(kind: int, body: bytes) -> None:
    if kind in _WITH_PARAMETERS:
        _check_parameters(kind, body, _WITH_PARAMETERS[kind])
    elif kind == _SACK:
        _check_sack(body)
    elif kind == _FORWARD_TSN:
        if len(body) < 4 or len(body) % 4:
            raise _malformed("a FORWARD TSN is cut off")
    elif kind == _SHUTDOWN and len(body) < 4:
        raise _malformed("a SHUTDOWN is cut off")


def _check_parameters(kind: int, body: bytes, offset: int) -> None:
    if len(body) < offset:
        raise _malformed("an INIT is cut off")
    while offset + _PARAMETER.size <= len(body):
        parameter, length = _PARAMETER.unpack_from(body, offset)
        if length < _PARAMETER.size or offset + length > len(body):
            raise _malformed("a parameter has an impossible length")
        value = length - _PARAMETER.size
        if kind == _RECONFIG and (value < _RECONFIG_LENGTHS.get(parameter, 0) or value % 2):
            raise _malformed("a re-configuration parameter is cut off")
        offset += length + (-length) % 4


def _check_sack(body: bytes) -> None:
    if len(body) < 12:
        raise _malformed("a SACK is cut off")
    gaps, duplicates = struct.unpack_from("!HH", body, 8)
    if len(body) < 12 + 4 * (gaps + duplicates):
        raise _malformed("a SACK is cut off")
    previous = 0
    for index in range(gaps):
        start, end = struct.unpack_from("!HH", body, 12 + 4 * index)
        # Blocks follow each other in all implementations; wide or overlapping ones cost aiortc a step per TSN.
        if not previous < start <= end <= MAX_GAP:
            raise _malformed("the gap blocks of a SACK are not in order")
        previous = end


def _malformed(what: str) -> RemoteError:
    return RemoteError("sctp_malformed", f"this is no SCTP packet of a data channel: {what}")
