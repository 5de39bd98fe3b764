"""A relay's own key file and those of its trunks are one set of keys; a bad one of a trunk costs nothing else."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from itertools import permutations, product
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from usher_cli.key_files import make_key_files
from usher_core.errors import LocalError
from usher_core.keys import HopKey, KeyFile, held_keys
from usher_relay.key_files import RelayKeyFiles

NOW = 1_790_000_000.0


def trunk(number: int, scope: int = 9) -> str:
    return KeyFile(version=1, hop=(HopKey(id=number, scope=scope, key=bytes(16)),)).model_dump_json()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "relay.json"
    path.write_text(make_key_files([1], NOW)["relay.json"].model_dump_json())
    return path


def trunks(*numbers: int) -> str:
    hop = tuple(HopKey(id=number, scope=9, key=bytes(16)) for number in numbers)
    return KeyFile(version=1, hop=hop).model_dump_json()


def hops(keys: RelayKeyFiles) -> list[tuple[str, tuple[int, ...]]]:
    return [(key.id, key.clusters) for key in held_keys(keys.value) if key.list == "hop"]


def test_keys_of_trunks_stand_beside_those_of_the_relay_and_tell_the_other_end(own: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(trunk(7))
    (tmp_path / "b").write_text(trunk(7, scope=8))
    keys = RelayKeyFiles(own, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert hops(keys) == [("1", ()), ("7", (9,)), ("7", (8,))]
    assert not keys.status_of_trunks().fault


@pytest.mark.parametrize("text", [None, "", '{"version": 2}', '{"version": 1, "hop": [{"id": 7}]}'])
def test_a_file_of_a_trunk_that_is_missing_or_broken_keeps_the_relay_from_nothing(
    own: Path, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "a").write_text(text)
    (tmp_path / "b").write_text(trunk(8))
    keys = RelayKeyFiles(own, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert hops(keys) == [("1", ()), ("8", (9,))]
    assert keys.status_of_trunks().fault
    (tmp_path / "a").write_text(trunk(7))
    keys.look()
    assert hops(keys) == [("1", ()), ("7", (9,)), ("8", (9,))]
    assert not keys.status_of_trunks().fault


def test_two_files_with_one_id_for_one_trunk_are_a_fault_of_the_later_one(own: Path, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(trunk(7))
    keys = RelayKeyFiles(own, [str(tmp_path / "a"), str(tmp_path / "b")])
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
    keys = RelayKeyFiles(own, [str(tmp_path / "a")])
    assert hops(keys) == [("1", ())]
    assert not keys.value.seal
    assert "holds local hop, store or seal keys" in keys.status_of_trunks().fault


def test_a_new_key_file_of_the_relay_is_taken_and_what_contradicts_it_of_a_trunk_waits_until_it_does_not(
    own: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text(trunk(7))
    (tmp_path / "b").write_text(trunk(8))
    keys = RelayKeyFiles(own, [str(tmp_path / "a"), str(tmp_path / "b")])
    first = own.read_text()
    mine = KeyFile.model_validate_json(first)
    with_trunk = mine.model_copy(update={"hop": (*mine.hop, HopKey(id=7, scope=9, key=bytes([1] * 16)))})
    own.write_text(with_trunk.model_dump_json())
    keys.look()
    assert hops(keys) == [("1", ()), ("7", (9,)), ("8", (9,))]
    assert keys.value.hop[1].key == bytes([1] * 16)
    assert "contradicts another key file" in keys.status_of_trunks().fault
    own.write_text(first)
    keys.look()
    assert keys.value.hop[1].key == bytes(16)
    assert not keys.status_of_trunks().fault


def test_a_new_key_file_of_the_relay_that_is_of_no_use_by_itself_is_refused(own: Path, tmp_path: Path) -> None:
    ice = KeyFile.model_validate_json(own.read_text()).ice
    (tmp_path / "a").write_text(
        KeyFile(version=1, ice=ice, hop=(HopKey(id=7, scope=9, key=bytes(16)),)).model_dump_json()
    )
    keys = RelayKeyFiles(own, [str(tmp_path / "a")])
    own.write_text(trunk(8))
    keys.look()
    assert keys.status().fault
    assert hops(keys) == [("1", ()), ("7", (9,))]


def test_without_a_key_file_of_its_own_a_relay_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(trunk(7))
    with pytest.raises(LocalError, match="can't be read"):
        RelayKeyFiles(tmp_path / "relay.json", [str(tmp_path / "a")])


SETS = [(), (7,), (7, 8)]


def test_keys_in_use_depend_on_what_the_files_hold_and_not_on_the_order_of_changes(own: Path, tmp_path: Path) -> None:
    """From any contents of three files to good ones, whichever file is mended first."""
    last = {"a": (7, 8), "b": (), "c": (6,)}
    for first, order in product(product(SETS, SETS, [(7,)]), permutations("abc")):
        for name, numbers in zip("abc", first, strict=True):
            (tmp_path / name).write_text(trunks(*numbers))
        keys = RelayKeyFiles(own, [str(tmp_path / name) for name in "abc"])
        for name in order:
            (tmp_path / name).write_text(trunks(*last[name]))
            keys.look()
        assert hops(keys) == [("1", ()), ("7", (9,)), ("8", (9,)), ("6", (9,))], (first, order)
        assert not keys.status_of_trunks().fault


@pytest.mark.parametrize("source, target", ["ab", "ba"])
def test_a_key_that_moves_to_another_file_new_file_first_takes_no_key_out_of_use(
    own: Path, tmp_path: Path, source: str, target: str
) -> None:
    (tmp_path / source).write_text(trunks(7, 8))
    (tmp_path / target).write_text(trunks())
    keys = RelayKeyFiles(own, [str(tmp_path / name) for name in "ab"])
    everything = {("1", ()), ("7", (9,)), ("8", (9,))}
    (tmp_path / target).write_text(trunks(7))
    keys.look()
    assert set(hops(keys)) == everything
    assert keys.status_of_trunks().fault.startswith(f"{tmp_path / target}: it contradicts another key file")
    (tmp_path / source).write_text(trunks(8))
    keys.look()
    assert set(hops(keys)) == everything
    assert not keys.status_of_trunks().fault


def test_what_contradicts_the_relay_s_own_file_at_the_start_is_used_once_that_is_mended(
    own: Path, tmp_path: Path
) -> None:
    good = own.read_text()
    mine = KeyFile.model_validate_json(good)
    own.write_text(
        mine.model_copy(update={"hop": (*mine.hop, HopKey(id=7, scope=9, key=bytes([1] * 16)))}).model_dump_json()
    )
    (tmp_path / "a").write_text(trunks(7, 8))
    keys = RelayKeyFiles(own, [str(tmp_path / "a")])
    assert hops(keys) == [("1", ()), ("7", (9,))]
    own.write_text(good)
    keys.look()
    assert hops(keys) == [("1", ()), ("7", (9,)), ("8", (9,))]


def test_a_file_that_is_refused_waits_with_one_line_in_the_log_and_holds_up_no_other(own: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(trunks(7))
    (tmp_path / "b").write_text(trunks(7, 8))
    (tmp_path / "c").write_text(trunks())
    with capture_logs() as lines:
        keys = RelayKeyFiles(own, [str(tmp_path / name) for name in "abc"])
        (tmp_path / "c").write_text(trunks(6))
        keys.look()
        keys.look()
        assert hops(keys) == [("1", ()), ("7", (9,)), ("6", (9,))]
        (tmp_path / "a").write_text(trunks())
        keys.look()
    told = [(line["event"], Path(line["path"]).name) for line in lines if line["event"].startswith("key file")]
    assert told == [("key file is not used", "b"), ("key file is used again", "b")]


def test_an_own_file_that_a_part_of_the_relay_refuses_waits_and_those_of_trunks_do_not(
    own: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text(trunks())
    keys = RelayKeyFiles(own, [str(tmp_path / "a")])
    given: list[KeyFile] = []

    def take(file: KeyFile) -> None:
        if not file.store:
            raise LocalError("there is no store key")
        given.append(file)

    good = own.read_text()
    with suppress(TimeoutError):
        asyncio.run(asyncio.wait_for(keys.follow([take]), 0.01))
    own.write_text(KeyFile.model_validate_json(good).model_copy(update={"store": ()}).model_dump_json())
    keys.look()
    assert "there is no store key" in keys.status().fault
    (tmp_path / "a").write_text(trunks(7))
    keys.look()
    assert given[-1] == keys.value
    assert keys.value.store
    assert hops(keys) == [("1", ()), ("7", (9,))]
    own.write_text(good)
    keys.look()
    assert not keys.status().fault
