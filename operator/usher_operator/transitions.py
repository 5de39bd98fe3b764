"""How often a Lease has changed hands: a count for people, which anybody who may write the Lease can set."""

from __future__ import annotations

from typing import Any

MOST = 2**31 - 1
"""The field is an int32; a Lease with more is refused."""


def next_transitions(before: Any) -> int:
    """Return the count after one more change: 0 after the highest one, and 1 after what is no count.

    Nothing rests on the count, so it must never keep a Lease from being taken.
    """
    count = before if type(before) is int and 0 <= before <= MOST else 0
    return count + 1 if count < MOST else 0
