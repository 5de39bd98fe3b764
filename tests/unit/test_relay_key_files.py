"""A relay's own key file and those of its trunks are one set of keys; a bad one of a trunk costs nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from usher_cli.key_files import make_key_files
from usher_core.errors import LocalError
from usher_core.keys import HopKey, KeyFile, held_keys
from usher_relay.main import _Keys

NOW = 1_790_000_000.0


def trunk(number: int, scope: int = 9) -> str:
    return KeyFile(version=1, hop=(HopKey(id=number, scope=scope, key=bytes(16)),)).model_dump_json()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "relay.json"
    path.write_text(make_key_files([1], NOW)["relay.json"].model_dump_json())
    return path


def hops(keys: _Keys) -> list[tuple[str, tuple[int, ...]]]:
    return [(key.id, key.clusters) for key in held_keys(keys.value) if key.list == "hop"]


def test_keys_of_trunks_stand_beside_those_of_the_relay_and_tell_the_other_end(own: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(trunk(7))
    (tmp_path / "b").write_text(trunk(7, scope=8))
    keys = _Keys(own, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert hops(keys) == [("1", ()), ("7", (9,)), ("7", (8,))]
    assert not keys.status_of_trunks().fault


@pytest.mark.parametrize("text", [None, "", '{"version": 2}', '{"version": 1, "hop": [{"id": 7}]}'])
def test_a_file_of_a_trunk_that_is_missing_or_broken_keeps_the_relay_from_nothing(
    own: Path, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "a").write_text(text)
    (tmp_path / "b").write_text(trunk(8))
    keys = _Keys(own, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert hops(keys) == [("1", ()), ("8", (9,))]
    assert keys.status_of_trunks().fault
    (tmp_path / "a").write_text(trunk(7))
    for file in keys.of_trunks:
        file.look()
    assert hops(keys) == [("1", ()), ("7", (9,)), ("8", (9,))]
    assert not keys.status_of_trunks().fault


def test_two_files_with_one_id_for_one_trunk_are_a_fault_of_the_later_one(own: Path, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(trunk(7))
    keys = _Keys(own, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert hops(keys) == [("1", ()), ("7", (9,))]
    assert "two keys have the id 7" in keys.status_of_trunks().fault


OTHER_THINGS = {
    "a local hop key": {"hop": [{"id": 200, "key": "A" * 22 + "==", "not_before": 1}]},
    "a store key": {"store": [{"id": 200, "key": "A" * 43 + "="}]},
    "a seal key": {"seal": [{"id": 200, "key": "A" * 43 + "="}]},
}


@pytest.mark.parametrize("held", OTHER_THINGS.values(), ids=OTHER_THINGS)
def test_a_trunk_s_file_gives_the_relay_no_key_of_its_own_cluster(
    own: Path, tmp_path: Path, held: dict[str, object]
) -> None:
    (tmp_path / "a").write_text(json.dumps({"version": 1, **held}))
    keys = _Keys(own, [str(tmp_path / "a")])
    assert hops(keys) == [("1", ())]
    assert not keys.value.seal
    assert "holds local hop, store or seal keys" in keys.status_of_trunks().fault


def test_a_new_key_file_of_the_relay_is_taken_and_what_contradicts_it_of_a_trunk_waits_until_it_does_not(
    own: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text(trunk(7))
    (tmp_path / "b").write_text(trunk(8))
    keys = _Keys(own, [str(tmp_path / "a"), str(tmp_path / "b")])
    first = own.read_text()
    mine = KeyFile.model_validate_json(first)
    with_trunk = mine.model_copy(update={"hop": (*mine.hop, HopKey(id=7, scope=9, key=bytes([1] * 16)))})
    own.write_text(with_trunk.model_dump_json())
    assert keys.file.look()
    assert hops(keys) == [("1", ()), ("7", (9,)), ("8", (9,))]
    assert keys.value.hop[1].key == bytes([1] * 16)
    assert "contradicts --keys-file" in keys.status_of_trunks().fault
    own.write_text(first)
    assert keys.file.look()
    assert keys.value.hop[1].key == bytes(16)
    assert not keys.status_of_trunks().fault


def test_a_new_key_file_of_the_relay_that_is_of_no_use_by_itself_is_refused(own: Path, tmp_path: Path) -> None:
    ice = KeyFile.model_validate_json(own.read_text()).ice
    (tmp_path / "a").write_text(
        KeyFile(version=1, ice=ice, hop=(HopKey(id=7, scope=9, key=bytes(16)),)).model_dump_json()
    )
    keys = _Keys(own, [str(tmp_path / "a")])
    own.write_text(trunk(8))
    assert not keys.file.look()
    assert keys.file.is_wrong
    assert hops(keys) == [("1", ()), ("7", (9,))]


def test_without_a_key_file_of_its_own_a_relay_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(trunk(7))
    with pytest.raises(LocalError, match="can't be read"):
        _Keys(tmp_path / "relay.json", [str(tmp_path / "a")])
