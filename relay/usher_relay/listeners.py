"""What a listener is: an id and a local address that clients send to (docs/wire.md section 3)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from usher_core.decimals import read_decimal
from usher_core.errors import LocalError
from usher_core.ids import join_host_port, pack_address, split_host_port

MAX_LISTENER_ID = 0xFFFF


@dataclass(frozen=True, slots=True)
class Listener:
    """A public UDP listener. The id implies address family and transport; port 0 lets the kernel choose."""

    id: int
    host: str
    port: int

    @property
    def is_ipv6(self) -> bool:
        """Whether it serves IPv6 clients (then it serves no others)."""
        return ":" in self.host

    @property
    def is_wildcard(self) -> bool:
        """Whether it takes packets for any local address, so that answers have to name theirs."""
        return ipaddress.ip_address(self.host.partition("%")[0]).is_unspecified

    def __str__(self) -> str:
        """Return `ID=HOST:PORT`."""
        return f"{self.id}={join_host_port(self.host, self.port)}"


def parse_listener(text: str) -> Listener:
    """Parse `ID=HOST:PORT`. Raises LocalError that says what is wrong with it."""
    id_text, equals, address = text.partition("=")
    number = read_decimal(id_text, MAX_LISTENER_ID)
    if not equals or number is None:
        raise LocalError(f"listener {text!r} has no id", f"write ID=HOST:PORT with an id within 0..{MAX_LISTENER_ID}")
    host, port = split_host_port(address)
    try:
        pack_address(host)
    except ValueError:
        raise LocalError(f"{host!r} in listener {text!r} is no IP address", "write ID=IP:PORT") from None
    return Listener(number, host, port)
