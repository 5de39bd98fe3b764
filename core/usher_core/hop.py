"""Hop datagrams between relay and transceiver and between relays, version 1 (design D5, docs/wire.md).

Outer part, 26 bytes::

    version 1 | direction and type 1 | flags 1 | hops left 1 | cluster 2 | pod 4 | worker 1
    | MAC key id 1 | time 4 | return slot 2 | MAC 8

then one or more records, 25 bytes of header each and a payload::

    length 2 | flags 1 | listener 2 | client port 2 | client address 16 | split id 2 | payload

The MAC is SipHash-2-4 over the outer part with a zero MAC, then over each record header with the first 16 bytes of its
payload (of DATA; all other types carry little, so their whole payload is covered).
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple

from siphashc import siphash

from usher_core.errors import LocalError, RemoteError
from usher_core.ids import ClientPath

VERSION = 1
OUTER_LENGTH = 26
RECORD_LENGTH = 25
OVERHEAD = OUTER_LENGTH + RECORD_LENGTH
"""Bytes that the first record of a datagram adds to its payload."""
MAC_LENGTH = 8
MAC_PAYLOAD_LENGTH = 16
HOP_KEY_LENGTH = 16
TIME_MODULUS = 1 << 32
TIME_WINDOW_MS = 60_000
MAX_DATAGRAM = 65_507
PROBED_LENGTH = 16
"""Nonce and time of a PROBE, which go back as they came."""
TO_CLIENT = 0x80

_OUTER = struct.Struct("!BBBBHIBBIH8s")
_RECORD = struct.Struct("!HBHH16sH")
_NO_MAC = bytes(MAC_LENGTH)


LAST_HOP = 1
OVER_A_TRUNK = 2
"""Hops left of a datagram that a home relay forwards once more."""


class HopType(IntEnum):
    """The message types of version 1."""

    DATA = 1
    UNKNOWN_FLOW = 2
    WHO_HAS = 3
    HERE = 4
    PROBE = 5
    PROBE_REPLY = 6


class RecordFlag(IntFlag):
    """Flags of a record."""

    TENTATIVE = 1
    """Towards the transceiver: the relay guessed the route by SSRC; SRTP authentication decides."""
    ALIVE = 2
    """Towards the client: an authenticated packet or a valid unseen check came from this address within 5 s."""
    SPLIT = 4
    """The payload is one half of a datagram that did not fit."""
    LAST_PART = 8
    """The second half."""


_TYPES = {kind.value: kind for kind in HopType}
"""An enum's own look-up costs more than all the rest of the outer part."""


@dataclass(frozen=True, slots=True)
class Outer:
    """The outer part without version and MAC. `time_ms` is the sender's clock in ms mod 2^32."""

    type: HopType
    to_client: bool
    cluster: int
    pod: int
    worker: int
    key_id: int
    time_ms: int
    hops_left: int = LAST_HOP
    return_slot: int = 0
    flags: int = 0


class Record(NamedTuple):
    """One client datagram, or one question or answer about a client path; a tuple, as one is made for every packet."""

    path: ClientPath
    payload: bytes
    flags: int = 0
    split_id: int = 0


@dataclass(frozen=True, slots=True)
class HopDatagram:
    """A parsed hop datagram. `mac_input` and `mac` are what `verify` compares."""

    outer: Outer
    records: tuple[Record, ...]
    mac: bytes
    mac_input: bytes


def _mac(key: bytes, mac_input: bytes) -> bytes:
    return int(siphash(key, mac_input)).to_bytes(MAC_LENGTH)


