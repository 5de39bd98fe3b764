"""The program `usher`: the commands, and a quiet end by Ctrl-C at any moment."""

from __future__ import annotations

import signal


def main(arguments: list[str] | None = None) -> None:
    """Run `usher ARGUMENTS…`; without them, those of this process. Always ends by SystemExit, or by the signal.

    Python would raise KeyboardInterrupt wherever it is, in the middle of an import, say. So until a command watches for
    SIGINT itself, and again from the end of the command on, SIGINT just ends the process, as SIGTERM does.
    """
    # A shell lets what it starts in the background ignore SIGINT; that stays so.
    is_heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from usher_cli.commands import usher  # noqa: PLC0415  (takes a while, in which Ctrl-C may come)

    try:
        usher(args=arguments, prog_name="usher")
    finally:
        if is_heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
