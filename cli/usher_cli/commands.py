"""The commands of `usher`: a group with one sub-command per program.

A sub-command is imported only when it is called, so that `usher --help` and each program start quickly. `relay`,
`transceiver`, `signaling`, `operator`, `up` and `wan` take the flags of their settings class; the others are plain
click commands.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from usher_cli.help_flags import HELP_FLAGS
from usher_core.errors import LocalError, RemoteError

STATUS_OF_INTERRUPT = 130
"""128 and the number of SIGINT, as shells count it."""


@dataclass(frozen=True, slots=True)
class _Program:
    """A program with a settings class: where the two are, as `module:name`."""

    help: str
    settings: str
    run: str


@dataclass(frozen=True, slots=True)
class _Command:
    """A click command: where it is, as `module:name`."""

    help: str
    command: str


_COMMANDS: dict[str, _Program | _Command] = {
    "up": _Program(
        "Start everything on this machine and print `ready URL`.",
        "usher_cli.up.settings:UpSettings",
        "usher_cli.up.main:run",
    ),
    "call": _Command("Place real calls and report times, loss and what came back.", "usher_cli.call.command:call"),
    "relay": _Program(
        "Run a relay: one UDP port, no state.", "usher_relay.settings:RelaySettings", "usher_relay.main:run"
    ),
    "transceiver": _Program(
        "Run a transceiver: the owner of sessions.",
        "usher_transceiver.settings:TransceiverSettings",
        "usher_transceiver.main:run",
    ),
    "signaling": _Program(
        "Run signaling: the HTTP API and the demo page.",
        "usher_signaling.settings:SignalingSettings",
        "usher_signaling.main:run",
    ),
    "operator": _Program(
        "Run the operator: pools in Kubernetes become relays and transceivers.",
        "usher_operator.settings:OperatorSettings",
        "usher_operator.main:run",
    ),
    "wan": _Program(
        "Carry UDP as late and as lossy as between two regions, for trials.",
        "usher_cli.wan.settings:WanSettings",
        "usher_cli.wan.main:run",
    ),
    "keys": _Command("Make and look at key files.", "usher_cli.keys_command:keys"),
    "ufrag": _Command("Explain an ICE username fragment.", "usher_cli.ufrag_command:ufrag"),
}


class _LocalFault(click.ClickException):
    """An error of usher as one line on stderr; never a traceback."""

    exit_code = 2

    def __init__(self, error: LocalError | RemoteError) -> None:
        super().__init__(" ".join(str(error).split()))

    def show(self, file: Any = None) -> None:
        message = self.message if self.message.startswith(("usher ", "usher:")) else f"usher: {self.message}"
        click.echo(message, err=True, file=file)


class _RemoteFault(_LocalFault):
    """The same, when what came from outside is wrong."""

    exit_code = 1


class _LazyGroup(click.Group):
    """Knows its commands by name and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        match _COMMANDS.get(cmd_name):
            case _Program() as program:
                return _program_command(cmd_name, program)
            case _Command(command=where):
                command = _load(where)
                assert isinstance(command, click.Command)
                return command
            case None:
                return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click would import every command for its help text.
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in _COMMANDS.items()])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _one_line():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line():
            return super().invoke(ctx)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Tell errors, those of click too, in the one form of usher; an interrupt ends quietly."""
    try:
        yield
    except LocalError as error:
        raise _LocalFault(error) from None
    except RemoteError as error:
        raise _RemoteFault(error) from None
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "usher"
        message = error.format_message().rstrip(".")
        raise _LocalFault(LocalError(f"{command}: {message}", f"see `{command} --help`")) from None
    except KeyboardInterrupt:
        sys.exit(STATUS_OF_INTERRUPT)


def _load(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def _program_command(name: str, program: _Program) -> click.Command:
    """Return a command that hands all its arguments, `--help` too, to the settings class."""

    def start(arguments: tuple[str, ...]) -> None:
        settings = _load(program.settings).from_command_line(arguments)
        _load(program.run)(settings)

    return click.Command(
        name,
        callback=start,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )


@click.command(cls=_LazyGroup, no_args_is_help=False, context_settings=HELP_FLAGS)
@click.version_option(package_name="usher", prog_name="usher")
def usher() -> None:
    """usher: WebRTC for voice AI, on one public UDP port.

    `usher COMMAND --help` lists the flags of a command.
    """
