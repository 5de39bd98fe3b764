"""Key files and key rings: what may be used when, and errors that never show key material."""

from __future__ import annotations

import base64
import json

import pytest

from usher_core.errors import LONGEST_PUBLIC_NAME, LocalError, RemoteError
from usher_core.hop import HopType, Outer, Record, encode, parse
from usher_core.ids import ClientPath, Route
from usher_core.keys import HopKey, HopKeyRing, IceKey, IceKeyRing, KeyState, SealKey, newest_usable, parse_key_file
from usher_core.sealed import Sealer

SECRET = base64.b64encode(b"\xfasecret-material-of-another-length").decode()


def ice_key(letter: str = "a", fill: int = 0, **changes: object) -> IceKey:
    fields: dict[str, object] = {
        "letter": letter,
        "clusters": (1,),
        "ufrag_key": bytes([fill]) * 16,
        "password_key": bytes([fill]) * 32,
    }
    return IceKey.model_validate(fields | changes)


def test_newest_active_key_makes_and_every_accepted_key_opens() -> None:
    old = ice_key("a", 1, not_before=100)
    new = ice_key("b", 2, not_before=200)
    ring = IceKeyRing([old, new])
    before, _ = ring.make(Route(1, 5), bytes(5), now=150)
    after, _ = ring.make(Route(1, 5), bytes(5), now=200)
    assert (before[0], after[0]) == ("a", "b")
    assert ring.open(before.encode()).route == ring.open(after.encode()).route == Route(1, 5)


def test_accepted_key_opens_but_does_not_make() -> None:
    maker = IceKeyRing([ice_key()])
    ring = IceKeyRing([ice_key(state=KeyState.ACCEPTED)])
    ufrag, password = maker.make(Route(1, 5), bytes(5), now=0)
    opened = ring.open(ufrag.encode())
    assert opened.password == password.encode()
    with pytest.raises(LocalError, match="no active ice key"):
        ring.make(Route(1, 5), bytes(5), now=0)


def test_where_no_key_is_active_yet_the_first_is_used() -> None:
    accepted = ice_key("a", state=KeyState.ACCEPTED)
    coming, later = ice_key("b", not_before=100), ice_key("c", not_before=200)
    chosen = [newest_usable([accepted, coming, later], now).letter for now in (99, 100, 200)]
    assert chosen == ["a", "b", "c"]


def test_retired_key_opens_nothing() -> None:
    ufrag, _ = IceKeyRing([ice_key()]).make(Route(1, 5), bytes(5), now=0)
    with pytest.raises(RemoteError) as caught:
        IceKeyRing([ice_key(state=KeyState.RETIRED)]).open(ufrag.encode())
    assert caught.value.reason == "ufrag_letter"


def test_keys_that_share_a_letter_are_told_apart_by_the_check_value() -> None:
    keys = [ice_key("a", fill) for fill in range(8)]
    ring = IceKeyRing(keys)
    for key in keys:
        ufrag, password = IceKeyRing([key]).make(Route(1, 9), bytes(5), now=0)
        opened = ring.open(ufrag.encode())
        assert opened.route == Route(1, 9)
        assert opened.password == password.encode()
    with pytest.raises(LocalError, match="more than 8"):
        IceKeyRing([*keys, ice_key("a", 9)])


def test_key_does_not_open_ufrags_of_a_cluster_it_is_not_for() -> None:
    ufrag, _ = IceKeyRing([ice_key(clusters=(7,))]).make(Route(7, 1), bytes(5), now=0)
    with pytest.raises(RemoteError) as caught:
        IceKeyRing([ice_key(clusters=(1,))]).open(ufrag.encode())
    assert caught.value.reason == "ufrag_check"


def test_relay_without_a_password_key_opens_without_a_password() -> None:
    ufrag, _ = IceKeyRing([ice_key()]).make(Route(1, 5), bytes(5), now=0)
    assert IceKeyRing([ice_key(password_key=None)]).open(ufrag.encode()).password is None


def test_hop_ring_verifies_by_id_and_scope() -> None:
    local, peer = HopKey(id=1, key=bytes(16)), HopKey(id=1, scope=9, key=b"\x01" * 16)
    ring = HopKeyRing([local, peer])
    outer = Outer(HopType.DATA, to_client=False, cluster=1, pod=2, worker=0, key_id=1, time_ms=0)
    record = (Record(ClientPath(bytes(16), 1, 1), b"payload"),)
    assert ring.active(now=0) == (1, bytes(16))
    assert ring.verify(parse(encode(outer, record, bytes(16))))
    assert not ring.verify(parse(encode(outer, record, b"\x01" * 16)))
    assert HopKeyRing([local, peer], scope=9).active(now=0) == (1, b"\x01" * 16)


