import stat
from pathlib import Path

from click.testing import CliRunner, Result

from usher_cli import commands
from usher_cli.key_files import make_key_files, read_key_file
from usher_cli.keys_command import _describe
from usher_core.ids import Route
from usher_core.keys import HopKeyRing, IceKeyRing, KeyFile, KeyState
from usher_core.sealed import Sealer
from usher_signaling.api_keys import ApiKey, parse_api_keys

NOW = 1_790_000_000.0


def usher(*arguments: str) -> Result:
    return CliRunner().invoke(commands.usher, arguments)


def test_each_program_gets_only_what_it_may_know(tmp_path: Path) -> None:
    assert usher("keys", "new", "--cluster", "7, 9", "--out", str(tmp_path)).exit_code == 0
    relay, transceiver, signaling = (
        read_key_file(tmp_path / f"{name}.json") for name in ("relay", "transceiver", "signaling")
    )
    assert relay.ice[0].clusters == (7, 9)
    assert (relay.ice, relay.hop) == (transceiver.ice, transceiver.hop)
    assert (len(relay.store), relay.seal) == (1, ())
    assert (transceiver.store, transceiver.seal) == ((), ())
    assert (signaling.ice, signaling.hop, signaling.store) == ((), (), ())
    assert len(signaling.seal) == 1
    assert len((tmp_path / "internal-token").read_text().strip()) >= 32


def test_new_keys_work_at_once_and_with_a_clock_a_little_behind() -> None:
    files = make_key_files([7], NOW)
    behind = NOW - 30
    ufrag, password = IceKeyRing(files["transceiver.json"].ice).make(Route(7, 5), bytes(5), behind)
    opened = IceKeyRing(files["relay.json"].ice).open(ufrag.encode())
    assert opened.route == Route(7, 5)
    assert opened.password == password.encode()
    assert HopKeyRing(files["relay.json"].hop).active(behind)[0] == 1
    assert Sealer(files["signaling.json"].seal).seal("call_", b"x", bytes(12), behind).startswith("call_")


def test_two_installs_share_no_key() -> None:
    one, two = make_key_files([1], NOW), make_key_files([1], NOW)
    assert one["relay.json"].ice[0].ufrag_key != two["relay.json"].ice[0].ufrag_key
    assert one["relay.json"].hop[0].key != two["relay.json"].hop[0].key


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "keys"
    result = usher("keys", "new", "--cluster", "1", "--out", str(directory))
    assert sorted(result.stdout.split()) == sorted(map(str, directory.iterdir()))
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_nothing_is_overwritten_and_nothing_new_is_written_beside_it(tmp_path: Path) -> None:
    (tmp_path / "signaling.json").write_text("mine")
    result = usher("keys", "new", "--cluster", "1", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "signaling.json exists" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["signaling.json"]
    assert (tmp_path / "signaling.json").read_text() == "mine"


def test_show_tells_ids_states_and_ages_and_never_material(tmp_path: Path) -> None:
    usher("keys", "new", "--cluster", "1", "--out", str(tmp_path))
    text = (tmp_path / "relay.json").read_text()
    shown = usher("keys", "show", str(tmp_path / "relay.json")).stdout
    keys = read_key_file(tmp_path / "relay.json")
    assert [line.split()[0] for line in shown.splitlines()] == ["KIND", "ice", "hop", "store"]
    assert f"ice    {keys.ice[0].letter}" in shown
    assert "active" in shown
    for part in text.split('"'):
        if part.endswith("="):
            assert part not in shown


def test_columns_of_show_are_apart_whatever_is_in_them() -> None:
    ice = make_key_files([1, 65535], NOW)["relay.json"].ice[0].model_copy(update={"password_key": None})
    head, row = _describe(KeyFile(version=1, ice=(ice,)), NOW)
    assert row.startswith(f"ice   {ice.letter}   cluster 1,65535, no password key  active  ")
    assert row.index("active") == head.index("STATE")


def test_the_list_of_key_commands_cuts_no_summary() -> None:
    assert "..." not in usher("keys", "--help").stdout.partition("Commands:")[2]


def test_show_tells_since_when_a_key_counts_in_one_unit() -> None:
    def since(not_before: int) -> str:
        file = make_key_files([1], NOW)["signaling.json"]
        key = file.seal[0].model_copy(update={"not_before": not_before, "state": KeyState.ACCEPTED})
        return list(_describe(KeyFile(version=1, seal=(key,)), NOW))[-1].partition("accepted")[2].strip()

    now = int(NOW)
    assert [since(now - 5), since(now - 300), since(now - 7200)] == ["5 s ago", "5 min ago", "2 h ago"]
    assert since(now - 200_000) == "2 d ago"
    assert since(now + 90) == "in 1 min"
    assert since(0) == "ever"


def test_a_new_api_key_is_shown_once_and_its_line_opens_only_with_it() -> None:
    result = usher("keys", "api", "--name", "acme")
    assert result.exit_code == 0
    (label, key), (other_label, line) = (row.split() for row in result.stdout.splitlines())
    assert (label, other_label) == ("key", "line")
    assert key not in line
    assert parse_api_keys(line).find(key) == ApiKey("acme")
    assert usher("keys", "api", "--name", "acme").stdout != result.stdout


def test_a_wrong_name_of_an_api_key_is_one_line() -> None:
    result = usher("keys", "api", "--name", "two words")
    assert result.exit_code == 2
    assert "--name" in result.stderr
