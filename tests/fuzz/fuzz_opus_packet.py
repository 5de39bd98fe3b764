"""Invariant: parse or raise RemoteError, nothing else. A duration is what RFC 6716 allows."""

from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import RemoteError
    from usher_transceiver.media.opus_packet import has_redundancy, packet_duration


def one_input(data: bytes) -> None:
    with suppress(RemoteError):
        assert 120 <= packet_duration(data) <= 5760
        assert has_redundancy(data) in (False, True)


if __name__ == "__main__":
    main(one_input, [b"\xfc", b"\xf8\xff\xfe", b"\x03\x02audio"])
