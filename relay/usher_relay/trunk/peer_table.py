"""What the control side tells the data path of other clusters: where each is reached, and which clients go where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class PeerAddresses:
    """How one peer is reached: its (IP, port) addresses, and for each of the 64 places the index of one of them."""

    addresses: tuple[tuple[str, int], ...]
    places: tuple[int, ...]


PeerTable: TypeAlias = Mapping[int, PeerAddresses]
"""By cluster id."""
