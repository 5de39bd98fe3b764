"""What the control side tells the data path of other clusters: where each is reached, and which clients go where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

SOCKETS_TO_PEERS: Final = 4
"""Source ports that a relay sends to peers from, at least: their kernels spread what comes over data threads by it."""


@dataclass(frozen=True, slots=True)
class PeerAddresses:
    """How one peer is reached: its (IP, port) addresses, and for each of the 64 places the index of one of them."""

    addresses: tuple[tuple[str, int], ...]
    places: tuple[int, ...]


PeerTable: TypeAlias = Mapping[int, PeerAddresses]
"""By cluster id."""


def reachable(peer: PeerAddresses, *, is_ipv6: bool) -> PeerAddresses | None:
    """Return a peer with only those addresses that a socket reaches; IPv6 sockets reach both families.

    The places of the others go round among those. None when there are none.
    """
    kept = [number for number, (host, _) in enumerate(peer.addresses) if is_ipv6 or ":" not in host]
    if not kept:
        return None
    index = {number: at for at, number in enumerate(kept)}
    places = tuple(index.get(number, place % len(kept)) for place, number in enumerate(peer.places))
    return PeerAddresses(tuple(peer.addresses[number] for number in kept), places)
