"""Invariant: parse or raise RemoteError, nothing else. An SSRC is found wherever the header is whole."""

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.datagram import classify
    from usher_core.rtp import RTCP_HEADER_LENGTH, RTP_HEADER_LENGTH, is_rtcp, peek_ssrc


def one_input(data: bytes) -> None:
    classify(data)
    ssrc = peek_ssrc(data)
    whole = len(data) >= (RTCP_HEADER_LENGTH if is_rtcp(data) else RTP_HEADER_LENGTH) and data[0] >> 6 == 2
    assert (ssrc is not None) == whole
    assert ssrc is None or 0 <= ssrc < 1 << 32


SEEDS = [b"\x80\x6f" + bytes(10) + b"audio", b"\x80\xc8\0\6" + bytes(24), b"\x16\xfe\xfd" + bytes(10)]

if __name__ == "__main__":
    main(one_input, SEEDS)
