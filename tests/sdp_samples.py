"""Offers stored in tests/vectors/offers, one written here to vary, and what we answer them with."""

from pathlib import Path

from usher_core.ice_attributes import Candidate
from usher_transceiver.sdp import LocalDescription

OFFERS = Path(__file__).parent / "vectors" / "offers"
STORED = tuple(sorted(path.stem for path in OFFERS.glob("*.sdp")))

FINGERPRINT = ":".join(["CD"] * 32)
CREDENTIALS = ("a=ice-ufrag:abcd", "a=ice-pwd:abcdefghijklmnopqrstuvwx", f"a=fingerprint:sha-256 {FINGERPRINT}")

LOCAL = LocalDescription(
    ufrag="AserverAserverAserverAs",
    pwd="serverserverserverserverserverse",
    fingerprint=":".join(["AB"] * 32),
    candidates=(Candidate("203.0.113.10", 3478), Candidate("2001:db8::10", 3478)),
    ssrc=4_000_000_001,
    cname="usher",
    stream_id="usher",
    track_id="audio",
    session_id=2**63 - 1,
)


def stored(name: str) -> str:
    return (OFFERS / f"{name}.sdp").read_bytes().decode()


def offer(*sections: list[str], session: tuple[str, ...] = ("a=group:BUNDLE 0 1",)) -> str:
    head = ["v=0", "o=- 1 2 IN IP4 127.0.0.1", "s=-", "t=0 0", *session]
    return "\r\n".join([*head, *(line for section in sections for line in section)]) + "\r\n"


def audio(
    *more: str,
    media: str = "m=audio 9 UDP/TLS/RTP/SAVPF 111",
    mid: str | None = "0",
    transport: tuple[str, ...] = (*CREDENTIALS, "a=setup:actpass"),
    codec: tuple[str, ...] = ("a=rtpmap:111 opus/48000/2",),
) -> list[str]:
    return [media, *([f"a=mid:{mid}"] if mid else []), *transport, "a=rtcp-mux", *codec, *more]


def data(
    *more: str,
    media: str = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
    mid: str | None = "1",
    transport: tuple[str, ...] = (*CREDENTIALS, "a=setup:actpass"),
) -> list[str]:
    return [media, *([f"a=mid:{mid}"] if mid else []), *transport, *more]
