"""Settings of `usher up`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, model_validator

from usher_cli.wan.duration import Duration
from usher_core.errors import LocalError
from usher_core.ids import is_loopback_host, join_host_port, split_host_port
from usher_core.peers import MAX_ENDPOINTS
from usher_core.settings import HostPort, ProgramSettings, TextList

MAX_RELAYS = 16
MAX_TRANSCEIVERS = 64
MAX_REGIONS = 8
_MAX_PORT = 0xFFFF


class UpSettings(ProgramSettings):
    """Start relays, transceivers and signaling on this machine; restart what dies; print `ready URL`."""

    program: ClassVar[str] = "up"

    http: HostPort = Field(
        default="127.0.0.1:8080",
        description="HOST:PORT of the HTTP API and the page; port 0 picks one; beyond loopback --api-key is needed. "
        "Further ingress points have the ports behind it",
    )
    udp: HostPort = Field(
        default="0.0.0.0:3478",
        description="HOST:PORT of the one UDP port that all relays of an ingress point share; port 0 picks one. "
        "Further ingress points have the ports behind it",
    )
    advertise: TextList = Field(
        default=(),
        description="HOST or HOST:PORT that answers name, repeatable; "
        "default: the address of --udp, or 127.0.0.1 and this machine's primary address",
    )
    relays: int = Field(
        default=1, ge=1, le=MAX_RELAYS, description="number of relays, in each region; they share the UDP port"
    )
    transceivers: int = Field(
        default=1, ge=1, le=MAX_TRANSCEIVERS, description="number of transceivers, in each cluster"
    )
    clusters: int = Field(
        default=1,
        ge=1,
        le=MAX_REGIONS,
        description="number of clusters: 2 are those of region-1 and region-2, whose relays reach each other by trunks",
    )
    ingress: int = Field(
        default=1,
        ge=1,
        le=MAX_REGIONS,
        description="number of regions where calls enter, from region-1 on, each with signaling and a UDP port of its "
        "own; one beyond --clusters has relays and no transceivers",
    )
    wan: Duration | None = Field(
        default=None,
        description="round trip between regions, such as 40ms: packets wait half of it each way, on trunks and between "
        "a caller and the far ingress. None: all regions are as near as this machine",
    )
    backend: str = Field(default="echo", min_length=1, max_length=64, description="what answers calls: echo, parrot, …")
    engine: Literal["auto", "python", "native"] = Field(
        default="auto", description="data path of the relays; auto takes native where it is installed"
    )
    api_key: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="key that callers must present as Bearer; none: anybody on this machine may call",
    )
    state_file: Path | None = Field(
        default=None, description="JSON file that names addresses and processes; rewritten at each restart"
    )

    @property
    def regions(self) -> int:
        """Number of regions: the larger one of clusters and ingress points."""
        return max(self.clusters, self.ingress)

    def udp_of(self, region: int) -> str:
        """`HOST:PORT` of the ingress point of a region, counted from 1."""
        return _moved(self.udp, region - 1)

    def http_of(self, region: int) -> str:
        """`HOST:PORT` of the HTTP API of a region, counted from 1."""
        return _moved(self.http, region - 1)

    @model_validator(mode="after")
    def _needs_a_key_beyond_loopback(self) -> Self:
        host, _ = split_host_port(self.http)
        if self.api_key is None and not is_loopback_host(host):
            raise ValueError(f"--http {self.http} can be reached from elsewhere, so --api-key is needed")
        return self

    @model_validator(mode="after")
    def _regions_fit(self) -> Self:
        if self.regions == 1:
            if self.wan is not None:
                raise ValueError(f"--wan {self.wan} is between regions, and there is one: add --clusters 2 --ingress 2")
            return self
        if self.relays > MAX_ENDPOINTS:
            raise ValueError(f"--relays {self.relays}: a cluster can be reached by {MAX_ENDPOINTS} relays of another")
        for flag, address in (("--udp", self.udp), ("--http", self.http)):
            _, port = split_host_port(address)
            if port and port + self.ingress - 1 > _MAX_PORT:
                raise ValueError(f"{flag} {address}: there are not {self.ingress} ports from there on")
        if self.ingress > 1:
            for text in self.advertise:
                if _names_a_port(text):
                    raise ValueError(f"--advertise {text}: each ingress point has a port of its own, so give HOST only")
        return self


def region_name(region: int) -> str:
    """Return the name of a region, counted from 1."""
    return f"region-{region}"


def _moved(address: str, by: int) -> str:
    """Return an address some ports further; port 0 stays."""
    host, port = split_host_port(address)
    return join_host_port(host, port + by if port else 0)


def _names_a_port(text: str) -> bool:
    try:
        return split_host_port(text, 0)[1] != 0
    except LocalError:
        return False  # said later, by who resolves it
