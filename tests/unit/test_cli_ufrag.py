import pytest

from usher_cli.key_files import make_key_files
from usher_cli.ufrag_command import explain
from usher_core.errors import LocalError, RemoteError
from usher_core.ids import Route
from usher_core.keys import IceKeyRing, KeyFile, KeyState
from usher_core.ufrag import UfragCipher

NOW = 1_790_000_000.0
KEYS = make_key_files([7], NOW)["relay.json"]
UFRAG, _ = IceKeyRing(KEYS.ice).make(Route(7, 41, 3), b"abcde", NOW)


def reason(ufrag: str, keys: KeyFile = KEYS) -> tuple[str, str]:
    with pytest.raises(RemoteError) as caught:
        explain(ufrag, keys)
    return caught.value.reason, caught.value.message


def with_ice(**changes: object) -> KeyFile:
    return KeyFile(version=1, ice=(KEYS.ice[0].model_copy(update=changes),))


def test_a_ufrag_of_ours_tells_its_route_and_key() -> None:
    text = "\n".join(explain(UFRAG, KEYS))
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["7", "41", "3"]
    assert f"key letter  {KEYS.ice[0].letter} (active)" in text


def test_an_accepted_key_still_opens() -> None:
    assert "(accepted)" in explain(UFRAG, with_ice(state=KeyState.ACCEPTED))[0]


def test_why_it_does_not_open() -> None:
    assert reason(UFRAG[:-1])[0] == "ufrag_length"
    assert reason("1" + UFRAG[1:])[0] == "ufrag_charset"
    assert reason(UFRAG[:-1] + ("B" if UFRAG[-1] == "A" else chr(ord(UFRAG[-1]) + 1)))[0] == "ufrag_spelling"
    other = "B" if KEYS.ice[0].letter == "A" else "A"
    assert reason(other + UFRAG[1:])[0] == "ufrag_letter"
    typo = UFRAG[:5] + ("x" if UFRAG[5] != "x" else "y") + UFRAG[6:]
    assert reason(typo) == ("ufrag_check", reason(typo)[1])


def test_a_file_without_such_keys_says_which_file_to_take() -> None:
    with pytest.raises(LocalError, match=r"as that of signaling has none; take relay\.json or transceiver\.json"):
        explain(UFRAG, make_key_files([7], NOW)["signaling.json"])


def test_a_retired_key_is_named_as_the_reason() -> None:
    assert "retired" in reason(UFRAG, with_ice(state=KeyState.RETIRED))[1]


def test_a_cluster_that_the_key_does_not_serve_is_named() -> None:
    assert "names cluster 7" in reason(UFRAG, with_ice(clusters=(8,)))[1]


def test_no_key_material_is_told() -> None:
    password_key, ufrag_key = KEYS.ice[0].password_key, KEYS.ice[0].ufrag_key
    assert password_key is not None
    text = "\n".join(explain(UFRAG, KEYS))
    assert password_key.hex() not in text
    assert ufrag_key.hex() not in text
    assert UfragCipher(KEYS.ice[0].letter, ufrag_key).letter in text
