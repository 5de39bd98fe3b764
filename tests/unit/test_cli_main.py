import subprocess
import sys

import pytest
from click.testing import CliRunner

from usher_cli.commands import usher

COMMANDS = ("up", "call", "relay", "transceiver", "signaling", "keys", "ufrag")


def test_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from usher_cli.commands import usher\n"
        "print(CliRunner().invoke(usher, ['--help']).output)\n"
        "heavy = {'aiortc', 'av', 'fastapi', 'httpx', 'numpy', 'pydantic', 'usher_transceiver'}\n"
        "print('imported:', *sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(f"  {command} " in done.stdout for command in COMMANDS)
    assert done.stdout.endswith("imported:\n")


def test_each_command_has_help() -> None:
    for command in COMMANDS:
        for flag in ("--help", "-h"):
            result = CliRunner().invoke(usher, [command, flag])
            assert result.exit_code == 0, result.output
            assert result.output.lower().startswith("usage:")
            assert "(default: )" not in result.output
            assert "(default: (" not in result.output
            assert "factory" not in result.output


CALL = ["call", "http://127.0.0.1:1"]
UP = ["up", "--http=127.0.0.1:0", "--udp=127.0.0.1:0"]

WRONG: list[tuple[list[str], str]] = [
    ([], "usher: Missing command"),
    (["bogus"], "usher: No such command 'bogus'"),
    (["--bogus"], "usher: No such option '--bogus'"),
    (["keys"], "usher keys: Missing command"),
    (["keys", "bogus"], "usher keys: No such command 'bogus'"),
    (["keys", "new"], "usher keys new: Missing option '--cluster'"),
    (["keys", "new", "--cluster", "70000", "--out", "/nowhere"], "'70000' is no cluster id"),
    (["keys", "new", "--cluster", "9" * 5000, "--out", "/nowhere"], "is no cluster id"),
    (["keys", "api"], "usher keys api: Missing option '--name'"),
    (["keys", "show"], "usher keys show: Missing argument 'FILE'"),
    (["keys", "show", "/nowhere/relay.json"], "can't read the key file /nowhere/relay.json"),
    (["ufrag"], "usher ufrag: Missing argument 'UFRAG'"),
    (["ufrag", "x", "--bogus"], "usher ufrag: No such option '--bogus'"),
    (["ufrag", "x", "--keys-file", "/nowhere"], "can't read the key file /nowhere"),
    (["relay", "--bogus"], "usher relay: unrecognized arguments: --bogus"),
    (["relay"], "usher relay: "),
    (["transceiver", "--bogus"], "usher transceiver: unrecognized arguments: --bogus"),
    (["transceiver"], "usher transceiver: "),
    (["signaling", "--bogus"], "usher signaling: unrecognized arguments: --bogus"),
    (["signaling"], "usher signaling: "),
    (["up", "--bogus"], "usher up: unrecognized arguments: --bogus"),
    (["up", "--relays", "0"], "usher up: --relays '0' (or USHER_RELAYS): at least 1 is expected"),
    (["up", "--relays", "nan"], "usher up: --relays 'nan'"),
    ([*UP, "--state-file", ""], "--state-file .: this is a directory"),
    ([*UP, "--state-file", "/"], "--state-file /: this is a directory"),
    ([*UP, "--state-file", "/nowhere/state.json"], "--state-file /nowhere/state.json: No such file or directory"),
    (["call"], "usher call: Missing argument 'URL'"),
    (["call", "--bogus", "x"], "usher call: No such option '--bogus'"),
    (["call", ""], "'' is no HTTP URL"),
    (["call", "ftp://example.org"], "no HTTP URL"),
    (["call", "http://[::1"], "no HTTP URL"),
    (["call", "http://127.0.0.1:99999"], "no HTTP URL"),
    (["call", "http://127.0.0.1:port"], "no HTTP URL"),
    (["call", "http://a..b"], "no HTTP URL"),
    (["call", f"http://{'a' * 300}"], "no HTTP URL"),
    (["call", "http://\x07"], "no HTTP URL"),
    (["call", "http://\udcff"], "no HTTP URL"),
    ([*CALL, "--api-key", "é"], "--api-key: a key has visible ASCII characters only"),
    ([*CALL, "--api-key", "two words"], "--api-key: a key has visible ASCII characters only"),
    ([*CALL, "--tone", "3"], "of no use"),
    ([*CALL, "--tone", "nan"], "of no use"),
    ([*CALL, "--tone", "inf"], "of no use"),
    *(
        ([*CALL, flag, value], f"usher call: Invalid value for '{flag}'")
        for flag in ("--seconds", "--talk", "--rate")
        for value in ("nan", "inf", "-inf", "-1", "0", "x", "1e9")
    ),
    *(
        ([*CALL, flag, value], f"usher call: Invalid value for '{flag}'")
        for flag in ("--count", "--concurrency", "--full-every")
        for value in ("0", "-1", "nan", "1.5", "10001")
    ),
    *(
        ([*CALL, "--via", value], "usher call: Invalid value for '--via'")
        for value in (
            "",
            "a:1",
            "127.0.0.1",
            "127.0.0.1:0",
            "127.0.0.1:65536",
            "127.0.0.1:-1",
            "::1",
            f"::1:{'9' * 5000}",
        )
    ),
    ([*CALL, "--rate", "5"], "--rate is for --load"),
    (
        [*CALL, "--trace", "--seconds", "2"],
        "--trace times a check, and they come every 2.5 s: --seconds 2 is too short",
    ),
    ([*CALL, "--region", "a b"], "usher call: Invalid value for '--region'"),
    ([*CALL, "--wav", "/nowhere.wav"], "can't read sound from /nowhere.wav"),
    ([*CALL, "--wav", ""], "can't read sound from ."),
    ([*CALL, "--wav", "/nowhere.wav", "--talk", "1"], "exclude each other"),
    ([*CALL, "--talk", "5"], "--talk 5 leaves no time for silence within --seconds 5"),
    ([*CALL, "--load", "--talk", "1"], "--load sends the tone without end"),
    ([*CALL, "--record", ""], "--record .: this is a directory"),
    ([*CALL, "--record", "/"], "--record /: this is a directory"),
    ([*CALL, "--record", "/nowhere/x.wav"], "--record /nowhere/x.wav: No such file or directory"),
    ([*CALL, "--count", "2", "--record", "."], "--record .: this is a directory"),
    ([*CALL, "--record", "x" * 300], "File name too long"),
]


