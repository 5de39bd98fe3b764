"""A call in virtual time: a client that speaks and listens, two links that lose and delay, and a far end."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from benches.voice.ends import End
from tests.media_network import Arrival
from usher_transceiver.media.frame import FRAME_SECONDS

BEST_DELAY = 0.02
"""Seconds that a packet takes at least, one way."""
_CLIENT_PHASE, _FAR_PHASE = 0.003, 0.011


@dataclass(frozen=True, slots=True)
class Weather:
    """Of a link: the share of packets lost, each for itself, and the most that one is delayed beyond the least."""

    loss: float
    jitter: float


class Link:
    """One way."""

    def __init__(self, weather: Weather, random: Random, to: End) -> None:
        self._weather = weather
        self._random = random
        self._to = to
        self._flying: list[Arrival] = []

    def send(self, now: float, packet: bytes) -> None:
        # Both are drawn for every packet, so that one far end's call has the same weather as another's.
        lost = self._random.random() < self._weather.loss
        delay = BEST_DELAY + self._random.uniform(0, self._weather.jitter)
        if not lost:
            heappush(self._flying, Arrival(now + delay, packet))

    def deliver(self, now: float) -> None:
        while self._flying and self._flying[0].at <= now:
            arrival = heappop(self._flying)
            self._to.receive(arrival.at, arrival.packet)


def run(speech: Sequence[Arrival], ear: End, far: End, weather: Weather, seconds: float, seed: int) -> None:
    """The client sends `speech` and hears with `ear`, which also writes its reports; `far` is the other side."""
    up = Link(weather, Random(seed), far)
    reports_up = Link(weather, Random(seed + 1000), far)
    down = Link(weather, Random(seed + 2000), ear)
    for index in range(round(seconds / FRAME_SECONDS)):
        now = index * FRAME_SECONDS + _CLIENT_PHASE
        down.deliver(now)
        if index < len(speech):
            up.send(now, speech[index].packet)
        for packet in ear.tick(now):
            reports_up.send(now, packet)
        now = index * FRAME_SECONDS + _FAR_PHASE
        up.deliver(now)
        reports_up.deliver(now)
        for packet in far.tick(now):
            down.send(now, packet)
