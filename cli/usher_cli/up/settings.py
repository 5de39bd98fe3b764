"""Settings of `usher up`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, model_validator

from usher_core.ids import is_loopback_host, split_host_port
from usher_core.settings import HostPort, ProgramSettings, TextList

MAX_RELAYS = 16
MAX_TRANSCEIVERS = 64


class UpSettings(ProgramSettings):
    """Start relays, transceivers and signaling on this machine; restart what dies; print `ready URL`."""

    program: ClassVar[str] = "up"

    http: HostPort = Field(
        default="127.0.0.1:8080",
        description="HOST:PORT of the HTTP API and the page; port 0 picks one; beyond loopback --api-key is needed",
    )
    udp: HostPort = Field(
        default="0.0.0.0:3478",
        description="HOST:PORT of the one UDP port that all relays share; port 0 picks one",
    )
    advertise: TextList = Field(
        default=(),
        description="HOST or HOST:PORT that answers name, repeatable; "
        "default: the address of --udp, or 127.0.0.1 and this machine's primary address",
    )
    relays: int = Field(default=1, ge=1, le=MAX_RELAYS, description="number of relays; they share the UDP port")
    transceivers: int = Field(default=1, ge=1, le=MAX_TRANSCEIVERS, description="number of transceivers")
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

    @model_validator(mode="after")
    def _needs_a_key_beyond_loopback(self) -> Self:
        host, _ = split_host_port(self.http)
        if self.api_key is None and not is_loopback_host(host):
            raise ValueError(f"--http {self.http} can be reached from elsewhere, so --api-key is needed")
        return self
