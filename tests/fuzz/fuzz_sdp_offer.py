"""Invariant: parse or raise RemoteError, nothing else. What parses gets an answer with as many sections."""

from contextlib import suppress
from pathlib import Path

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import RemoteError
    from usher_core.sdplines import read_document
    from usher_transceiver.sdp import Candidate, LocalDescription, build_answer, parse_offer

OFFERS = Path(__file__).parents[1] / "vectors" / "offers"
LOCAL = LocalDescription(
    ufrag="Aserver",
    pwd="p" * 32,
    fingerprint=":".join(["AB"] * 32),
    candidates=(Candidate("192.0.2.1", 3478),),
    ssrc=1,
    cname="usher",
    stream_id="usher",
    track_id="audio",
    session_id=1,
)


def one_input(data: bytes) -> None:
    with suppress(RemoteError):
        offer = parse_offer(data)
        answer = build_answer(offer, LOCAL)
        assert len(read_document(answer).sections) == len(offer.sections) == len(read_document(data).sections)


OFFER = """v=0
o=- 1 2 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0 1
m=audio 9 UDP/TLS/RTP/SAVPF 111 0
c=IN IP4 0.0.0.0
a=ice-ufrag:abcd
a=ice-pwd:abcdefghijklmnopqrstuvwx
a=ice-options:trickle
a=fingerprint:sha-256 {fingerprint}
a=setup:actpass
a=mid:0
a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level
a=sendrecv
a=rtcp-mux
a=rtpmap:111 opus/48000/2
a=fmtp:111 minptime=10;useinbandfec=1
m=video 9 UDP/TLS/RTP/SAVPF 96
a=mid:1
a=rtpmap:96 VP9/90000
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
a=ice-ufrag:abcd
a=ice-pwd:abcdefghijklmnopqrstuvwx
a=mid:1
a=sctp-port:5000
a=max-message-size:262144
""".replace("{fingerprint}", ":".join(["CD"] * 32))

if __name__ == "__main__":
    main(one_input, [OFFER.encode(), *(path.read_bytes() for path in sorted(OFFERS.glob("*.sdp")))])