def encode(outer: Outer, records: tuple[Record, ...], key: bytes) -> bytes:
    """Return the datagram of `outer` and `records`, authenticated with `key` (16 bytes).

    Raises LocalError when there is no record or a payload or the whole is too long.
    """
    if not records:
        raise LocalError("a hop datagram has at least one record")
    head = _OUTER.pack(
        VERSION,
        (TO_CLIENT if outer.to_client else 0) | outer.type,
        outer.flags,
        outer.hops_left,
        outer.cluster,
        outer.pod,
        outer.worker,
        outer.key_id,
        outer.time_ms % TIME_MODULUS,
        outer.return_slot,
        _NO_MAC,
    )
    covered = MAC_PAYLOAD_LENGTH if outer.type is HopType.DATA else MAX_DATAGRAM
    body = b""
    mac_input = head
    for record in records:
        path = record.path
        payload = record.payload
        if len(payload) > MAX_DATAGRAM:
            raise LocalError(f"a payload of {len(payload)} bytes does not fit a datagram")
        header = _RECORD.pack(len(payload), record.flags, path.listener, path.port, path.address, record.split_id)
        body += header + payload
        mac_input += header + payload[:covered]
    if OUTER_LENGTH + len(body) > MAX_DATAGRAM:
        raise LocalError("the records do not fit one datagram")
    return head[:-MAC_LENGTH] + _mac(key, mac_input) + body


def parse(datagram: bytes) -> HopDatagram:
    """Return the parts of a hop datagram. It is not authentic before `verify` held.

    Raises RemoteError: `hop_length`, `hop_version`, `hop_type`, `hop_route`.
    """
    if len(datagram) < OVERHEAD:
        raise RemoteError("hop_length", f"a hop datagram has at least {OVERHEAD} bytes, this one {len(datagram)}")
    (version, kind, flags, hops_left, cluster, pod, worker, key_id, time_ms, return_slot, mac) = _OUTER.unpack_from(
        datagram
    )
    if version != VERSION:
        raise RemoteError("hop_version", f"hop version {version} is not {VERSION}")
    hop_type = _TYPES.get(kind & 0x7F)
    if hop_type is None:
        raise RemoteError("hop_type", f"hop type {kind & 0x7F} is not of version {VERSION}")
    if cluster == 0:
        raise RemoteError("hop_route", "cluster id 0 is reserved")
    covered = MAC_PAYLOAD_LENGTH if hop_type is HopType.DATA else MAX_DATAGRAM
    mac_input = [datagram[: OUTER_LENGTH - MAC_LENGTH], _NO_MAC]
    records: list[Record] = []
    offset, end = OUTER_LENGTH, len(datagram)
    while offset < end:
        start = offset + RECORD_LENGTH
        if start > end:
            raise RemoteError("hop_length", "a record header is cut off")
        length, record_flags, listener, port, address, split_id = _RECORD.unpack_from(datagram, offset)
        stop = start + length
        if stop > end:
            raise RemoteError("hop_length", "a record is longer than its datagram")
        mac_input.append(datagram[offset : stop if length < covered else start + covered])
        records.append(Record(ClientPath(address, port, listener), datagram[start:stop], record_flags, split_id))
        offset = stop
    outer = Outer(hop_type, kind >= TO_CLIENT, cluster, pod, worker, key_id, time_ms, hops_left, return_slot, flags)
    return HopDatagram(outer, tuple(records), mac, b"".join(mac_input))


def verify(datagram: HopDatagram, key: bytes) -> bool:
    """Tell in constant time whether `key` made the MAC."""
    return hmac.compare_digest(datagram.mac, _mac(key, datagram.mac_input))


def time_offset_ms(sent_ms: int, now_ms: int) -> int:
    """Return how far the sender's clock is ahead of ours, in ms within -2^31..2^31-1 (serial arithmetic mod 2^32)."""
    return (sent_ms - now_ms + (1 << 31)) % TIME_MODULUS - (1 << 31)


def is_timely(sent_ms: int, now_ms: int) -> bool:
    """Tell whether a datagram's time is within 60 s of ours."""
    return abs(time_offset_ms(sent_ms, now_ms)) <= TIME_WINDOW_MS


def split(payload: bytes, room: int) -> tuple[bytes, bytes] | None:
    """Cut a payload in the middle, so that each half fits any later hop; None when half exceeds `room` bytes."""
    middle = (len(payload) + 1) // 2
    return (payload[:middle], payload[middle:]) if middle <= room else None
