"""Errors that say whose fault they are.

`RemoteError`: bytes from outside are wrong. It is expected, counted by its bounded `reason`, and never a traceback.
`LocalError`: this program, its settings or its files are wrong. A person has to act, so the text says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Only its type: `usher --help` imports this module and need not wait for pydantic.
    from pydantic import ValidationError

MAX_FIELD_NAME = 80
"""Characters of a field that are quoted: a name that nobody knows may be as long as its file."""

LONGEST_PUBLIC_NAME = 20
"""The same where secrets stand beside: a key in the place of a name is longer, 24 characters of Base64 or more."""


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


def describe(error: ValidationError | RecursionError, *, secrets: bool = False) -> str:
    """Return the first fault of a validation error in one line: where, and what was expected.

    An unknown field comes before all else, with the one that is missing beside it: most often that one, misspelt.
    Of a text that holds `secrets` no part is quoted that may be one of them: of a longer name only its length is said.
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    faults = error.errors(include_url=False, include_input=False)
    unknown = next((fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"), None)
    if unknown is None:
        return _line(faults[0]["loc"], faults[0]["msg"], secrets)
    missing = [fault["loc"] for fault in faults if fault["type"] == "missing" and fault["loc"][:-1] == unknown[:-1]]
    named = [(unknown, "unknown field"), *((where, "Field required") for where in missing[:1])]
    return "; ".join(_line(where, what, secrets) for where, what in named)


def _line(where: tuple[int | str, ...], what: str, secrets: bool) -> str:
    path = ".".join(_name(str(part), secrets) for part in where)
    what = what.removeprefix("Value error, ")
    return f"{path}: {what}" if path else what


def _name(part: str, secrets: bool) -> str:
    return f"({len(part)} characters)" if secrets and len(part) > LONGEST_PUBLIC_NAME else part[:MAX_FIELD_NAME]
