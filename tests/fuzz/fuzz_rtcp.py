"""Invariant: parse or raise RemoteError, nothing else. Reports are built and parsed to the same values.

A NACK, of which we build none, names a bounded number of packets.
"""

from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import RemoteError
    from usher_transceiver.media.rtcp import (
        Nack,
        Report,
        ReportBlock,
        build_bye,
        build_cname,
        build_report,
        parse_rtcp,
    )


def one_input(data: bytes) -> None:
    with suppress(RemoteError):
        for item in parse_rtcp(data):
            if isinstance(item, Nack):
                assert len(item.sequences) <= 16 * 17
                assert all(0 <= sequence <= 0xFFFF for sequence in item.sequences)
                continue
            built = build_report(item) if isinstance(item, Report) else build_bye(item.ssrcs)
            assert parse_rtcp(built) == [item]


BLOCK = ReportBlock(7, 1, -1, 65_537, 30, 99, 100)
SEEDS = [
    build_report(Report(1, (BLOCK,), ntp=1 << 40, rtp_timestamp=5, packets=6, octets=7)) + build_cname(1, "usher"),
    build_report(Report(1, (BLOCK, BLOCK))) + build_bye([1]),
    b"\x81\xce\0\2" + bytes(8),
    b"\x81\xcd\0\3" + bytes(8) + b"\xff\xff\x80\x01",
]

if __name__ == "__main__":
    main(one_input, SEEDS)
