import subprocess
import sys

import pytest
from click.testing import CliRunner

from usher_cli.main import main

COMMANDS = ("up", "call", "relay", "transceiver", "signaling", "keys", "ufrag")


def test_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from usher_cli.main import main\n"
        "print(CliRunner().invoke(main, ['--help']).output)\n"
        "heavy = {'aiortc', 'av', 'fastapi', 'httpx', 'numpy', 'pydantic', 'usher_transceiver'}\n"
        "print('imported:', *sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(f"  {command} " in done.stdout for command in COMMANDS)
    assert done.stdout.endswith("imported:\n")


def test_each_command_has_help() -> None:
    for command in COMMANDS:
        result = CliRunner().invoke(main, [command, "--help"])
        assert result.exit_code == 0, result.output
        assert result.output.lower().startswith("usage:")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["up", "--relays", "0"], "relays: Input should be greater than or equal to 1"),
        (["up", "--bogus"], "unrecognized arguments: --bogus"),
        (["keys", "show", "/nowhere/relay.json"], "can't read the key file /nowhere/relay.json"),
        (["keys", "new", "--cluster", "70000", "--out", "/nowhere"], "'70000' is no cluster id"),
        (["call", "ftp://example.org"], "no HTTP URL"),
        (["call", "http://127.0.0.1:1", "--tone", "3"], "of no use"),
        (["call", "http://127.0.0.1:1", "--wav", "/nowhere.wav"], "can't read sound from /nowhere.wav"),
    ],
)
def test_what_we_got_wrong_is_one_line_on_stderr_and_status_2(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("usher")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["bogus"])
    assert result.exit_code == 2
    assert "No such command 'bogus'" in result.stderr
