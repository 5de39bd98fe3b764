"""PROBE and PROBE-REPLY (docs/wire.md section 3): the time to a peer's relay, and which keys it holds.

Payload: nonce 8, sender's time in µs 8, then n and n letters of ice keys, m and m ids of hop keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from usher_core.keys import HeldKey

PROBED_LENGTH: Final = 16
"""Nonce and time, which go back as they came."""
_MOST: Final = 255


def held_ids(held: Iterable[HeldKey]) -> bytes:
    """Return the key ids of a PROBE; at most 255 of a kind are named."""
    keys = tuple(held)
    letters = b"".join(sorted({key.id.encode("ascii") for key in keys if key.list == "ice"}))[:_MOST]
    numbers = bytes(sorted({int(key.id) for key in keys if key.list == "hop"}))[:_MOST]
    return bytes((len(letters),)) + letters + bytes((len(numbers),)) + numbers
