"""How a source is that is read again and again: the route table's, the keys'."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source is now.

    `loaded`: it was good at least once. `age`: seconds since it was last known to be good (0 or a little more while it
    is), None before the first time. `fault`: what is wrong now, or "".
    """

    name: str
    loaded: bool
    age: float | None
    fault: str
