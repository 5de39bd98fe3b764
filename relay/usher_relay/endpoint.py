"""How the data path names the other end of a hop."""

from typing import TypeAlias

Endpoint: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
"""A socket address in the form in which the sockets towards transceivers and peers report their senders."""
