"""What the settings of all programs share: environment names, flags, and the announce line."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, NoDecode, SettingsConfigDict, SettingsError

from usher_core.errors import LocalError
from usher_core.ids import check_host_port


def _split_commas(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


TextList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)]
"""A list: its flag is repeatable, its environment variable takes commas."""


REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")


def _check_redis_url(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().startswith(REDIS_SCHEMES):
        raise ValueError(f"a URL of Redis starts with one of {', '.join(REDIS_SCHEMES)}")
    return value


RedisUrl = Annotated[SecretStr, AfterValidator(_check_redis_url)]
"""Where a Redis is, with its password; `usher_shell.redis_client` reads it."""


HostPort = Annotated[str, AfterValidator(check_host_port)]
"""`HOST:PORT`, or `[V6-ADDRESS]:PORT`."""


class ProgramSettings(BaseSettings):
    """Settings of one program: flags first, then environment `USHER_<NAME>`, then the default.

    Flags are the field names in kebab case; `--help` prints each field's description.
    """

    model_config = SettingsConfigDict(
        env_prefix="USHER_",
        cli_exit_on_error=False,
        cli_show_env_vars=True,
        extra="ignore",
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        hide_input_in_errors=True,
    )
    program: ClassVar[str] = "usher"

    log_format: Literal["console", "json"] = Field(
        default="console", description="form of the log on stderr; json in a cluster"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level that is logged"
    )

    @classmethod
    def from_command_line(cls, arguments: Sequence[str]) -> Self:
        """Read flags and environment. `--help` prints the help and exits.

        Raises LocalError that names every setting at fault.
        """
        see = f"see `usher {cls.program} --help`"
        try:
            flags = CliSettingsSource[Self](
                cls,
                cli_prog_name=f"usher {cls.program}",
                add_argument_method=_add_argument,
                formatter_class=_HelpFormatter,
            )
            return CliApp.run(
                cls,
                cli_args=_joined(arguments, cls),
                cli_settings_source=flags,
                cli_cmd_method_name="ignored_method",
            )
        except ValidationError as error:
            faults = error.errors(include_url=False)
            missing = {fault["loc"][0] for fault in faults if fault["type"] == "missing"}
            make = "`usher keys new` makes key files and the token; " if missing & _MADE_BY_KEYS_NEW else ""
            raise LocalError(f"usher {cls.program}: {_describe_all(cls, faults)}", make + see) from None
        except SettingsError as error:
            fault = _without_values(str(error).removeprefix("error parsing CLI: "))
            raise LocalError(f"usher {cls.program}: {fault}", see) from None


def _joined(arguments: Sequence[str], settings: type[BaseSettings]) -> list[str]:
    """Return the arguments with each `--flag -5ms` as `--flag=-5ms`.

    Else argparse takes such a value for a flag, and says that there is none. No flag of ours has one dash, but for -h.
    """
    valued = {_flag(name) for name, field in settings.model_fields.items() if field.annotation is not bool}
    joined: list[str] = []
    for argument in arguments:
        is_value = argument.startswith("-") and not argument.startswith("--") and argument != "-h"
        if is_value and joined and joined[-1] in valued:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _without_values(fault: str) -> str:
    """Return what argparse says of arguments, without values: who misspells a flag may have written a secret to it."""
    where, ignored, _ = fault.partition(": ignored explicit argument ")
    if ignored:
        return f"{where}: it takes no value"
    start, unrecognized, arguments = fault.partition("unrecognized arguments: ")
    if not unrecognized:
        return fault
    flags = [word.partition("=")[0] for word in arguments.split() if word.startswith("-")]
    named = " ".join(flag for flag in flags if _FLAG.fullmatch(flag))
    return start + (unrecognized + named if named else "a value stands there that is no flag's")


_FLAG = re.compile(r"-[A-Za-z]|--[A-Za-z][A-Za-z0-9_-]*")
_MADE_BY_KEYS_NEW = {"keys_file", "token_file"}
_MAX_FAULTS = 5
_MAX_QUOTED = 80
_EXPECTED = {
    "int_parsing": "a whole number is expected",
    "int_from_float": "a whole number is expected",
    "float_parsing": "a number is expected",
    "finite_number": "a finite number is expected",
    "bool_parsing": "true or false is expected",
    "greater_than": "more than {gt} is expected",
    "greater_than_equal": "at least {ge} is expected",
    "less_than": "less than {lt} is expected",
    "less_than_equal": "at most {le} is expected",
    "literal_error": "{expected} is expected",
    "string_too_short": "it is too short or empty",
    "string_too_long": "at most {max_length} characters are expected",
    "too_short": "it is too short or empty",
}
"""What pydantic's types of errors mean, in the words of usher; others keep pydantic's."""


def _describe_all(settings: type[BaseSettings], faults: Sequence[ErrorDetails]) -> str:
    """Return all faults in one line: first what is missing, as flags, then what is wrong."""
    missing = [_flag(str(fault["loc"][0])) for fault in faults if fault["type"] == "missing"]
    wrong = [_describe_one(settings, fault) for fault in faults if fault["type"] != "missing"]
    told = wrong[:_MAX_FAULTS] + ([f"and {len(wrong) - _MAX_FAULTS} more"] if len(wrong) > _MAX_FAULTS else [])
    if missing:
        *others, last = missing
        told.insert(0, f"{', '.join(others)} and {last} are needed" if others else f"{last} is needed")
    return "; ".join(told)


def _describe_one(settings: type[BaseSettings], fault: ErrorDetails) -> str:
    message = str(fault["msg"]).removeprefix("Value error, ")
    words = _EXPECTED.get(fault["type"])
    expected = words.format(**fault.get("ctx", {})) if words else message
    if not fault["loc"]:
        # A rule about several settings, which names them itself.
        return expected
    name = str(fault["loc"][0])
    value = fault["input"]
    field = settings.model_fields[name]
    is_secret = "SecretStr" in str(field.annotation) or not field.repr
    # Rules of ours mostly quote the value themselves.
    is_quoted = fault["type"] == "value_error" and str(value) in message
    quoted = "" if is_secret or is_quoted or not isinstance(value, str) else f" {value!r:.{_MAX_QUOTED}}"
    return f"{_flag(name)}{quoted} (or USHER_{name.upper()}): {expected}"


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help in the form of the other commands, those of click."""

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Name no flag here: each has a line below."""
        super().add_usage(usage or "%(prog)s [OPTIONS]", actions, groups, prefix or "Usage: ")

    def start_section(self, heading: str | None) -> None:
        """Write headings with a capital letter."""
        super().start_section(heading and heading.capitalize())


_VALUE_NAMES = {
    "str": "TEXT",
    "tuple[str,...]": "TEXT",
    "int": "N",
    "float": "N",
    "Path": "FILE",
    "SecretStr": "SECRET",
}


_NO_DEFAULT = re.compile(r" \(default: (?:None|\(\)|)\)| \(default factory: [^)]*\)")
_TUPLE_DEFAULT = re.compile(r"\(default: \((.*)\)\)")


def _spelled(default: re.Match[str]) -> str:
    """Return a default of several values as it would be typed."""
    return f"(default: {','.join(ast.literal_eval(f'({default[1]})'))})" if default[1] else default[0]


def _add_argument(parser: argparse.ArgumentParser, *names: str, **options: Any) -> argparse.Action:
    """Add a flag whose help speaks of texts, numbers and files, not of Python types."""
    if options.get("metavar") in _VALUE_NAMES:
        options["metavar"] = _VALUE_NAMES[options["metavar"]]
    if isinstance(options.get("help"), str):
        options["help"] = _NO_DEFAULT.sub("", _TUPLE_DEFAULT.sub(_spelled, options["help"]))
    return parser.add_argument(*names, **options)


def announce(program: str, **facts: Any) -> str:
    """Return the one JSON line that a program prints on stdout when it is ready to work."""
    return json.dumps({"ready": True, "program": program, **facts}, separators=(",", ":"))
