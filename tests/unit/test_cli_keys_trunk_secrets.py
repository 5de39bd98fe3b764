"""`usher keys trunk-secrets` writes the keys of a trunk as Secrets that relays of two clusters read."""

from __future__ import annotations

import base64
import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from usher_cli import commands
from usher_cli.key_files import make_key_files
from usher_cli.keys_trunk_secrets import STARTS_IN_S, trunk_keys
from usher_core.errors import LocalError
from usher_core.ids import Route
from usher_core.keys import IceKeyRing, KeyFile, merge_key_files, parse_key_file
from usher_relay.state import RelayKeys

NOW = 1_790_000_000.0


def secret(file: KeyFile) -> str:
    """As kubectl prints it."""
    data = {"keys.json": base64.b64encode(file.model_dump_json().encode()).decode()}
    return json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "usher-relay-keys"}, "data": data})


@pytest.fixture
def home(tmp_path: Path) -> KeyFile:
    """Keys of cluster 1's relays, in the file `relay-keys.json`."""
    made = make_key_files([1], NOW)["relay.json"]
    (tmp_path / "relay-keys.json").write_text(secret(made))
    return made


def run(folder: Path, *more: str, home: str = "1", ingress: str = "9") -> Result:
    given = ["--home", str(folder / "relay-keys.json"), "--home-cluster", home, "--ingress-cluster", ingress]
    return CliRunner().invoke(commands.usher, ["keys", "trunk-secrets", str(folder / "trunk"), *given, *more])


def written(folder: Path) -> tuple[KeyFile, KeyFile]:
    found = []
    for name in ("home", "ingress"):
        manifest: Any = json.loads((folder / "trunk" / f"{name}.json").read_text())
        found.append(parse_key_file(base64.b64decode(manifest["data"]["keys.json"]).decode()))
    return found[0], found[1]


def test_both_sides_have_one_hop_key_beside_their_own_and_the_ingress_opens_home_s_ufrags(
    home: KeyFile, tmp_path: Path
) -> None:
    assert run(tmp_path).exit_code == 0
    at_home, at_ingress = written(tmp_path)
    ours = RelayKeys.of(merge_key_files([home, at_home])).trunk.of((9).to_bytes(2))
    other = make_key_files([9], NOW)["relay.json"]
    merged = merge_key_files([other, at_ingress])
    theirs = RelayKeys.of(merged).trunk.of((1).to_bytes(2))
    assert [(number, key.key) for number, key in ours.items()] == [(number, key.key) for number, key in theirs.items()]
    ufrag, _ = IceKeyRing(home.ice).make(Route(1, 5), bytes(5), NOW)
    opened = IceKeyRing(merged.ice).open(ufrag.encode())
    assert (opened.route, opened.password) == (Route(1, 5), None)
    assert (len(at_home.ice), len(at_home.store), len(at_ingress.store)) == (0, 0, 0)
    names = [
        json.loads((tmp_path / "trunk" / f"{side}.json").read_text())["metadata"]["name"]
        for side in ("home", "ingress")
    ]
    assert names == ["usher-trunk-9", "usher-trunk-1"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "trunk").iterdir()} == {0o600}


def test_with_passwords_the_ingress_verifies(home: KeyFile, tmp_path: Path) -> None:
    assert run(tmp_path, "--with-passwords").exit_code == 0
    ufrag, password = IceKeyRing(home.ice).make(Route(1, 5), bytes(5), NOW)
    assert IceKeyRing(written(tmp_path)[1].ice).open(ufrag.encode()).password == password.encode()


def test_later_runs_keep_to_what_was_said_of_passwords(home: KeyFile, tmp_path: Path) -> None:
    said: list[tuple[str, ...]] = [(), ("--with-passwords",), (), ("--new-key",), ("--without-passwords",), ()]
    has = []
    for more in said:
        assert run(tmp_path, *more).exit_code == 0
        has.append([key.password_key for key in written(tmp_path)[1].ice])
    without, given = [None], [home.ice[0].password_key]
    assert has == [without, given, given, given, without, without]


def test_again_after_a_rotation_at_home_it_keeps_the_trunk_s_key_and_has_home_s_new_ones(
    home: KeyFile, tmp_path: Path
) -> None:
    assert run(tmp_path).exit_code == 0
    before = written(tmp_path)
    more = make_key_files([1, 2], NOW)["relay.json"]
    (tmp_path / "relay-keys.json").write_text(secret(merge_key_files([home, more])))
    assert run(tmp_path).exit_code == 0
    after = written(tmp_path)
    assert [each.hop for each in after] == [each.hop for each in before]
    assert [key.ufrag_key for key in after[1].ice] == [home.ice[0].ufrag_key, more.ice[0].ufrag_key]
    assert all(key.clusters == (1,) for key in after[1].ice)


def test_a_new_key_counts_later_on_both_sides_and_makes_the_old_one_needless_later_still(
    home: KeyFile, tmp_path: Path
) -> None:
    assert run(tmp_path).exit_code == 0
    assert run(tmp_path, "--new-key").exit_code == 0
    at_home, at_ingress = written(tmp_path)
    first, second = at_home.hop
    assert [(key.id, key.key, key.not_before) for key in at_ingress.hop] == [
        (key.id, key.key, key.not_before) for key in at_home.hop
    ]
    assert second.not_before > time.time() + STARTS_IN_S - 60 > first.not_before
    in_use = second.not_before + STARTS_IN_S
    third = trunk_keys(at_home.hop, in_use, more_in=60)
    assert [key.id for key in third][:1] == [second.id]
    assert third[1].not_before == in_use + 60
    assert trunk_keys(at_home.hop, in_use - 1, more_in=60)[0] == first, "some may still use it"


def test_there_is_a_most_of_keys_that_wait() -> None:
    keys = trunk_keys((), NOW, more_in=None)
    for _ in range(7):
        keys = trunk_keys(keys, NOW, more_in=STARTS_IN_S)
    with pytest.raises(LocalError, match="8 keys already"):
        trunk_keys(keys, NOW, more_in=STARTS_IN_S)


def test_two_sides_that_do_not_fit_are_refused_and_left(home: KeyFile, tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 0
    (tmp_path / "trunk" / "home.json").unlink()
    assert "can't read" in run(tmp_path).output
    (tmp_path / "trunk" / "home.json").write_text(secret(home))
    assert "other keys of the trunk" in run(tmp_path).output


@pytest.mark.parametrize(
    ("clusters", "text", "fault"),
    [
        (("1", "1"), None, "both have this id"),
        (("2", "9"), None, "no ICE key of cluster 2"),
        (("1", "9"), '{"kind": "Secret", "data": {"token": ""}}', "has no keys.json"),
        (("1", "9"), '{"kind": "Secret"}', "has no keys.json"),
        (("1", "9"), "[]", "key file is wrong"),
        (("1", "9"), "", "no JSON"),
    ],
)
def test_what_can_not_be_is_refused_and_nothing_written(
    home: KeyFile, tmp_path: Path, clusters: tuple[str, str], text: str | None, fault: str
) -> None:
    if text is not None:
        (tmp_path / "relay-keys.json").write_text(text)
    result = run(tmp_path, home=clusters[0], ingress=clusters[1])
    assert result.exit_code != 0
    assert fault in result.output
    assert not (tmp_path / "trunk").exists()
