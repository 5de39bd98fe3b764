"""The peers file: other clusters, and where the relays of each take datagrams from ours (docs/wire.md, peers file)."""

from __future__ import annotations

import json
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from usher_core.errors import LocalError, describe
from usher_core.ids import MAX_CLUSTER, check_host_port, pack_address, split_host_port

MAX_PEERS = 64
MAX_TRUNKS = 2 * MAX_PEERS
"""Of one relay: to its peers, and of the clusters whose clients enter there for calls here."""
MAX_ENDPOINTS = 8
MAX_WEIGHT = 100
# RFC 1123 section 2.1; a dot at the end is allowed, as in zone files.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,254}}$)(?:{_LABEL}\.)*{_LABEL}\.?", re.ASCII)


class Endpoint(BaseModel):
    """One way to a peer: the trunk address of one of its relays, or a name that stands for several."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = Field(max_length=260, description="IP:PORT or NAME:PORT; a name may have several addresses")
    weight: int = Field(default=1, ge=1, le=MAX_WEIGHT, description="share of the flows beside the other endpoints")

    @field_validator("address")
    @classmethod
    def _is_host_and_port(cls, value: str) -> str:
        host, port = split_host_port(check_host_port(value))
        if port == 0:
            raise ValueError("port 0 is no address")
        if not is_ip(host) and not _NAME.fullmatch(host):
            raise ValueError(f"{host[:80]!r} is neither an IP address nor a host name")
        return value

    @property
    def host(self) -> str:
        """IP address or name."""
        return split_host_port(self.address)[0]

    @property
    def port(self) -> int:
        """UDP port."""
        return split_host_port(self.address)[1]


class Peer(BaseModel):
    """Another cluster. Its sessions are reached through its relays alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: int = Field(ge=1, le=MAX_CLUSTER, description="its cluster id, as in the ufrags of its sessions")
    endpoints: tuple[Endpoint, ...] = Field(min_length=1, max_length=MAX_ENDPOINTS)


class PeerFile(BaseModel):
    """The peers file, version 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1]
    peers: tuple[Peer, ...] = Field(max_length=MAX_PEERS)

    @model_validator(mode="after")
    def _clusters_are_unique(self) -> PeerFile:
        clusters = [peer.cluster for peer in self.peers]
        if len(set(clusters)) < len(clusters):
            raise ValueError("one cluster stands twice; give each all its endpoints in one entry")
        return self


def is_ip(host: str) -> bool:
    """Tell whether a host is an IP address without a zone."""
    try:
        pack_address(host)
    except ValueError:
        return False
    return "%" not in host


def parse_peer_file(text: str) -> PeerFile:
    """Parse the JSON of a peers file. Raises LocalError that names the field at fault."""
    try:
        return PeerFile.model_validate(json.loads(text))
    except (ValidationError, RecursionError) as error:
        raise LocalError(f"the peers file is wrong: {describe(error)}", "see docs/wire.md, peers file") from None
    except ValueError as error:  # JSONDecodeError, or a number of more than 4300 digits
        raise LocalError(f"the peers file is no JSON: {error}") from None
