"""What the programs say about settings that are missing or wrong: every flag, and the variable beside it."""

import re
from collections.abc import Iterator
from typing import get_origin

import pytest

from usher_cli.up.settings import UpSettings
from usher_cli.wan.settings import WanSettings
from usher_core.errors import LocalError
from usher_core.settings import ProgramSettings
from usher_operator.settings import OperatorSettings
from usher_relay.settings import RelaySettings
from usher_signaling.settings import SignalingSettings
from usher_transceiver.settings import TransceiverSettings

PROGRAMS: tuple[type[ProgramSettings], ...] = (
    UpSettings,
    RelaySettings,
    TransceiverSettings,
    SignalingSettings,
    WanSettings,
    OperatorSettings,
)


def fault(settings: type[ProgramSettings], *flags: str) -> str:
    with pytest.raises(LocalError) as caught:
        settings.from_command_line(flags)
    return str(caught.value)


def outcome(settings: type[ProgramSettings], *flags: str) -> str:
    """What comes of flags: the settings, or what is wrong with them."""
    try:
        return repr(settings.from_command_line(flags))
    except LocalError as error:
        return str(error)


def needed(settings: type[ProgramSettings]) -> list[str]:
    """Flags without which the program does not start, with a value each."""
    values = {"listen": "1=127.0.0.1:0", "pod": "1", "link": "127.0.0.1:0=127.0.0.1:3478"}
    return [
        f"--{name.replace('_', '-')}={values.get(name, 'file')}"
        for name, field in settings.model_fields.items()
        if field.is_required()
    ]


def choosy() -> Iterator[tuple[type[ProgramSettings], str]]:
    """Settings that do not take every text."""
    for settings in PROGRAMS:
        for name, field in settings.model_fields.items():
            kind = field.annotation
            if kind in (int, float) or kind == float | None or kind == int | None or "Literal" in str(get_origin(kind)):
                yield settings, name


@pytest.mark.parametrize("settings", [RelaySettings, TransceiverSettings, SignalingSettings])
def test_all_missing_flags_are_named_at_once_with_what_makes_the_files(settings: type[ProgramSettings]) -> None:
    said = fault(settings)
    for flag in needed(settings):
        assert flag.partition("=")[0] in said
    assert "are needed; `usher keys new` makes key files and the token" in said
    assert said.endswith(f"see `usher {settings.program} --help`")


def test_one_missing_flag_is_needed() -> None:
    *most, last = needed(SignalingSettings)
    assert fault(SignalingSettings, *most).startswith(f"usher signaling: {last.partition('=')[0]} is needed; ")


@pytest.mark.parametrize("settings, name", list(choosy()))
@pytest.mark.parametrize("by_environment", [False, True])
def test_a_wrong_value_is_told_with_its_flag_and_its_variable(
    settings: type[ProgramSettings], name: str, by_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, variable = f"--{name.replace('_', '-')}", f"USHER_{name.upper()}"
    if by_environment:
        monkeypatch.setenv(variable, "bog us")
    flags = [given for given in needed(settings) if not given.startswith(f"{flag}=")]
    said = fault(settings, *flags, *([] if by_environment else [f"{flag}=bog us"]))
    assert re.fullmatch(
        rf"usher {settings.program}: {flag} 'bog us' \(or {variable}\): .+ is expected; see `usher \w+ --help`", said
    ), said


@pytest.mark.parametrize(
    "settings, name",
    [(each, name) for each in PROGRAMS for name, field in each.model_fields.items() if field.annotation is not bool],
)
@pytest.mark.parametrize("value", ["-5ms", "-x"])
def test_a_value_that_begins_with_a_dash_is_read_as_one_in_any_spelling(
    settings: type[ProgramSettings], name: str, value: str
) -> None:
    flag = f"--{name.replace('_', '-')}"
    others = [given for given in needed(settings) if not given.startswith(f"{flag}=")]
    assert outcome(settings, *others, flag, value) == outcome(settings, *others, f"{flag}={value}")


@pytest.mark.parametrize("settings, flag", [(UpSettings, "--wan"), (WanSettings, "--rtt"), (WanSettings, "--jitter")])
@pytest.mark.parametrize("value", ["-5ms", "-0.5s", "-5"])
def test_a_time_below_nothing_is_told_with_what_was_expected(
    settings: type[ProgramSettings], flag: str, value: str
) -> None:
    said = fault(settings, *needed(settings), flag, value)
    assert f"{flag} (or USHER_{flag[2:].upper()}): {value!r} is no time such as 40ms or 0.5s;" in said


def test_a_flag_of_one_dash_is_no_value_of_a_flag_without_one() -> None:
    assert "unrecognized arguments: -x" in fault(SignalingSettings, *needed(SignalingSettings), "--keyless", "-x")
    assert "unrecognized arguments: -x" in fault(UpSettings, "--relays=2", "-x")


def test_all_wrong_values_are_told_at_once_and_many_are_counted() -> None:
    said = fault(UpSettings, "--relays=0", "--transceivers=nan", "--engine=go")
    assert "--relays '0' (or USHER_RELAYS): at least 1 is expected; --transceivers 'nan'" in said
    assert "'auto', 'python' or 'native' is expected" in said
    numbers = [name for settings, name in choosy() if settings is SignalingSettings]
    flags = [f"--{name.replace('_', '-')}=x" for name in numbers]
    assert f"; and {len(numbers) - 5} more;" in fault(SignalingSettings, *needed(SignalingSettings), *flags)


def test_a_secret_is_never_repeated() -> None:
    said = fault(SignalingSettings, *needed(SignalingSettings), "--redis-url=http://user:hunter2@redis")
    assert "--redis-url (or USHER_REDIS_URL): a URL of Redis starts with" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("settings", PROGRAMS)
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--redis-uri=redis://:hunter2@h"], "unrecognized arguments: --redis-uri;"),
        (["--redis-uri", "redis://:hunter2@h"], "unrecognized arguments: --redis-uri;"),
        (["--api-kye", "hunter2 hunter2", "--bogus=hunter2"], "unrecognized arguments: --api-kye --bogus;"),
        (["-phunter2"], "a value stands there that is no flag's;"),
        (["redis://:hunter2@h"], "a value stands there that is no flag's;"),
    ],
)
def test_what_was_given_to_a_misspelt_flag_is_not_repeated(
    settings: type[ProgramSettings], arguments: list[str], told: str
) -> None:
    said = fault(settings, *needed(settings), *arguments)
    assert told in said
    assert "hunter2" not in said


def test_a_value_of_a_flag_that_takes_none_is_not_repeated() -> None:
    said = fault(SignalingSettings, *needed(SignalingSettings), "--keyless=hunter2")
    assert "argument --keyless/--no-keyless: it takes no value" in said
    assert "hunter2" not in said


def test_help_has_the_form_of_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for settings in PROGRAMS:
        with pytest.raises(SystemExit):
            settings.from_command_line(["--help"])
        printed = capsys.readouterr().out
        assert printed.startswith(f"Usage: usher {settings.program} [OPTIONS]\n")
        assert "\nOptions:\n" in printed
        assert "(design" not in printed