def test_two_live_keys_with_one_id_are_refused() -> None:
    with pytest.raises(LocalError, match="id 1"):
        HopKeyRing([HopKey(id=1, key=bytes(16)), HopKey(id=1, key=bytes(16))])
    with pytest.raises(LocalError, match="id 2"):
        Sealer([SealKey(id=2, key=bytes(32)), SealKey(id=2, key=bytes(32))])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2}',
        '{"version": 1, "ice": [{"letter": "a", "clusters": [1], "ufrag_key": "%s"}]}' % SECRET,
        '{"version": 1, "ice": [{"letter": "4", "clusters": [1], "ufrag_key": "%s"}]}' % SECRET,
        '{"version": 1, "hop": [{"id": 256, "key": "%s"}]}' % SECRET,
        '{"version": 1, "hop": [{"id": 1, "key": "%s!"}]}' % SECRET,
        '{"version": 1, "seal": [{"id": 1, "key": "%s", "surprise": "%s"}]}' % (SECRET, SECRET),
        '{"version": 1, "%s": "hop"}' % SECRET,
        '{"version": 1, "hop": [{"id": 1, "%s": "key"}]}' % SECRET,
        '{"version": 1, "hop": [{"id": 1, "key%s": "%s"}]}' % (SECRET, SECRET),
        '{"version": 1, "hop": {"%s": {"id": 1}}}' % SECRET,
        "[" * 100_000,
    ],
)
def test_wrong_key_file_is_a_local_error_without_key_material(text: str) -> None:
    with pytest.raises(LocalError) as caught:
        parse_key_file(text)
    assert "secret-material" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET[:LONGEST_PUBLIC_NAME] not in str(caught.value)


def test_misspelt_field_of_a_key_file_is_named_and_a_key_in_its_place_is_not() -> None:
    with pytest.raises(LocalError, match=r"hop\.0\.kee: unknown field; hop\.0\.key: Field required"):
        parse_key_file('{"version": 1, "hop": [{"id": 1, "kee": ""}]}')
    with pytest.raises(LocalError, match=rf"hop\.0\.\({len(SECRET)} characters\): unknown field"):
        parse_key_file('{"version": 1, "hop": [{"id": 1, "%s": ""}]}' % SECRET)


def test_repr_of_keys_hides_material() -> None:
    text = json.dumps(
        {
            "version": 1,
            "ice": [{"letter": "a", "clusters": [1], "ufrag_key": SECRET, "password_key": SECRET}],
        }
    )
    with pytest.raises(LocalError):
        parse_key_file(text)
    shown = repr(ice_key("a", 0xFA)) + repr(HopKey(id=1, key=b"\xfa" * 16)) + repr(SealKey(id=1, key=b"\xfa" * 32))
    assert "xfa" not in shown


def test_sealed_text_opens_under_its_prefix_only() -> None:
    sealer = Sealer([SealKey(id=1, key=bytes(32))])
    text = sealer.seal("rtc_", b"x", bytes(12), now=0)
    with pytest.raises(RemoteError):
        sealer.open("ek_", "ek_" + text.removeprefix("rtc_"))
    assert sealer.open("rtc_", text) == b"x"


def test_keys_of_others_open_and_never_seal_even_when_their_ids_are_ours() -> None:
    ours, theirs, third = (SealKey(id=number, key=bytes([fill]) * 32) for number, fill in ((1, 1), (1, 2), (2, 3)))
    sealed = Sealer([theirs]).seal("rtc_", b"x", bytes(12), 0)
    sealer = Sealer([ours], [theirs, third])
    assert sealer.open("rtc_", sealed) == b"x"
    assert sealer.seal("rtc_", b"x", bytes(12), 0) == Sealer([ours]).seal("rtc_", b"x", bytes(12), 0)
    assert sealer.nonce_of("rtc_", b"x", 0) == Sealer([ours]).nonce_of("rtc_", b"x", 0)
    for other in (Sealer([ours]), Sealer([ours], [third])):
        with pytest.raises(RemoteError):
            other.open("rtc_", sealed)
    with pytest.raises(LocalError):
        _ = Sealer([], [theirs]).seal("rtc_", b"x", bytes(12), 0)
