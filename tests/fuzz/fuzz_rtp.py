"""Invariant: parse or raise RemoteError, nothing else. What parses is built and parsed to the same packet."""

from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import RemoteError
    from usher_transceiver.media.rtp import ONE_BYTE_PROFILE, RtpPacket, build_rtp, extensions, parse_rtp


def one_input(data: bytes) -> None:
    with suppress(RemoteError):
        packet = parse_rtp(data)
        if not packet.extension:  # an extension of no words is not written
            packet = packet._replace(extension_profile=0)
        assert parse_rtp(build_rtp(packet)) == packet
        assert sum(map(len, extensions(packet).values())) <= len(packet.extension)


PLAIN = RtpPacket(payload_type=111, sequence=1, timestamp=960, ssrc=7, payload=b"opus", marker=True)
SEEDS = [
    build_rtp(PLAIN),
    build_rtp(PLAIN._replace(extension_profile=ONE_BYTE_PROFILE, extension=b"\x10\x7f\x20m")),
    build_rtp(PLAIN._replace(extension_profile=0x1000, extension=b"\1\1\x7f\0")),
    b"\xa1" + build_rtp(PLAIN)[1:] + b"csrc" + b"\0\0\3",
]

if __name__ == "__main__":
    main(one_input, SEEDS)
