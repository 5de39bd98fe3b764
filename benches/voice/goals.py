"""What usher's voice has to reach in the bench, and whether this run did."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benches.voice.rows import Row

_SAME: Final = 0.002
"""Of STOI. Of calls without loss all packets arrive: the same ones here and there, or ones of the same bitrate."""
_COARSER: Final = 0.005
"""Of STOI, that clients without loss may hear less of our default, 64 kbit/s, than of aiortc's 96."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A value that is to be no more than another."""

    name: str
    value: float
    most: float

    @property
    def met(self) -> bool:
        """Tell whether it was reached."""
        return self.value <= self.most

    def as_json(self) -> dict[str, object]:
        """Return it with its verdict."""
        return {**asdict(self), "met": self.met}


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return all goals that these rows can tell."""
    return [*_on_a_bad_network(rows), *_against_stock(rows)]


def _on_a_bad_network(rows: Sequence[Row]) -> Iterator[Goal]:
    for row in rows:
        if row.far_end == "usher" and (row.loss_percent, row.jitter_ms) == (5, 30):
            yield Goal(f"longest stall at 5 % and 30 ms, heard by the {row.heard_by}, ms", row.stall_ms, 60)
            yield Goal(f"growth of the delay at 5 % and 30 ms, heard by the {row.heard_by}, ms", row.growth_ms, 5)


def _against_stock(rows: Sequence[Row]) -> Iterator[Goal]:
    stock = {(row.heard_by, row.loss_percent, row.jitter_ms): row for row in rows if row.far_end == "aiortc"}
    for row in rows:
        if row.far_end not in ("usher", "usher-64k"):
            continue
        other = stock[row.heard_by, row.loss_percent, row.jitter_ms]
        allowed = 0.0
        if not row.loss_percent:
            allowed = _COARSER if row.far_end == "usher-64k" else _SAME
        at = f"{row.loss_percent} % and {row.jitter_ms} ms"
        name = f"stock's STOI less that of {row.far_end} at {at}, heard by the {row.heard_by}"
        yield Goal(name, round(other.stoi - row.stoi, 4), allowed)
        if row.heard_by == "backend":
            name = f"usher's delay less stock's at {row.loss_percent} % and {row.jitter_ms} ms, ms"
            yield Goal(name, round(row.delay_ms - other.delay_ms, 1), 0)
