"""Offers that are refused: always by RemoteError, with the line's number and text, nothing secret, all printable."""

import pytest

from tests.sdp_samples import CREDENTIALS, FINGERPRINT, audio, data, offer
from usher_core.errors import RemoteError
from usher_core.sdplines import MAX_BYTES, MAX_LINES, MAX_SECTIONS
from usher_transceiver.sdp import parse_offer

GOOD = offer(audio(), data())
UFRAG, PWD, PRINT = CREDENTIALS


def refusal(text: str | bytes) -> str:
    with pytest.raises(RemoteError) as caught:
        parse_offer(text)
    assert caught.value.reason == "bad_sdp"
    assert caught.value.message.isprintable()
    return caught.value.message


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "SDP is empty"),
        ("\r\n \n", "SDP is empty"),
        ('{"type":"offer","sdp":"v=0"}', 'SDP line 1: expected <letter>=<value>, got {"type":"offer","sdp":"v=0"}'),
        ("o=- 1 2 IN IP4 0.0.0.0\n", "SDP line 1: expected v=0, the start of an SDP offer, got o=- 1 2 IN IP4 0.0.0.0"),
        (
            "v=0o=- 1 2 IN IP4 0.0.0.0s=-t=0 0",
            (
                "SDP line 1: expected line ends, but they are missing: curl keeps them with --data-binary only, "
                "got v=0o=- 1 2 IN IP4 0.0.0.0s=-t=0 0"
            ),
        ),
        ("v=1\n", "SDP line 1: expected v=0, the start of an SDP offer, got v=1"),
        ("v=0\nhello\n", "SDP line 2: expected <letter>=<value>, got hello"),
        ("v=0\ns=a\x07b\n", "SDP line 2: expected no control character U+0007, got s=a?b"),
        ("v=0\rs=-\r", "SDP line 1: expected no control character U+000D, got v=0?s=-"),
        ("v=0\ns=\ud800\n", "SDP line 2: expected valid Unicode"),
        (b"v=0\ns=-\nt=\xff\n", "SDP line 3: expected UTF-8"),
        ("v=0\n" + "a=x\n" * (MAX_BYTES // 4), f"SDP has {MAX_BYTES + 4} bytes, the limit is {MAX_BYTES}"),
        ("v=0\ns=" + "é" * (MAX_BYTES // 2), f"SDP has {MAX_BYTES + 6} bytes, the limit is {MAX_BYTES}"),
        ("v=0\n" * (MAX_LINES + 1), f"SDP has more than {MAX_LINES} lines"),
        (
            "v=0\n" + "m=audio 9 RTP/AVP 0\n" * (MAX_SECTIONS + 1),
            f"SDP line {MAX_SECTIONS + 2}: expected at most {MAX_SECTIONS} media sections, got m=audio 9 RTP/AVP 0",
        ),
        ("v=0\nm=audio 9\n", "SDP line 2: expected m=<media> <port> <profile> <formats>, got m=audio 9"),
        ("v=0\nm=audio 65536 A/B 0\n", "SDP line 2: expected a port of 0 to 65535, got m=audio 65536 A/B 0"),
        ("v=0\nm=audio ٩ A/B 0\n", "SDP line 2: expected m=<media> <port> <profile> <formats>, got m=audio ٩ A/B 0"),
        (
            "v=0\na=" + "x" * 100 + "\nm=audio 9\n",
            "SDP line 3: expected m=<media> <port> <profile> <formats>, got m=audio 9",
        ),
        ("v=0\n" + "x" * 100, "SDP line 2: expected <letter>=<value>, got " + "x" * 60 + "…"),
    ],
)
def test_text_that_is_not_sdp_is_refused_with_its_line(text: str | bytes, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("t=0 0", "t=0 0\r\na=ice-lite", "line 5: expected a full ICE agent, since this server is ice-lite itself"),
        ("a=mid:1", "a=mid:0", "line 15: expected a mid that no other section has, got a=mid:0"),
        ("a=mid:1", "a=mid:", "line 15: expected a mid of 1 to 64 token characters, got a=mid:"),
        ("BUNDLE 0 1", "BUNDLE 0 (", "line 5: expected mids of 1 to 64 token characters, got a=group:BUNDLE 0 ("),
        ("a=mid:1", "a=mid:a b", "line 15: expected a mid of 1 to 64 token characters, got a=mid:a b"),
        ("a=mid:1", "a=mid:" + "m" * 65, "line 15: expected a mid of 1 to 64 token characters"),
        (UFRAG, "a=x", "line 6: expected a=ice-ufrag in this section, got m=audio 9"),
        (PWD, "a=x", "line 6: expected a=ice-ufrag and a=ice-pwd in this section, got m=audio 9"),
        (UFRAG, "a=ice-ufrag:abc", "line 8: expected a ufrag of 4 to 256 characters A-Z a-z 0-9 + /"),
        (UFRAG, "a=ice-ufrag:" + "u" * 257, "line 8: expected a ufrag of 4 to 256 characters"),
        (UFRAG, "a=ice-ufrag:ab:d", "line 8: expected a ufrag of 4 to 256 characters"),
        (UFRAG, "a=ice-ufrag:äbcd", "line 8: expected a ufrag of 4 to 256 characters"),
        (PWD, "a=ice-pwd:" + "p" * 21, "line 9: expected a password of 22 to 256 characters"),
        (PWD, "a=ice-pwd:" + "p" * 257, "line 9: expected a password of 22 to 256 characters"),
        (PWD, "a=ice-pwd:" + "-" * 22, "line 9: expected a password of 22 to 256 characters"),
        (PRINT, "a=x", "line 6: expected a=fingerprint in this section, got m=audio 9"),
        (PRINT, "a=fingerprint:sha-256", "line 10: expected a=fingerprint:<hash> <hex bytes with colons>"),
        (PRINT, PRINT[:-3], "line 10: expected 32 bytes for sha-256"),
        (PRINT, PRINT + ":CD", "line 10: expected 32 bytes for sha-256"),
        (PRINT, "a=fingerprint:sha-256 " + FINGERPRINT.replace("CD", "XY"), "line 10: expected a=fingerprint:<hash>"),
        (PRINT, "a=fingerprint:sha-1 " + "AB:" * 19 + "AB", "line 10: expected a fingerprint with sha-256"),
        ("a=setup:actpass", "a=setup:holdconn", "line 11: expected setup actpass, active or passive"),
        ("a=rtpmap:111 opus/48000/2", "a=rtpmap:111 red/48000/2", "line 6: expected Opus (a=rtpmap:<n> opus/48000/2)"),
        ("opus/48000/2", "opus/44100/2", "line 6: expected Opus (a=rtpmap:<n> opus/48000/2)"),
        ("opus/48000/2", "opus/48000/6", "line 6: expected Opus (a=rtpmap:<n> opus/48000/2)"),
        ("a=rtpmap:111", "a=rtpmap:112", "line 6: expected Opus (a=rtpmap:<n> opus/48000/2)"),
        ("SAVPF 111", "SAVPF 9", "line 6: expected Opus (a=rtpmap:<n> opus/48000/2)"),
        ("m=audio 9", "m=audio 0", "line 6: expected an audio section that is on (port not 0), got m=audio 0"),
        ("UDP/TLS/RTP/SAVPF", "RTP/AVP", "line 6: expected an SRTP profile"),
        ("m=audio", "m=video", "has no m=audio section: add a microphone track"),
        ("a=mid:1", "a=mid:1\r\na=sctp-port:0", "line 16: expected an SCTP port of 1 to 65535, got a=sctp-port:0"),
        ("a=mid:1", "a=mid:1\r\na=sctp-port:99999", "line 16: expected an SCTP port of 1 to 65535"),
        ("UDP/DTLS/SCTP webrtc-datachannel", "DTLS/SCTP 0", "line 14: expected an SCTP port of 1 to 65535"),
        ("a=mid:1", "a=mid:1\r\na=max-message-size:big", "line 16: expected a message size in bytes"),
    ],
)  # fmt: skip
def test_an_offer_with_one_fault_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert refusal(changed(old, new)).startswith(f"SDP {message}")


def test_an_offer_with_only_a_data_channel_is_refused() -> None:
    assert "no m=audio section" in refusal(offer(data()))


def test_the_reason_for_the_first_of_several_audio_sections_is_given() -> None:
    off = audio(media="m=audio 0 UDP/TLS/RTP/SAVPF 111")
    g722 = audio(mid="1", media="m=audio 9 UDP/TLS/RTP/SAVPF 9")
    assert refusal(offer(off, g722)).startswith("SDP line 6: expected an audio section that is on")


def test_passwords_and_keys_are_not_quoted() -> None:
    assert refusal(changed(PWD, "a=ice-pwd:sesame")).endswith("got a=ice-pwd:(hidden)")
    assert refusal("v=0\na=crypto:1 AES inline:sesame\x01").endswith("got a=crypto:(hidden)")


def test_the_good_offer_these_are_made_from_is_accepted() -> None:
    parse_offer(GOOD)
