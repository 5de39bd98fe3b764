"""`usher wan`'s link as tests need it: it stands between a client and a relay, as NAT and as bad network.

A change of the outer port is what a NAT does when its mapping is lost: packets to the old port vanish. Tests that
record or steal packets override `from_client` and `to_client`.
"""

from __future__ import annotations

from usher_cli.wan.link import Address, UdpLink, Weather

__all__ = ["Address", "UdpProxy", "Weather"]


class UdpProxy(UdpLink):
    """A link whose outer side can be moved and forged."""

    @property
    def outer_ports(self) -> list[int]:
        """The ports that the relay sees."""
        return [outer.sock.getsockname()[1] for outer in self._outer.values()]

    def rebind(self) -> None:
        """Give each client a new outer port; the old ones are dead at once."""
        for client, old in list(self._outer.items()):
            self._outer[client] = self._open(client)
            self._close(old.sock)

    def send_as_client(self, packet: bytes) -> None:
        """Send to the target from the address of each client, as somebody who forges it would."""
        for client in self._outer:
            self._send(client, packet)
