"""docs/wire.md section 9: what Redis holds of a client, and what a relay believes of it."""

from __future__ import annotations

import base64
import fnmatch
import hmac
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.relay_rig import POD_A, POD_B, client
from usher_core.errors import LocalError, RemoteError
from usher_core.keys import KeyFile
from usher_relay.hop_codec import route_bytes
from usher_relay.store.mapping import LIFE, VALUE_LENGTH, Mappings, name_of, names_of_listener, path_key_of

NOW = 1_800_000_000.0
CLIENT, OTHER = client(5000), client(5000, listener=2)
ROUTE = route_bytes(POD_A)
KEY = bytes(range(32))


def key_file(*keys: dict[str, object]) -> KeyFile:
    return KeyFile.model_validate({"version": 1, "store": keys})


def key(number: int = 1, **more: object) -> dict[str, object]:
    return {"id": number, "key": base64.b64encode(bytes((number,)) * 32).decode(), **more}


MAPPINGS = Mappings(key_file(key()))


def sealed(path_key: bytes = CLIENT, route: bytes = ROUTE, unix: float = NOW) -> bytes:
    value = MAPPINGS.seal(path_key, route, unix)
    assert value is not None
    return value


def refused(path_key: bytes, value: bytes, unix: float = NOW, mappings: Mappings = MAPPINGS) -> str:
    with pytest.raises(RemoteError) as caught:
        mappings.open(path_key, value, unix)
    return caught.value.reason


def test_the_bytes_are_those_of_the_page() -> None:
    mappings = Mappings(key_file({"id": 7, "key": base64.b64encode(KEY).decode()}))
    assert name_of(CLIENT) == b"usher:flow:0001:1388:00000000000000000000ffffc0000201"
    value = mappings.seal(CLIENT, ROUTE, NOW)
    assert value is not None
    head = bytes.fromhex("01 07 6b49d23c 0001 00000011 00")
    assert value == head + hmac.digest(KEY, b"usher mapping\0" + CLIENT + head, "sha256")[:16]


@given(st.binary(min_size=20, max_size=20), st.binary(min_size=7, max_size=7))
def test_what_one_relay_wrote_another_reads(path_key: bytes, route: bytes) -> None:
    value = sealed(path_key, route)
    assert len(value) == VALUE_LENGTH
    assert MAPPINGS.open(path_key, value, NOW) == route
    assert path_key_of(name_of(path_key)) == path_key


@given(st.integers(0, VALUE_LENGTH * 8 - 1))
def test_a_value_with_any_bit_changed_is_refused(bit: int) -> None:
    value = bytearray(sealed())
    value[bit // 8] ^= 1 << bit % 8
    assert refused(CLIENT, bytes(value)) in {"mapping_version", "mapping_key", "mapping_mac"}


@given(st.integers(0, 20 * 8 - 1))
def test_the_value_of_one_client_is_refused_for_any_other(bit: int) -> None:
    other = bytearray(CLIENT)
    other[bit // 8] ^= 1 << bit % 8
    assert refused(bytes(other), sealed()) == "mapping_mac"


@given(st.binary(max_size=64))
def test_garbage_is_refused(value: bytes) -> None:
    assert refused(CLIENT, value) in {"mapping_length", "mapping_version", "mapping_key", "mapping_mac"}


@given(st.binary(max_size=80))
def test_a_name_of_another_form_is_nobody_s(name: bytes) -> None:
    assert path_key_of(name) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda name: name.upper(),
        lambda name: name[:-1],
        lambda name: name + b"0",
        lambda name: name.replace(b"f", b"F"),
        lambda name: name.replace(b"usher:flow", b"usher:rate"),
        lambda name: name[:12] + b":" + name[12:15] + name[16:],
        lambda name: name[:-1] + b"\xff",
    ],
)
def test_a_client_has_one_name(change: Callable[[bytes], bytes]) -> None:
    assert path_key_of(change(name_of(CLIENT))) is None


def test_a_mapping_counts_for_its_time() -> None:
    value = sealed()
    assert MAPPINGS.open(CLIENT, value, NOW + LIFE - 1) == ROUTE
    assert refused(CLIENT, value, NOW + LIFE) == "mapping_expired"
    assert MAPPINGS.open(CLIENT, value, NOW - 60) == ROUTE, "the writer's clock may be ahead"
    assert refused(CLIENT, value, NOW - 61) == "mapping_far"


def test_a_rotation_of_keys_loses_no_mapping() -> None:
    old = Mappings(key_file(key(1)))
    both = Mappings(key_file(key(1), key(2, state="accepted")))
    switched = Mappings(key_file(key(1, state="accepted"), key(2, not_before=int(NOW))))
    for writer, reader in ((old, both), (both, old), (both, switched), (switched, both)):
        value = writer.seal(CLIENT, ROUTE, NOW)
        assert value is not None
        assert reader.open(CLIENT, value, NOW) == ROUTE
    value = switched.seal(CLIENT, ROUTE, NOW)
    assert value is not None
    assert value[1] == 2
    assert refused(CLIENT, value, mappings=old) == "mapping_key"
    retired = Mappings(key_file(key(1, state="retired"), key(2)))
    assert refused(CLIENT, sealed(), mappings=retired) == "mapping_key"


def test_nothing_is_written_while_no_key_is_active() -> None:
    assert Mappings(key_file(key(1, state="accepted"))).seal(CLIENT, ROUTE, NOW) is None
    assert Mappings(key_file(key(1, not_before=int(NOW) + 1))).seal(CLIENT, ROUTE, NOW) is None


def test_a_key_file_without_store_keys_says_what_to_do() -> None:
    for file in (key_file(), key_file(key(1, state="retired"))):
        with pytest.raises(LocalError, match="usher keys new"):
            Mappings(file)


def test_the_pattern_of_a_listener_finds_its_names_alone() -> None:
    for listener, found in ((1, True), (2, False), (0x10, False)):
        pattern = names_of_listener(listener).decode()
        assert fnmatch.fnmatchcase(name_of(CLIENT).decode(), pattern) is found
    assert sealed(route=route_bytes(POD_B)) != sealed()
    assert name_of(OTHER) != name_of(CLIENT)
