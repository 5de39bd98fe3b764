"""`usher keys trunk` writes what two clusters need of each other, and no more."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from usher_cli import commands
from usher_cli.key_files import make_key_files, read_key_file
from usher_cli.keys_trunk import join
from usher_core.errors import LocalError
from usher_core.ids import Route
from usher_core.keys import IceKeyRing
from usher_relay.state import RelayKeys

NOW = 1_790_000_000.0


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """relay.json of cluster 1 (home) and of cluster 9 (ingress)."""
    paths = tmp_path / "home.json", tmp_path / "ingress.json"
    for path, cluster in zip(paths, (1, 9), strict=True):
        path.write_text(make_key_files([cluster], NOW)["relay.json"].model_dump_json())
    return paths


def trunk(files: tuple[Path, Path], *more: str, home: str = "1", ingress: str = "9") -> Result:
    given = ["--home", str(files[0]), "--home-cluster", home, "--ingress", str(files[1]), "--ingress-cluster", ingress]
    return CliRunner().invoke(commands.usher, ["keys", "trunk", *given, *more])


def test_both_sides_get_one_hop_key_and_the_ingress_opens_ufrags_of_home_without_their_passwords(
    files: tuple[Path, Path],
) -> None:
    ufrag, _ = IceKeyRing(read_key_file(files[0]).ice).make(Route(1, 5), bytes(5), NOW)
    assert trunk(files).exit_code == 0
    home, ingress = map(read_key_file, files)
    ours, theirs = RelayKeys.of(home).trunk.of((9).to_bytes(2)), RelayKeys.of(ingress).trunk.of((1).to_bytes(2))
    assert [(number, key.key) for number, key in ours.items()] == [(number, key.key) for number, key in theirs.items()]
    opened = IceKeyRing(ingress.ice).open(ufrag.encode())
    assert (opened.route, opened.password) == (Route(1, 5), None)
    assert len(home.ice) == 1, "home learns nothing of the other's sessions"
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_what_is_no_pair_of_relay_key_files_is_refused_and_left_as_it_is(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    home, edge = files
    transceiver = tmp_path / "transceiver.json"
    transceiver.write_text(make_key_files([1], NOW)["transceiver.json"].model_dump_json())
    for pair, ingress, fault in (
        ((home, home), "9", "are one file"),
        ((transceiver, edge), "9", "not the key file of relays"),
        ((home, edge), "77", "no ICE key of their cluster 77"),
    ):
        before = [path.read_text() for path in pair]
        result = trunk(pair, ingress=ingress)
        assert result.exit_code != 0
        assert fault in result.output + str(result.exception)
        assert [path.read_text() for path in pair] == before


def test_with_passwords_the_ingress_verifies(files: tuple[Path, Path]) -> None:
    ufrag, password = IceKeyRing(read_key_file(files[0]).ice).make(Route(1, 5), bytes(5), NOW)
    assert trunk(files, "--with-passwords").exit_code == 0
    assert IceKeyRing(read_key_file(files[1]).ice).open(ufrag.encode()).password == password.encode()


def test_a_second_run_adds_one_more_key_that_only_opens_and_opens_no_ufrag_twice(files: tuple[Path, Path]) -> None:
    for _ in range(2):
        assert trunk(files).exit_code == 0
    home, ingress = map(read_key_file, files)
    for file, other_end in ((home, 9), (ingress, 1)):
        held = RelayKeys.of(file).trunk
        assert [key.state for key in held.of(other_end.to_bytes(2)).values()] == ["active", "accepted"]
        youngest = held.youngest(other_end.to_bytes(2))
        assert youngest is not None
        assert youngest.state == "accepted", "it is the one whose acknowledgement is waited for"
    assert len(ingress.ice) == 2


@pytest.mark.parametrize(
    ("clusters", "fault"),
    [(("1", "1"), "both have this id"), (("2", "9"), "no ICE key of cluster 2"), (("0", "9"), "0 is not in the range")],
)
def test_what_can_not_be_is_refused_and_nothing_written(
    files: tuple[Path, Path], clusters: tuple[str, str], fault: str
) -> None:
    before = [path.read_text() for path in files]
    result = trunk(files, home=clusters[0], ingress=clusters[1])
    assert result.exit_code != 0
    assert fault in result.output + str(result.exception)
    assert [path.read_text() for path in files] == before


def test_without_a_free_id_nothing_is_made() -> None:
    home, ingress = (make_key_files([cluster], NOW)["relay.json"] for cluster in (1, 9))
    full = tuple(home.hop[0].model_copy(update={"id": number}) for number in range(256))
    with pytest.raises(LocalError, match="all 255 ids"):
        join(home.model_copy(update={"hop": full}), ingress, 1, 9, NOW, with_passwords=False)
