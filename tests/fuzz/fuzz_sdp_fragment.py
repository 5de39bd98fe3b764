"""Invariant: parse or raise RemoteError, nothing else. What parses is written and read back as the same value."""

from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import RemoteError
    from usher_core.sdpfrag import build_fragment, parse_fragment


def one_input(data: bytes) -> None:
    with suppress(RemoteError):
        fragment = parse_fragment(data)
        assert parse_fragment(build_fragment(fragment)) == fragment


TRICKLE = b"""a=group:BUNDLE 0 1
m=audio 9 UDP/TLS/RTP/SAVPF 0
a=mid:0
a=ice-ufrag:abcd
a=ice-pwd:abcdefghijklmnopqrstuvwx
a=candidate:1 1 udp 2122260223 192.0.2.1 50000 typ host
a=end-of-candidates
"""
RESTART = (
    b"a=ice-options:trickle ice2\r\na=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\na=end-of-candidates\r\n"
)

if __name__ == "__main__":
    main(one_input, [TRICKLE, RESTART, b""])
