"""Invariant: parse or raise RemoteError, nothing else. aiortc reads what passes in bounded time."""

import struct
import time
from contextlib import suppress

from google_crc32c import value as crc32c

from tests.fuzz.harness import instrumented, main

with instrumented():
    from aiortc.rtcsctptransport import parse_packet

    from usher_core.errors import RemoteError
    from usher_transceiver.sctp_guard import MAX_CHUNKS, check_packet

BOUND_S = 0.5


def one_input(data: bytes) -> None:
    for packet in (data, _with_true_checksum(data)):
        try:
            assert len(check_packet(packet)) <= MAX_CHUNKS
        except RemoteError:
            continue
        start = time.process_time()
        with suppress(ValueError, struct.error, AssertionError):
            parse_packet(packet)
        assert time.process_time() - start < BOUND_S


def _with_true_checksum(data: bytes) -> bytes:
    """RFC 9260 section 6.8: CRC32c over the packet with a checksum of zero, least significant byte first."""
    packet = bytes(8) + bytes(4) + data[12:]
    checksum: int = crc32c(packet)
    return packet[:8] + checksum.to_bytes(4, "little") + packet[12:]


def _packet(*chunks: tuple[int, bytes]) -> bytes:
    body = b"".join(
        struct.pack("!BBH", kind, 3, 4 + len(value)) + value + bytes(-len(value) % 4) for kind, value in chunks
    )
    return _with_true_checksum(bytes(12) + body)


SEEDS = [
    _packet((1, bytes(16) + b"\xc0\0\0\4" + b"\x80\x08\0\6\xc0\x82\0\0")),
    _packet((0, struct.pack("!LHHL", 1, 0, 0, 51) + b"hello"), (3, struct.pack("!LLHHHH", 1, 9, 1, 0, 2, 3))),
    _packet((4, b"\0\1\0\6ab\0\0"), (192, bytes(4)), (130, b"\0\x0d\0\x10" + bytes(12)), (6, b""), (7, bytes(4))),
]

if __name__ == "__main__":
    main(one_input, SEEDS)
