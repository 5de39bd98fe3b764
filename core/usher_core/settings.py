"""What the settings of all programs share: environment names, flags, and the announce line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, NoDecode, SettingsConfigDict, SettingsError

from usher_core.errors import LocalError, describe
from usher_core.ids import split_host_port


def _split_commas(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


TextList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)]
"""A list: its flag is repeatable, its environment variable takes commas."""


def _check_host_port(value: str) -> str:
    try:
        split_host_port(value)
    except LocalError as error:
        raise ValueError(str(error)) from None
    return value


HostPort = Annotated[str, AfterValidator(_check_host_port)]
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

        Raises LocalError that names the setting at fault.
        """
        try:
            flags = CliSettingsSource[Self](
                cls, cli_prog_name=f"usher {cls.program}", add_argument_method=_add_argument
            )
            return CliApp.run(
                cls, cli_args=list(arguments), cli_settings_source=flags, cli_cmd_method_name="ignored_method"
            )
        except ValidationError as error:
            raise LocalError(f"usher {cls.program}: {describe(error)}", f"see `usher {cls.program} --help`") from None
        except SettingsError as error:
            fault = str(error).removeprefix("error parsing CLI: ")
            raise LocalError(f"usher {cls.program}: {fault}", f"see `usher {cls.program} --help`") from None


_VALUE_NAMES = {
    "str": "TEXT",
    "tuple[str,...]": "TEXT",
    "int": "N",
    "float": "N",
    "Path": "FILE",
    "SecretStr": "SECRET",
}


def _add_argument(parser: argparse.ArgumentParser, *names: str, **options: Any) -> argparse.Action:
    """Add a flag whose help speaks of texts, numbers and files, not of Python types."""
    if options.get("metavar") in _VALUE_NAMES:
        options["metavar"] = _VALUE_NAMES[options["metavar"]]
    if isinstance(options.get("help"), str):
        options["help"] = options["help"].replace(" (default: None)", "").replace(" (default: ())", "")
    return parser.add_argument(*names, **options)


def announce(program: str, **facts: Any) -> str:
    """Return the one JSON line that a program prints on stdout when it is ready to work."""
    return json.dumps({"ready": True, "program": program, **facts}, separators=(",", ":"))
