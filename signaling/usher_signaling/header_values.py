"""Values of HTTP headers that one side sent and another gets. No I/O."""

from __future__ import annotations

import re

# RFC 9110 section 5.5 without obs-text: visible ASCII, blanks between.
_VALUE = re.compile(r"[!-~](?:[\t -~]*[!-~])?")


def sendable(value: str | None, limit: int) -> str | None:
    """Return a value of at most `limit` characters as it can be sent on, None where it can't."""
    stripped = (value or "").strip(" \t")
    return stripped if len(stripped) <= limit and _VALUE.fullmatch(stripped) else None
