"""Where the route table comes from: one interface, several sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from usher_core.routes import RouteTable


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source is.

    `loaded`: it has given a table at least once. `age`: seconds since it was last known to be good (0 or a little more
    while it is), None before the first time. `fault`: what is wrong now, or "".
    """

    name: str
    loaded: bool
    age: float | None
    fault: str


class RouteSource(Protocol):
    """A source of the route table. When it is lost, the last good table stays in use."""

    async def run(self, publish: Callable[[RouteTable], None]) -> None:
        """Call `publish` with each new table, until cancelled. Never raises for what the source holds."""
        ...

    def status(self) -> SourceStatus:
        """Return how the source is now."""
        ...
