"""Hop datagrams on the hot path: the same bytes as `usher_core.hop`, made from parts that were built before.

`usher_core.hop` is the readable reference; property tests show that both agree. What makes this one quick:

* A route's first 11 bytes and a flow's record header are built once. Time, key id and the zero MAC are joined once per
  batch, because a batch reads the clock once.
* An incoming datagram is judged by slices at fixed offsets; only one with several records, or another type than
  DATA, is parsed into objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hmac import compare_digest
from typing import NamedTuple

from siphashc import siphash

from usher_core.hop import (
    LAST_HOP,
    MAC_LENGTH,
    MAC_PAYLOAD_LENGTH,
    OUTER_LENGTH,
    OVERHEAD,
    RECORD_LENGTH,
    TIME_MODULUS,
    TO_CLIENT,
    VERSION,
    HopType,
)
from usher_core.ids import Route

NO_MAC = bytes(MAC_LENGTH)
MAC_AT = OUTER_LENGTH - MAC_LENGTH
MAC_COVERS_UNTIL = OUTER_LENGTH + RECORD_LENGTH + MAC_PAYLOAD_LENGTH
CLUSTER = slice(4, 6)
ROUTE = slice(4, 11)
HOPS_LEFT_AT = 3
KEY_ID_AT = 11
TIME = slice(12, 16)
SLOT = slice(16, 18)
NO_SLOT = bytes(2)
RECORD_FLAGS_AT = OUTER_LENGTH + 2
PATH_KEY = slice(OUTER_LENGTH + 3, OUTER_LENGTH + 23)
DATA_TO_CLIENT = TO_CLIENT | HopType.DATA

# A datagram has at most 65,507 bytes, so its length always finds its two bytes here.
LENGTHS = tuple(length.to_bytes(2) for length in range(1 << 16))
pack_mac = struct.Struct("!Q").pack
_ROUTE = struct.Struct("!HIB")


def route_bytes(route: Route) -> bytes:
    """Return the 7 bytes of a route as they stand in a hop datagram."""
    return _ROUTE.pack(route.cluster, route.pod, route.worker)


def route_of(route: bytes) -> Route:
    """Return the route of its 7 bytes."""
    return Route(*_ROUTE.unpack(route))


def hop_prefix(kind: int, route: bytes, hops_left: int = LAST_HOP) -> bytes:
    """Return the first 11 bytes of every datagram of a kind to `route`: version, type, flags, hops left, route."""
    return bytes((VERSION, kind, 0, hops_left)) + route


class Stamp(NamedTuple):
    """What all hop datagrams of one batch share; `make_stamp` builds it."""

    key: bytes
    tail: bytes
    """Key id, time and return slot: what stands between route and MAC."""
    tail_without_mac: bytes
    """The same with a zero MAC behind it."""

    def of(self, key_id: int, key: bytes) -> Stamp:
        """Return the stamp of the same batch for another key."""
        tail = bytes((key_id,)) + self.tail[1:]
        return Stamp(key, tail, tail + NO_MAC)


def make_stamp(key_id: int, key: bytes, time_ms: int) -> Stamp:
    """Return the stamp of a batch that is sent at `time_ms`, Unix time in ms (mod 2^32 on the wire)."""
    tail = bytes((key_id,)) + (time_ms % TIME_MODULUS).to_bytes(4) + bytes(2)
    return Stamp(key, tail, tail + NO_MAC)


def encode_data(prefix: bytes, stamp: Stamp, record: bytes, payload: bytes) -> bytes:
    """Return a DATA datagram with one record.

    Args:
        prefix: `hop_prefix` of DATA and the route.
        stamp: of this batch.
        record: the 23 bytes of the record header that follow its length.
        payload: at most 65,535 bytes.
    """
    header = LENGTHS[len(payload)] + record
    mac = siphash(stamp.key, b"".join((prefix, stamp.tail_without_mac, header, payload[:MAC_PAYLOAD_LENGTH])))
    return b"".join((prefix, stamp.tail, pack_mac(mac), header, payload))


def encode_question(route: bytes, stamp: Stamp, path_key: bytes, ssrc: bytes) -> bytes:
    """Return WHO-HAS for a client's SSRC (4 bytes), or for its address where that is zero."""
    # Its MAC covers the whole payload, which is no more than is covered of DATA.
    return encode_data(hop_prefix(HopType.WHO_HAS, route), stamp, record_header(path_key, 0), ssrc)


def under_mac(datagram: bytes) -> bytes | None:
    """Return what the MAC of DATA covers behind the outer part: each record header and 16 payload bytes.

    None when the records do not fill the datagram exactly.
    """
    if holds_one_record(datagram):
        return datagram[OUTER_LENGTH:MAC_COVERS_UNTIL]
    covered = b""
    for span in record_spans(datagram):
        if span.stop > len(datagram):
            return None
        covered += datagram[span.start : min(span.stop, span.start + RECORD_LENGTH + MAC_PAYLOAD_LENGTH)]
    return covered


def record_spans(datagram: bytes) -> Iterator[slice]:
    """Yield where each record lies, with its header. The last may end beyond the datagram."""
    start = OUTER_LENGTH
    while start < len(datagram):
        length = (datagram[start] << 8) + datagram[start + 1] if start + 1 < len(datagram) else 0
        stop = start + RECORD_LENGTH + length
        yield slice(start, stop)
        start = stop


def restamp(datagram: bytes, head: bytes, tail: bytes, key: bytes, covered: bytes) -> bytes:
    """Return a datagram with its records as they are under another outer part.

    Args:
        datagram: as it came, authenticated.
        head: the new first 11 bytes, see `hop_prefix`.
        tail: the new key id, time and return slot, 7 bytes.
        key: of that id.
        covered: `under_mac` of the datagram.
    """
    mac = pack_mac(siphash(key, b"".join((head, tail, NO_MAC, covered))))
    return b"".join((head, tail, mac, datagram[OUTER_LENGTH:]))


def record_header(path_key: bytes, flags: int, split_id: int = 0) -> bytes:
    """Return the 23 bytes of a record header that follow its length."""
    return bytes((flags,)) + path_key + LENGTHS[split_id]


def holds_one_record(datagram: bytes) -> bool:
    """Tell whether the first record of a datagram of at least 51 bytes fills it exactly."""
    return OVERHEAD + (datagram[26] << 8) + datagram[27] == len(datagram)


def is_authentic(datagram: bytes, key: bytes) -> bool:
    """Tell in constant time whether `key` made the MAC of a DATA datagram with one record."""
    covered = b"".join((datagram[:MAC_AT], NO_MAC, datagram[OUTER_LENGTH:MAC_COVERS_UNTIL]))
    return compare_digest(pack_mac(siphash(key, covered)), datagram[MAC_AT:OUTER_LENGTH])
