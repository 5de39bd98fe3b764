"""Whole numbers in text that comes from outside."""

from __future__ import annotations


def read_decimal(text: str, most: int, least: int = 0) -> int | None:
    """Return the number that `text` spells in ASCII digits and nothing else, None unless it is within least..most.

    Text with more digits than `most` has is none either, whatever its leading zeros: it is not looked at any further,
    for `int` takes time that grows with the square of the length, and raises from 4,301 digits on.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None
    number = int(text)
    return number if least <= number <= most else None
