"""The route table, and the file it can be read from.

Relays need route → UDP address; signaling the HTTP address and whether new calls may be placed. One file serves both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from usher_core.errors import LocalError, describe
from usher_core.ids import MAX_CLUSTER, MAX_POD, MAX_WORKER, Route, check_host_port, pack_address, split_host_port

MAX_ROUTES = 100_000
_BASE_URL = re.compile(
    r"https?://([\w.-]+|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?(/[!-~]*)?", re.ASCII | re.IGNORECASE
)


class Transceiver(BaseModel):
    """One transceiver worker as relays and signaling see it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: int = Field(ge=1, le=MAX_CLUSTER, description="cluster id, 0 is reserved")
    pod: int = Field(ge=0, le=MAX_POD, description="pod id, never used twice in a cluster")
    worker: int = Field(default=0, ge=0, le=MAX_WORKER)
    udp: str = Field(description="IP:PORT of the hop socket")
    http: str = Field(default="", description="base URL of the internal API; relays do not need it")
    placeable: bool = Field(
        default=True, description="whether new calls may be placed here; routing does not depend on it"
    )
    region: str = Field(default="", max_length=64)

    @field_validator("udp")
    @classmethod
    def _is_ip_and_port(cls, value: str) -> str:
        host, port = split_host_port(check_host_port(value))
        if "%" in host:
            # A zone means something on one host only, and this file is read by all.
            raise ValueError("an address with a zone can't be a transceiver's")
        pack_address(host)
        if port == 0:
            raise ValueError("port 0 is no address")
        return value

    @field_validator("http")
    @classmethod
    def _is_base_url(cls, value: str) -> str:
        found = _BASE_URL.fullmatch(value)
        if value and (found is None or not 0 < int(found["port"] or 80) <= 0xFFFF):
            raise ValueError(f"{value!r} is no base URL such as http://10.1.2.3:7280")
        return value

    @property
    def route(self) -> Route:
        """The route that names this worker."""
        return Route(self.cluster, self.pod, self.worker)

    @property
    def address(self) -> tuple[str, int]:
        """(IP, port) of the hop socket."""
        return split_host_port(self.udp)


class RouteFile(BaseModel):
    """The route file, version 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1]
    transceivers: tuple[Transceiver, ...] = Field(max_length=MAX_ROUTES)


class RouteTable(Mapping[Route, Transceiver]):
    """An immutable table: route → transceiver. Swapped as a whole when its source changes."""

    def __init__(self, transceivers: tuple[Transceiver, ...] = ()) -> None:
        self._by_route = {entry.route: entry for entry in transceivers}
        if len(self._by_route) != len(transceivers):
            raise LocalError("one route stands twice in the route table", "give each pod its own id")

    def __getitem__(self, route: Route) -> Transceiver:
        """Return the transceiver of `route`. Raises KeyError."""
        return self._by_route[route]

    def __iter__(self) -> Iterator[Route]:
        """Iterate over the routes."""
        return iter(self._by_route)

    def __len__(self) -> int:
        """Return the number of routes."""
        return len(self._by_route)


def parse_route_file(text: str) -> RouteTable:
    """Parse the JSON of a route file. Raises LocalError that names the field at fault."""
    try:
        parsed = RouteFile.model_validate(json.loads(text))
    except (ValidationError, RecursionError) as error:
        raise LocalError(f"the route file is wrong: {describe(error)}", "see docs/wire.md, route file") from None
    except ValueError as error:  # JSONDecodeError, or a number of more than 4300 digits
        raise LocalError(f"the route file is no JSON: {error}") from None
    return RouteTable(parsed.transceivers)
