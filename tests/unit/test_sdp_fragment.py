"""WHIP fragments (RFC 8840 §9, RFC 9725 §4.3)."""

import pytest

from usher_core.errors import RemoteError
from usher_core.sdpfrag import Fragment, FragmentSection, build_fragment, parse_fragment

# RFC 8840 §9, the example, shortened.
TRICKLE = """a=ice-ufrag:EsAw
a=ice-pwd:bP+XJMM09aR8AiX1jdukzR6Y
m=audio 9 RTP/AVP 0
a=mid:0
a=candidate:1 1 UDP 2130706432 2001:db8::1 5000 typ host
a=candidate:2 1 UDP 1694498816 192.0.2.3 45664 typ srflx raddr 192.0.2.1 rport 5000
a=end-of-candidates
m=audio 9 RTP/AVP 0
a=mid:1
a=candidate:1 1 UDP 2130706432 host.local 5000 typ host
"""
# RFC 9725 §4.3.3, the shape of a server's answer to a restart.
RESTARTED = """a=ice-lite
a=ice-options:trickle ice2
a=group:BUNDLE 0 1
m=audio 9 UDP/TLS/RTP/SAVPF 111
a=mid:0
a=ice-ufrag:289b31b754eaa438
a=ice-pwd:0b66f472495ef0ccac7bda653ab6be49ea13114472a5d10a
a=candidate:1 1 udp 2130706431 198.51.100.1 39132 typ host
a=end-of-candidates
"""


def test_a_trickle_fragment_is_read() -> None:
    assert parse_fragment(TRICKLE) == Fragment(
        ufrag="EsAw",
        pwd="bP+XJMM09aR8AiX1jdukzR6Y",
        sections=(
            FragmentSection(
                "0",
                (
                    "1 1 UDP 2130706432 2001:db8::1 5000 typ host",
                    "2 1 UDP 1694498816 192.0.2.3 45664 typ srflx raddr 192.0.2.1 rport 5000",
                ),
                end_of_candidates=True,
                media="audio 9 RTP/AVP 0",
            ),
            FragmentSection("1", ("1 1 UDP 2130706432 host.local 5000 typ host",), media="audio 9 RTP/AVP 0"),
        ),
    )


def test_an_answer_to_a_restart_is_written_as_the_rfc_shows_it() -> None:
    fragment = Fragment(
        ufrag="289b31b754eaa438",
        pwd="0b66f472495ef0ccac7bda653ab6be49ea13114472a5d10a",
        sections=(
            FragmentSection(
                "0",
                ("1 1 udp 2130706431 198.51.100.1 39132 typ host",),
                end_of_candidates=True,
                media="audio 9 UDP/TLS/RTP/SAVPF 111",
            ),
        ),
        bundle=("0", "1"),
        ice_lite=True,
        ice_options=("trickle", "ice2"),
    )
    assert build_fragment(fragment) == RESTARTED.replace("\n", "\r\n")
    assert parse_fragment(RESTARTED) == fragment


@pytest.mark.parametrize("text", ["", "\r\n", b""])
def test_an_empty_fragment_says_nothing(text: str | bytes) -> None:
    assert parse_fragment(text) == Fragment()
    assert build_fragment(Fragment()) == ""


def test_end_of_candidates_may_stand_at_session_level() -> None:
    fragment = parse_fragment("a=ice-ufrag:EsAw\na=ice-pwd:bP+XJMM09aR8AiX1jdukzR6Y\na=end-of-candidates\n")
    assert (fragment.ufrag, fragment.end_of_candidates, fragment.sections) == ("EsAw", True, ())


def test_a_section_without_a_mid_is_skipped_but_its_credentials_count() -> None:
    fragment = parse_fragment("m=audio 9 RTP/AVP 0\na=ice-ufrag:EsAw\na=ice-pwd:bP+XJMM09aR8AiX1jdukzR6Y\n")
    assert (fragment.ufrag, fragment.sections) == ("EsAw", ())


def test_credentials_of_one_level_are_not_mixed_with_those_of_another() -> None:
    first, second = "a=ice-ufrag:aaaa\na=ice-pwd:" + "a" * 22, "a=ice-ufrag:bbbb\na=ice-pwd:" + "b" * 22
    fragment = parse_fragment(f"{first}\nm=audio 9 RTP/AVP 0\na=mid:0\n{second}\n")
    assert (fragment.ufrag, fragment.pwd) == ("aaaa", "a" * 22)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=ice-ufrag:EsAw\n", "SDP line 1: expected a=ice-ufrag and a=ice-pwd together, got a=ice-ufrag:EsAw"),
        ("a=ice-pwd:bP+XJMM09aR8AiX1jdukzR6Y\n", "SDP line 1: expected a=ice-ufrag and a=ice-pwd together"),
        ("a=ice-ufrag:no\na=ice-pwd:bP+XJMM09aR8AiX1jdukzR6Y", "SDP line 1: expected a ufrag of 4 to 256 characters"),
        ("a=ice-ufrag:EsAw\na=ice-pwd:sesame", "SDP line 2: expected a password of 22 to 256 characters"),
        ("m=audio 9 RTP/AVP 0\na=mid:a b\n", "SDP line 2: expected a mid of 1 to 64 token characters"),
        ("candidate:1 1 UDP 1 192.0.2.1 1 typ host\n", "SDP line 1: expected <letter>=<value>"),
        ('{"candidate":""}', "SDP line 1: expected <letter>=<value>"),
        (b"a=x\na=\xff", "SDP line 2: expected UTF-8"),
    ],
)
def test_a_malformed_fragment_is_refused_with_its_line(text: str | bytes, message: str) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_fragment(text)
    assert caught.value.message.startswith(message)
    assert "sesame" not in caught.value.message


def test_the_password_stays_out_of_what_is_printed() -> None:
    assert "bP+XJ" not in repr(parse_fragment(TRICKLE))
