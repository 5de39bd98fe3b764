"""Counters that wrap on the wire and must not wrap here."""


class Unwrapper:
    """Turns a counter of `bits` bits into one that never wraps, nearest to the last value it returned."""

    __slots__ = ("_half", "_mask", "last")

    def __init__(self, bits: int, first: int) -> None:
        self._half = 1 << bits - 1
        self._mask = (1 << bits) - 1
        self.last = first

    def distance(self, value: int) -> int:
        """Return how far `value` is ahead of the last one; negative is behind."""
        return ((value - self.last + self._half) & self._mask) - self._half

    def unwrap(self, value: int) -> int:
        """Return the unwrapped `value`, which becomes the last one also when it is behind."""
        self.last += self.distance(value)
        return self.last
