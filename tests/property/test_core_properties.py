"""Round trips of every codec in core, and: parse or raise RemoteError, nothing else."""

from __future__ import annotations

import contextlib
import struct

from hypothesis import given
from hypothesis import strategies as st

from usher_core import hop, stun
from usher_core.datagram import classify
from usher_core.errors import RemoteError
from usher_core.ids import ClientPath, Route
from usher_core.keys import IceKey, IceKeyRing, SealKey
from usher_core.rtp import peek_ssrc
from usher_core.sealed import Sealer

KEY = IceKey(letter="k", clusters=(1, 77), ufrag_key=b"u" * 16, password_key=b"p" * 32)
RING = IceKeyRing([KEY])
SEALER = Sealer([SealKey(id=1, key=b"s" * 32)])
ROUTES = st.builds(Route, st.sampled_from([1, 77]), st.integers(0, 2**32 - 1), st.integers(0, 255))
PATHS = st.builds(ClientPath, st.binary(min_size=16, max_size=16), st.integers(0, 65535), st.integers(0, 65535))
RECORDS = st.lists(
    st.builds(hop.Record, PATHS, st.binary(max_size=200), st.integers(0, 255), st.integers(0, 65535)),
    min_size=1,
    max_size=5,
).map(tuple)
OUTERS = st.builds(
    hop.Outer,
    st.sampled_from(hop.HopType),
    st.booleans(),
    st.integers(1, 65535),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.integers(0, 65535),
    st.integers(0, 255),
)
HOP_KEY = b"h" * 16


@given(ROUTES, st.binary(min_size=5, max_size=5))
def test_ufrag_opens_to_its_route_and_password(route: Route, random: bytes) -> None:
    ufrag, password = RING.make(route, random, now=0)
    assert len(ufrag) == 23
    assert ufrag[0].isalpha()
    assert len(password) == 32
    opened = RING.open(ufrag.encode())
    assert opened.route == route
    assert opened.password == password.encode()


@given(ROUTES, st.binary(min_size=5, max_size=5), st.integers(0, 22), st.integers(0, 255))
def test_ufrag_with_any_other_character_is_refused(route: Route, random: bytes, at: int, to: int) -> None:
    ufrag = bytearray(RING.make(route, random, now=0)[0].encode())
    if ufrag[at] == to:
        return
    ufrag[at] = to
    # A changed block passes the 32-bit check once in 4 billion; seen here it would be worth a look.
    try:
        RING.open(bytes(ufrag))
    except RemoteError:
        return
    raise AssertionError("a mistyped ufrag opened")


@given(st.binary(max_size=64))
def test_any_bytes_as_ufrag_open_or_raise_remote_error(data: bytes) -> None:
    with contextlib.suppress(RemoteError):
        RING.open(data)


@given(OUTERS, RECORDS)
def test_hop_datagram_round_trip(outer: hop.Outer, records: tuple[hop.Record, ...]) -> None:
    parsed = hop.parse(hop.encode(outer, records, HOP_KEY))
    assert (parsed.outer, parsed.records) == (outer, records)
    assert hop.verify(parsed, HOP_KEY)


@given(OUTERS, RECORDS, st.data())
def test_hop_datagram_with_a_flipped_bit_in_its_headers_is_not_authentic(
    outer: hop.Outer, records: tuple[hop.Record, ...], data: st.DataObject
) -> None:
    datagram = bytearray(hop.encode(outer, records, HOP_KEY))
    at = data.draw(st.integers(0, min(len(datagram), hop.OVERHEAD + len(records[0].payload[:16])) - 1))
    datagram[at] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(RemoteError):
        assert not hop.verify(hop.parse(bytes(datagram)), HOP_KEY)


@given(st.binary(max_size=400))
def test_any_bytes_parse_or_raise_remote_error(data: bytes) -> None:
    for parser in (hop.parse, stun.parse):
        with contextlib.suppress(RemoteError):
            parser(data)
    classify(data)
    peek_ssrc(data)


ATTRIBUTES = st.lists(
    st.tuples(
        st.sampled_from([stun.Attribute.USERNAME, stun.Attribute.SOFTWARE, 0xC057, 0x7F00]), st.binary(max_size=40)
    ),
    max_size=6,
    unique_by=lambda pair: pair[0],
)


@given(st.binary(min_size=12, max_size=12), ATTRIBUTES, st.binary(min_size=1, max_size=32), st.booleans())
def test_stun_round_trip_in_any_order_of_attributes(
    transaction_id: bytes, attributes: list[tuple[int, bytes]], password: bytes, fingerprint: bool
) -> None:
    built = stun.build(stun.StunClass.REQUEST, transaction_id, attributes, password, fingerprint=fingerprint)
    message = stun.parse(built)
    assert message.is_binding_request
    assert message.transaction_id == transaction_id
    assert message.verify_integrity(password)
    assert not message.verify_integrity(password + b"x")
    for kind, value in attributes:
        assert message.attributes[kind] == value
    assert message.unknown_required == tuple(kind for kind, _ in attributes if kind == 0x7F00)


@given(st.integers(0, 1232 - 20), st.binary(min_size=12, max_size=12))
def test_stun_request_up_to_1232_bytes_with_unknown_optional_attributes(room: int, transaction_id: bytes) -> None:
    filler = max(0, room - 24 - 8 - 4) // 4 * 4
    built = stun.build(stun.StunClass.REQUEST, transaction_id, [(0xC001, bytes(filler))], b"password")
    assert len(built) <= 1232 or filler == 0
    message = stun.parse(built)
    assert message.verify_integrity(b"password")
    assert message.unknown_required == ()


@given(st.binary(min_size=1233, max_size=1500))
def test_stun_beyond_1232_bytes_is_refused(data: bytes) -> None:
    grown = data[: len(data) // 4 * 4]
    header = struct.pack("!HHI12s", 1, len(grown), stun.MAGIC_COOKIE, bytes(12))
    try:
        stun.parse(header + grown)
    except RemoteError as error:
        assert error.reason == "stun_length"
    else:
        raise AssertionError("an oversized message was parsed")


@given(st.binary(min_size=16, max_size=16), st.integers(0, 65535), st.binary(min_size=12, max_size=12))
def test_xor_address_is_its_own_inverse(address: bytes, port: int, transaction_id: bytes) -> None:
    assert stun.unxor_address(stun.xor_address(address, port, transaction_id), transaction_id) == (address, port)


@given(st.binary(max_size=100), st.binary(min_size=12, max_size=12), st.data())
def test_sealed_text_with_any_change_is_refused(content: bytes, nonce: bytes, data: st.DataObject) -> None:
    text = SEALER.seal("rtc_", content, nonce, now=0)
    assert SEALER.open("rtc_", text) == content
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters(exclude_characters=text[at])) + text[at + 1 :]
    try:
        SEALER.open("rtc_", changed)
    except RemoteError:
        return
    raise AssertionError("a changed text opened")


@given(st.text(max_size=200))
def test_any_text_opens_or_raises_remote_error(text: str) -> None:
    for prefix in ("rtc_", ""):
        with contextlib.suppress(RemoteError):
            SEALER.open(prefix, text)
