"""Which endpoint of a peer a flow goes to: weighted rendezvous hashing over a fixed number of places.

Rules:
* A flow has one of 64 places by the hash of its path key; each place has one endpoint. So a flow stays with its
  endpoint while that one is up, without any memory of it.
* When an endpoint goes, only the places that were its own go to others; when it is back, the same ones return.
* An endpoint's share of the places follows its weight.

Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates" (1998); weights by the logarithm
method (Schindelhauer and Schomaker, 2005).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Final

PLACES: Final = 64


def place_endpoints(weights: Mapping[str, float]) -> tuple[str, ...]:
    """Return the endpoint of each of the 64 places.

    Args:
        weights: of the endpoints that are up, by name; the same names give the same places in every process.

    Raises ValueError without endpoints.
    """
    if not weights:
        raise ValueError("no endpoint to choose from")
    return tuple(max(weights, key=lambda name: (_score(name, place, weights[name]), name)) for place in range(PLACES))


def _score(name: str, place: int, weight: float) -> float:
    digest = hashlib.blake2b(name.encode(), digest_size=8, salt=place.to_bytes(2)).digest()
    # Within (0, 1), never at its ends, where the logarithm is 0 or none.
    uniform = (int.from_bytes(digest) + 0.5) / 2**64
    return -weight / math.log(uniform)
