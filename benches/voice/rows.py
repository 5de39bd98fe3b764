"""The calls of the bench, and what was heard in them."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Final, Literal

from benches.voice.call import Weather, run
from benches.voice.ends import STOCK_BITRATE, End, StockEnd, UsherEnd
from benches.voice.score import Score, score
from benches.voice.speech import browser_packets
from usher_transceiver.media.codec import Codec, EncoderSettings

Side = Literal["backend", "client"]
FarEnd = Literal["usher", "usher-64k", "usher-fec", "usher-plain", "aiortc"]
"""``usher``: the client offers what Chromium offers, in-band FEC and RED. ``usher-fec``: FEC alone, as Firefox.
``usher-plain``: neither, as aiortc. ``aiortc``: the same client, and stock aiortc, which answers with neither.

All send what stock aiortc sends, 96 kbit/s, but for ``usher-64k``: the first with our default.
"""

FAR_ENDS: Final[tuple[FarEnd, ...]] = ("usher", "usher-64k", "usher-fec", "usher-plain", "aiortc")
_TO_CLIENT: Final = ("usher", "usher-64k", "usher-plain", "aiortc")
"""Towards the client FEC alone is as neither."""
_TO_BACKEND: Final = ("usher", "usher-fec", "usher-plain", "aiortc")
"""What we send is not heard there."""
LOSSES: Final = (0.0, 0.02, 0.05, 0.10)
JITTERS: Final = (0.0, 0.030, 0.060)
_REST: Final = 1.0
"""Seconds after the speech, in which late packets are still heard."""


@dataclass(frozen=True, slots=True)
class Row:
    """One side of one kind of call, the mean of its seeds; of the stall the longest. Times in milliseconds."""

    heard_by: Side
    far_end: FarEnd
    loss_percent: int
    jitter_ms: int
    stoi: float
    delay_ms: float
    growth_ms: float
    stall_ms: float

    def as_json(self) -> dict[str, object]:
        """Return the values by name."""
        return asdict(self)


def rows(
    codec: Codec, pcm: bytes, seeds: range, losses: tuple[float, ...] = LOSSES, jitters: tuple[float, ...] = JITTERS
) -> Iterator[Row]:
    """Hold all calls, each far end in the same weather."""
    for loss in losses:
        for jitter in jitters:
            for far_end in FAR_ENDS:
                calls = [_call(codec, pcm, far_end, Weather(loss, jitter), seed) for seed in seeds]
                if far_end in _TO_BACKEND:
                    yield _row("backend", far_end, loss, jitter, [backend for backend, _ in calls])
                if far_end in _TO_CLIENT:
                    yield _row("client", far_end, loss, jitter, [client for _, client in calls])


def _call(codec: Codec, pcm: bytes, far_end: FarEnd, weather: Weather, seed: int) -> tuple[Score, Score]:
    red = far_end in ("usher", "usher-64k")
    fec = red or far_end == "usher-fec"
    encoder = EncoderSettings() if far_end == "usher-64k" else EncoderSettings(bitrate=STOCK_BITRATE)
    packets = browser_packets(pcm, loss_percent=round(weather.loss * 100), fec=fec, red=red)
    far: End = StockEnd(pcm) if far_end == "aiortc" else UsherEnd(codec, pcm, red=red, encoder=encoder)
    ear = UsherEnd(codec, red=red)
    run(packets, ear, far, weather, len(pcm) / 48_000 + _REST, seed)
    return score(pcm, 0.0, far.heard, far.heard_from), score(pcm, 0.0, ear.heard, ear.heard_from)


def _row(side: Side, far_end: FarEnd, loss: float, jitter: float, scores: list[Score]) -> Row:
    return Row(
        side,
        far_end,
        round(loss * 100),
        round(jitter * 1000),
        round(mean(one.stoi for one in scores), 4),
        round(mean(one.delay for one in scores) * 1000, 1),
        round(mean(one.growth for one in scores) * 1000, 1),
        round(max(one.stall for one in scores) * 1000, 1),
    )
