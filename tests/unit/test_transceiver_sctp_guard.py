"""Packets that would stop aiortc, and with it every call of the process."""

from __future__ import annotations

import struct

import pytest

from usher_core.errors import RemoteError
from usher_transceiver.sctp_guard import MAX_CHUNKS, MAX_GAP, check_packet

HEADER = struct.pack("!HHLL", 5000, 5000, 1, 0)


def chunk(kind: int, body: bytes, length: int | None = None) -> bytes:
    size = 4 + len(body) if length is None else length
    return struct.pack("!BBH", kind, 0, size) + body + bytes(-len(body) % 4)


def sack(*gaps: tuple[int, int], count: int | None = None) -> bytes:
    body = struct.pack("!LLHH", 1, 65536, len(gaps) if count is None else count, 0)
    return chunk(3, body + b"".join(struct.pack("!HH", *gap) for gap in gaps))


INIT = struct.pack("!LLHHL", 1, 65536, 10, 10, 1)
DATA = chunk(0, struct.pack("!LHHL", 77, 5, 0, 51) + b"hello")


@pytest.mark.parametrize(
    "chunks",
    [
        b"",
        b"\0\0\0",
        chunk(0, bytes(12)),
        chunk(0, b"", length=3),
        chunk(0, bytes(20), length=400),
        chunk(1, b"short"),
        chunk(1, INIT + struct.pack("!HH", 0x8008, 0)),
        chunk(1, INIT + struct.pack("!HH", 0x8008, 3)),
        chunk(2, INIT + struct.pack("!HH", 7, 400)),
        chunk(4, struct.pack("!HH", 1, 0)),
        chunk(6, struct.pack("!HH", 1, 0)),
        chunk(130, struct.pack("!HH", 13, 0)),
        chunk(130, struct.pack("!HH", 13, 8) + bytes(4)),
        chunk(130, struct.pack("!HH", 13, 17) + bytes(13)),
        chunk(3, bytes(8)),
        sack(count=9),
        sack((5, 4)),
        sack((0, 1)),
        sack((1, MAX_GAP + 1)),
        sack((1, 10), (5, 20)),
        chunk(192, b"\0\0\0\1\0\1"),
        chunk(7, b"\0"),
        DATA * (MAX_CHUNKS + 1),
    ],
)
def test_malformed_packets_are_refused(chunks: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        check_packet(HEADER + chunks)
    assert caught.value.reason == "sctp_malformed"


@pytest.mark.parametrize(
    "chunks",
    [
        chunk(1, INIT),
        chunk(1, INIT + struct.pack("!HH", 0xC000, 4) + struct.pack("!HH", 0x8008, 6) + b"\xc0\x82\0\0"),
        chunk(4, struct.pack("!HH", 1, 8) + bytes(4)),
        chunk(6, b""),
        chunk(10, b"cookie"),
        chunk(11, b""),
        chunk(130, struct.pack("!HHLLLH", 13, 18, 1, 1, 1, 5) + b"\0\0"),
        chunk(192, struct.pack("!LHH", 1, 5, 1)),
        sack((2, 3), (5, 5)),
        chunk(77, b"of a later RFC"),
    ],
)
def test_what_clients_send_passes(chunks: bytes) -> None:
    assert check_packet(HEADER + chunks) == []


def test_data_chunks_are_named() -> None:
    assert check_packet(HEADER + sack() + DATA + DATA) == [(77, 5), (77, 5)]
