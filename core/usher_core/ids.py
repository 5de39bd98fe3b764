"""The names of things that packets carry: routes and client addresses."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import NamedTuple

from usher_core.decimals import read_decimal
from usher_core.errors import LocalError

MAX_CLUSTER = 0xFFFF
MAX_POD = 0xFFFF_FFFF
MAX_WORKER = 0xFF
V4_MAPPED_PREFIX = bytes(10) + b"\xff\xff"


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """Which transceiver worker owns a session: cluster (1..65535; 0 is reserved), pod (0..2^32-1), worker (0..255)."""

    cluster: int
    pod: int
    worker: int = 0

    def __post_init__(self) -> None:
        """Check the ranges. Raises LocalError."""
        if not 1 <= self.cluster <= MAX_CLUSTER:
            raise LocalError(f"cluster id {self.cluster} is not within 1..{MAX_CLUSTER}", "0 is reserved")
        if not 0 <= self.pod <= MAX_POD:
            raise LocalError(f"pod id {self.pod} is not within 0..{MAX_POD}")
        if not 0 <= self.worker <= MAX_WORKER:
            raise LocalError(f"worker id {self.worker} is not within 0..{MAX_WORKER}")

    def __str__(self) -> str:
        """Return `cluster/pod/worker`, the form used in logs and on pages."""
        return f"{self.cluster}/{self.pod}/{self.worker}"


class ClientPath(NamedTuple):
    """Where a client is, as a relay saw it: address (16 bytes, IPv4 mapped), port, and the listener it came through.

    The listener id implies address family, transport and our public address (wire.md section 3).
    A tuple, since one is made and looked up for every packet: that takes a dataclass three times as long.
    """

    address: bytes
    port: int
    listener: int

    @property
    def host(self) -> str:
        """The address as text, IPv4 without its mapping."""
        return unpack_address(self.address)

    @property
    def is_ipv6(self) -> bool:
        """Whether the client speaks IPv6."""
        return self.address[:12] != V4_MAPPED_PREFIX

    def __str__(self) -> str:
        """Return `host:port via listener n`."""
        host = f"[{self.host}]" if self.is_ipv6 else self.host
        return f"{host}:{self.port} via listener {self.listener}"


def is_loopback_host(host: str) -> bool:
    """Tell whether a host, without port and brackets, is this machine: an address of loopback, or `localhost`."""
    name = host.lower().removesuffix(".")
    # RFC 6761 section 6.3: localhost and all names below it are loopback; browsers resolve them themselves.
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def pack_address(host: str) -> bytes:
    """Return the 16 bytes of an IP address, IPv4 as v4-mapped (RFC 4291 section 2.5.5.2); a zone id is cut off.

    Raises ValueError when `host` is no IP address.
    """
    parsed = ipaddress.ip_address(host.partition("%")[0])
    return parsed.packed if parsed.version == 6 else V4_MAPPED_PREFIX + parsed.packed


def unpack_address(address: bytes) -> str:
    """Return the text of 16 address bytes, v4-mapped ones as IPv4. Raises ValueError for another length."""
    if len(address) != 16:
        raise ValueError(f"an address has 16 bytes, not {len(address)}")
    if address[:12] == V4_MAPPED_PREFIX:
        return str(ipaddress.IPv4Address(address[12:]))
    return str(ipaddress.IPv6Address(address))


def split_host_port(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Split `HOST:PORT`, `[V6]:PORT` or, with a default port, `HOST`.

    Raises LocalError when the port is missing or not within 0..65535.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon or text.endswith("]") or (host.count(":") and not host.endswith("]")):
        host, port_text = text, ""
    if not port_text:
        if default_port is None:
            raise LocalError(f"{text!r} has no port", "write HOST:PORT, or [V6-ADDRESS]:PORT")
        return host.strip("[]"), default_port
    port = read_decimal(port_text, 0xFFFF)
    if port is None:
        raise LocalError(f"{port_text!r} in {text!r} is no port", "a port is a number within 0..65535")
    return host.strip("[]"), port


def check_host_port(value: str) -> str:
    """Return the text if `split_host_port` reads it. For validators: raises ValueError."""
    try:
        split_host_port(value)
    except LocalError as error:
        raise ValueError(str(error)) from None
    return value


def join_host_port(host: str, port: int) -> str:
    """Return `HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
