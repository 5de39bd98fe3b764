"""Whatever is done to an offer or a fragment, it is refused by RemoteError or read, and then answered in kind."""

import random
import re
from collections.abc import Callable

import pytest
from aiortc import sdp as aiortc_sdp
from hypothesis import example, given
from hypothesis import strategies as st

from tests.sdp_samples import LOCAL, STORED, stored
from usher_core.errors import RemoteError
from usher_core.sdpfrag import Fragment, FragmentSection, build_fragment, parse_fragment
from usher_core.sdplines import MAX_BYTES
from usher_transceiver.sdp import RejectedSection, build_answer, parse_offer

MEDIA = re.compile(r"^m=([^ ]+) ([0-9]+)(?:/[0-9]+)? ([^ ]+) (.*)$")
LINES = sorted({line for name in STORED for line in stored(name).splitlines()})
VALUES = [
    "",
    " ",
    ":",
    "0",
    "-1",
    "99999999999999999999",
    "9" * 5000,
    "é",
    "\x00",
    "\t",
    "\u2028",
    "/",
    "a=",
    "m=",
    "\r",
]


def mutated(text: str, pick: random.Random) -> str:
    lines = text.split("\r\n")
    at = pick.randrange(len(lines))
    mutations: list[Callable[[], None]] = [
        lambda: lines.__delitem__(at),
        lambda: lines.insert(at, pick.choice(lines)),
        lambda: lines.insert(at, pick.choice(LINES)),
        lambda: lines.__setitem__(at, pick.choice(LINES)),
        lambda: lines.__setitem__(at, lines[at][: pick.randrange(len(lines[at]) + 1)]),
        lambda: lines.__setitem__(at, lines[at] + pick.choice(VALUES)),
        lambda: lines.__setitem__(at, spliced(lines[at], pick)),
        lambda: lines.__setitem__(at, re.sub(r"[0-9]+", lambda _: pick.choice(VALUES), lines[at], count=1)),
        lines.reverse,
        lambda: pick.shuffle(lines),
    ]
    pick.choices(mutations, weights=[4, 4, 4, 4, 4, 4, 4, 4, 1, 1])[0]()
    return "\r\n".join(lines)


def spliced(line: str, pick: random.Random) -> str:
    at = pick.randrange(len(line) + 1)
    return line[:at] + pick.choice(VALUES) + line[at + pick.randrange(3) :]


def aiortc_can_read(line: str) -> bool:
    """aiortc wants capitals in a profile, and payload types that are no RTCP types, also in rejected sections."""
    media, _, profile, formats = MEDIA.fullmatch(line).groups()  # type: ignore[union-attr]
    types = formats.split() if media in ("audio", "video") else []
    return re.fullmatch(r"[A-Z/]+", profile) is not None and all(
        form.isdecimal() and len(form) < 4 and int(form) < 256 and not 72 <= int(form) <= 76 for form in types
    )


def read_or_refused(text: str | bytes) -> None:
    try:
        offer = parse_offer(text)
    except RemoteError as error:
        assert error.reason == "bad_sdp"
        assert error.message.isprintable()
        assert len(error.message) < 250
        return
    given_text = text.decode() if isinstance(text, bytes) else text
    asked = [line.rstrip(" \t\r") for line in given_text.split("\n") if line.startswith("m=")]
    answer = build_answer(offer, LOCAL)
    assert answer.isascii()
    answered = [line for line in answer.split("\r\n") if line.startswith("m=")]
    assert len(answered) == len(asked) == len(offer.sections)
    for question, reply, section in zip(asked, answered, offer.sections, strict=True):
        wanted, got = MEDIA.fullmatch(question), MEDIA.fullmatch(reply)
        assert wanted is not None
        assert got is not None
        assert (got[1], got[3]) == (wanted[1], wanted[3])
        assert (got[2] == "0") == isinstance(section, RejectedSection)
    if all(map(aiortc_can_read, answered)):
        parsed = aiortc_sdp.SessionDescription.parse(answer)
        assert [media.kind for media in parsed.media] == [MEDIA.fullmatch(line)[1] for line in asked]  # type: ignore[index]
        assert [media.rtp.muxId or None for media in parsed.media] == [section.mid for section in offer.sections]


@given(st.sampled_from(STORED), st.integers(1, 8), st.randoms(use_true_random=False))
def test_a_changed_offer_is_answered_section_by_section_or_refused(
    name: str, changes: int, pick: random.Random
) -> None:
    text = stored(name)
    for _ in range(changes):
        text = mutated(text, pick)
    read_or_refused(text)


@given(st.text() | st.binary() | st.lists(st.sampled_from(LINES)).map("\n".join))
@example("v=0\nm=audio 9 A/B " + "0 " * 5000)
@example("v=0\na=group:\na=group: \na=group:BUNDLE\nm=audio 9 UDP/TLS/RTP/SAVPF 111\na=rtpmap:111 opus/48000/2")
@example("v=0\n" + "m=" + "9" * (MAX_BYTES - 10))
def test_any_text_and_any_bytes_are_answered_or_refused(text: str | bytes) -> None:
    read_or_refused(text)


@pytest.mark.parametrize("name", STORED)
def test_every_truncated_offer_is_answered_or_refused(name: str) -> None:
    text = stored(name)
    for length in range(0, len(text), 37):
        read_or_refused(text[:length])


MIDS = st.from_regex(r"[0-9A-Za-z._-]{1,16}", fullmatch=True)
WORDS = st.from_regex(r"[0-9A-Za-z:.+/-]{1,20}", fullmatch=True)
CANDIDATES = st.lists(WORDS, min_size=1, max_size=8).map(" ".join)
SECTIONS = st.builds(FragmentSection, MIDS, st.lists(CANDIDATES, max_size=3).map(tuple), st.booleans())
CREDENTIALS = st.none() | st.tuples(
    st.from_regex(r"[A-Za-z0-9+/]{4,32}", fullmatch=True), st.from_regex(r"[A-Za-z0-9+/]{22,40}", fullmatch=True)
)


@given(
    CREDENTIALS,
    st.lists(SECTIONS, max_size=4).map(tuple),
    st.lists(MIDS, max_size=4).map(tuple),
    st.booleans(),
    st.booleans(),
    st.lists(WORDS, max_size=3).map(tuple),
)
def test_a_fragment_is_read_back_as_it_was_written(
    credentials: tuple[str, str] | None,
    sections: tuple[FragmentSection, ...],
    bundle: tuple[str, ...],
    end: bool,
    lite: bool,
    options: tuple[str, ...],
) -> None:
    ufrag, pwd = credentials or (None, None)
    fragment = Fragment(ufrag, pwd, sections, bundle, end, lite, options)
    assert parse_fragment(build_fragment(fragment)) == fragment


@given(st.text() | st.binary() | st.lists(st.sampled_from(LINES)).map("\n".join))
def test_any_text_is_a_fragment_or_refused(text: str | bytes) -> None:
    try:
        fragment = parse_fragment(text)
    except RemoteError as error:
        assert error.reason == "bad_sdp"
        assert error.message.isprintable()
        return
    assert parse_fragment(build_fragment(fragment)) == fragment
