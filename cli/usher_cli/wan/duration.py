"""Times as people write them: `40ms`, `0.5s`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

MAX_S = 10.0
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s)", re.ASCII)


def seconds(text: str) -> float:
    """Return the seconds of a text such as `40ms`. Raises ValueError that says what was expected."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is no time such as 40ms or 0.5s")
    value = float(found[1]) / (1000 if found[2] == "ms" else 1)
    if value > MAX_S:
        raise ValueError(f"at most {MAX_S:g}s is expected")
    return value


def _check(text: str) -> str:
    seconds(text)
    return text


Duration = Annotated[str, AfterValidator(_check)]
"""A number with `ms` or `s` behind it, at most 10 s."""