def assert_one_line(status: int, out: str, err: str, said: str) -> None:
    assert status == 2, err
    assert out == ""
    assert err.startswith("usher")
    assert said in err
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert all(character.isprintable() for character in err.rstrip("\n"))


@pytest.mark.parametrize("arguments, said", WRONG, ids=lambda value: repr(value)[:60])
def test_what_we_got_wrong_is_one_line_on_stderr_and_status_2(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(usher, arguments)
    assert_one_line(result.exit_code, result.stdout, result.stderr, said)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_so_it_is_in_a_process_of_each_program(command: str | None) -> None:
    words = [] if command is None else [command]
    done = subprocess.run(
        [sys.executable, "-m", "usher_cli", *words, "--bogus"], capture_output=True, text=True, timeout=20, check=False
    )
    assert_one_line(done.returncode, done.stdout, done.stderr, "--bogus")
    assert done.stderr.startswith(" ".join(["usher", *words]) + ":")


def test_a_fault_in_the_environment_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USHER_API_KEY", "é")
    result = CliRunner().invoke(usher, CALL)
    assert_one_line(result.exit_code, result.stdout, result.stderr, "--api-key")
    monkeypatch.delenv("USHER_API_KEY")
    monkeypatch.setenv("HTTP_PROXY", "bogus://x")
    result = CliRunner().invoke(usher, ["call", "http://192.0.2.1:1"])
    assert result.exit_code == 2
    assert "the proxy that the environment names" in result.stderr
