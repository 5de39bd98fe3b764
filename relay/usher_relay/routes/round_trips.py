"""How far each of our transceivers is: the round trip of a slow PROBE, for people and for `usher call --trace`.

Rules:
* Each transceiver of the table is probed every 5 s, at random within 4 to 6, and no more than 100 of all in a second:
  of more than 500 each waits accordingly longer.
* An answer counts when it came from the route's own address, with its route, the MAC of a live local hop key, and the
  nonce of a probe of the last 5 s, once.
* The round trip is the median of the last 5 answers. It says nothing of whether the transceiver lives: that is for the
  route table to say.

No I/O, no clock: times are monotonic seconds.
"""

from __future__ import annotations

import heapq
import random
import secrets
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from usher_core.errors import RemoteError
from usher_core.ids import Route
from usher_core.keys import HopKey, KeyFile, index_by_id, newest_usable
from usher_relay.trunk.probe import NONCE_LENGTH, build_probe, held_ids, read_reply

EVERY_S: Final = 5.0
MOST_PER_SECOND: Final = 100
ANSWERED_WITHIN_S: Final = 5.0
JUDGED: Final = 5
_NOBODY: Final = held_ids((), (), ())
"""A transceiver is told no keys, and tells none: those it holds are asked for by HTTP."""


@dataclass(slots=True, eq=False)
class _Way:
    route: Route
    address: tuple[str, int]
    due_at: float = 0.0
    rtts: deque[float] = field(default_factory=lambda: deque(maxlen=JUDGED))


class RoundTrips:
    """The transceivers of one relay. `keys` as in `set_keys`, `seed` of the jitter."""

    def __init__(self, keys: KeyFile, seed: int | None = None) -> None:
        self._random = random.Random(seed)  # noqa: S311 - it spreads probes, and nobody gains by knowing when
        self._ways: dict[str, _Way] = {}
        """By route, as text: `cluster/pod/worker`."""
        self._due: list[tuple[float, str]] = []
        self._open: OrderedDict[bytes, tuple[_Way, float]] = OrderedDict()
        self._allowed_from = 0.0
        self.set_keys(keys)

    def set_keys(self, keys: KeyFile) -> None:
        """Swap the keys."""
        self._keys: Mapping[int, HopKey] = index_by_id(key for key in keys.hop if key.scope == "local")

    def set_addresses(self, addresses: Mapping[Route, tuple[str, int]], now: float) -> None:
        """Say where each transceiver is; one that stays keeps what is known of it."""
        ways: dict[str, _Way] = {}
        for route, address in addresses.items():
            name = str(route)
            way = self._ways.get(name)
            if way is None or way.address != address:
                way = _Way(route, address)
                self._put(name, way, now + self._random.uniform(0, EVERY_S))
            ways[name] = way
        self._ways = ways  # at once: other threads may be reading the old ones

    def milliseconds(self, route: str) -> float | None:
        """Return the round trip to the transceiver of `cluster/pod/worker`; None where it is not known."""
        way = self._ways.get(route)
        return round(median(tuple(way.rtts)) * 1000, 3) if way and way.rtts else None

    def due(self, now: float, unix: float) -> Iterable[tuple[bytes, tuple[str, int]]]:
        """Yield the probes to send now, each with its address; `unix` is Unix seconds."""
        while self._open and now - next(iter(self._open.values()))[1] > ANSWERED_WITHIN_S:
            self._open.popitem(last=False)
        key = newest_usable(self._keys.values(), unix) if self._keys else None
        self._allowed_from = max(self._allowed_from, now - 0.1)
        while self._due and self._due[0][0] <= now and self._allowed_from <= now and key is not None:
            due_at, name = heapq.heappop(self._due)
            way = self._ways.get(name)
            if way is None or way.due_at != due_at:
                continue  # it is gone, or has come back since
            self._put(name, way, now + EVERY_S * self._random.uniform(0.8, 1.2))
            self._allowed_from += 1 / MOST_PER_SECOND
            nonce = secrets.token_bytes(NONCE_LENGTH)
            self._open[nonce] = (way, now)
            yield build_probe(way.route, nonce, _NOBODY, key, unix), way.address

    def on_reply(self, datagram: bytes, source: tuple[str, int], now: float, unix: float) -> None:
        """Take note of an answer; what is none changes nothing."""
        try:
            reply = read_reply(datagram, self._keys, unix)
        except RemoteError:
            return
        way, sent_at = self._open.get(reply.nonce, (None, 0.0))
        if way is not None and (reply.route, source) == (way.route, way.address) and now - sent_at <= ANSWERED_WITHIN_S:
            del self._open[reply.nonce]
            way.rtts.append(now - sent_at)

    def _put(self, name: str, way: _Way, due_at: float) -> None:
        way.due_at = due_at
        heapq.heappush(self._due, (due_at, name))
