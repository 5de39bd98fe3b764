"""Return slots: how a transceiver's answer finds the ingress relay that asked (docs/wire.md section 3).

Rules:
* A source gets a slot with its first datagram whose MAC held, and by nothing else: it is the one address that a relay
  learns from a packet. One that two trunks name has two: who holds the key of one takes no answers of the other.
* A slot is kept for 120 s after its last use; then its number may stand for another source.
* Of one trunk 256 sources may get one at once, and 50 more a second: one recorded datagram, sent again from many ports
  within its minute, leaves room for others.
* At most 4,096 sources have one. Beyond, the source that was silent longest makes room, if that was for 7 s: a client
  checks more often. Else, of the trunk that has most, the one that was silent longest, if the newcomer's has at least
  two fewer. Else the new one is refused. So no trunk takes the room of others.
* Numbers are handed out in turn, so that one is not soon used again. 0 means that there is none.

No I/O, no clock: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

from usher_core.peers import MAX_TRUNKS
from usher_relay.endpoint import Endpoint
from usher_relay.limits import Buckets, Rate

KEPT_S: Final = 120.0
MAX_SLOTS: Final = 4_096
QUIET_S: Final = 7.0
_ORDER_EVERY_S: Final = 1.0
_NUMBERS: Final = 0xFFFF
_NEW: Final = Rate(50, 256)


@dataclass(slots=True, eq=False)
class _Slot:
    number: int
    source: Endpoint
    cluster: bytes
    used_at: float


class ReturnSlots:
    """The slots of one data thread."""

    def __init__(self, capacity: int = MAX_SLOTS) -> None:
        self._capacity = capacity
        self._by_source: OrderedDict[tuple[Endpoint, bytes], _Slot] = OrderedDict()
        """By source and trunk. The one silent longest first, within a second."""
        self._of_trunk: Counter[bytes] = Counter()
        self._by_number: dict[int, _Slot] = {}
        self._last = 0
        self._new = Buckets(_NEW, MAX_TRUNKS)

    def __len__(self) -> int:
        """Return how many sources have a slot."""
        return len(self._by_number)

    def take(self, source: Endpoint, cluster: bytes, now: float) -> int:
        """Return the slot of an authenticated source, a new one where it has none; 0 when there is no room.

        `cluster` is the trunk (2 bytes of the id at its other end) whose key made the MAC: the answer's will do so too.
        """
        slot = self._by_source.get((source, cluster))
        if slot is None and not self._new.allow(cluster, now):
            return 0
        if slot is None:
            slot = self._give(source, cluster, now)
            return 0 if slot is None else slot.number
        if now - slot.used_at >= _ORDER_EVERY_S:
            slot.used_at = now
            self._by_source.move_to_end((source, cluster))
        return slot.number

    def find(self, number: int) -> tuple[Endpoint, bytes] | None:
        """Return whose slot this is and by which trunk it is reached, or None."""
        slot = self._by_number.get(number)
        return None if slot is None else (slot.source, slot.cluster)

    def expire(self, now: float) -> None:
        """Forget the sources that are due."""
        while (first := self._first) is not None and now - first.used_at >= KEPT_S:
            self._forget(first)

    @property
    def _first(self) -> _Slot | None:
        return next(iter(self._by_source.values()), None)

    def _give(self, source: Endpoint, cluster: bytes, now: float) -> _Slot | None:
        if len(self._by_number) >= self._capacity:
            gone = self._to_make_room(cluster, now)
            if gone is None:
                return None
            self._forget(gone)
        number = self._last
        while number in self._by_number or number == self._last:
            number = number % _NUMBERS + 1
        self._last = number
        slot = self._by_source[source, cluster] = self._by_number[number] = _Slot(number, source, cluster, now)
        self._of_trunk[cluster] += 1
        return slot

    def _to_make_room(self, cluster: bytes, now: float) -> _Slot | None:
        first = self._first
        if first is not None and now - first.used_at >= QUIET_S:
            return first
        most = min(self._of_trunk, key=lambda trunk: (-self._of_trunk[trunk], trunk))
        if self._of_trunk[most] < self._of_trunk[cluster] + 2:
            return None
        return next(slot for slot in self._by_source.values() if slot.cluster == most)

    def _forget(self, slot: _Slot) -> None:
        del self._by_source[slot.source, slot.cluster]
        del self._by_number[slot.number]
        self._of_trunk[slot.cluster] -= 1
        if not self._of_trunk[slot.cluster]:
            del self._of_trunk[slot.cluster]
