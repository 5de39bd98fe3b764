"""Errors that say whose fault they are.

`RemoteError`: bytes from outside are wrong. It is expected, counted by its bounded `reason`, and never a traceback.
`LocalError`: this program, its settings or its files are wrong. A person has to act, so the text says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Only its type: `usher --help` imports this module and need not wait for pydantic.
    from pydantic import ValidationError


class UsherError(Exception):
    """Base of all errors that usher raises on purpose."""


class LocalError(UsherError):
    """Our own settings, files or code are wrong.

    Args:
        message: what was expected and what was found.
        fix: what a person can do about it; may be empty.
    """

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(f"{message}; {fix}" if fix else message)
        self.message = message
        self.fix = fix


class RemoteError(UsherError):
    """A peer sent something that is not what the protocol allows.

    Args:
        reason: a short constant such as `stun_length`; it becomes a metric label, so it holds no data from outside.
        message: what was expected, for a person; it may quote the input, shortened.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def describe(error: ValidationError | RecursionError) -> str:
    """Return the first fault of a validation error in one line: where, and what was expected."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    what = str(fault["msg"]).removeprefix("Value error, ")
    return f"{where}: {what}" if where else what
