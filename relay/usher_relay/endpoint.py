"""How the data path names the other end of a hop."""

from typing import TypeAlias

from usher_core.ids import pack_address, unpack_address

Endpoint: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
"""A socket address in the form in which the sockets towards transceivers and peers report their senders."""


def as_source(host: str, port: int) -> tuple[str, int]:
    """Return an address in the one spelling in which the sockets of probes report it. Raises ValueError for no IP."""
    return unpack_address(pack_address(host)), port
