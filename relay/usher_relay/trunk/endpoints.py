"""One peer as the control side knows it: its endpoints, how each is, and which clients go where.

Endpoints come from the peers file, names resolved; how each is, from its probes; which are used, from `order`; which
clients each of those has, from `rendezvous`. No I/O, no clock: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from usher_core.ids import join_host_port
from usher_relay.trunk.order import EndpointOrder, Seen
from usher_relay.trunk.peer_table import PeerAddresses
from usher_relay.trunk.probe import EndpointHealth, HeldIds
from usher_relay.trunk.rendezvous import place_endpoints


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One endpoint, for people, metrics and the operator.

    `up` tells whether it answers, so it is False before the first answer, though flows may go there. `used` tells
    whether flows go there; `rtt_ms` is None before the first answer; `loss` is 0 to 1. `held_ice` and `held_hop` are
    the names (CLUSTER:LETTER) and, of this trunk, the ids of the keys that it said it holds, `heard_s` how many seconds
    ago it said so; None for never. `lacks_newest_hop` is whether our newest hop key of this trunk is not among them.
    """

    cluster: int
    address: str
    up: bool
    used: bool
    rtt_ms: float | None
    loss: float
    sent: int
    answered: int
    held_ice: tuple[str, ...] = ()
    held_hop: tuple[int, ...] = ()
    heard_s: float | None = None
    lacks_newest_hop: bool = False


@dataclass(slots=True, eq=False)
class Way:
    """One address of a peer."""

    address: tuple[str, int]
    weight: float
    health: EndpointHealth = field(default_factory=EndpointHealth)
    held: HeldIds = field(default_factory=HeldIds)
    was_up: bool = True

    @property
    def name(self) -> str:
        """HOST:PORT."""
        return join_host_port(*self.address)

    def seen(self, now: float) -> Seen:
        """Return what its probes tell."""
        return Seen(self.health.is_up(now), self.health.rtt, self.health.known_loss)


class PeerEndpoints:
    """The endpoints of one peer."""

    def __init__(self) -> None:
        self.ways: dict[tuple[str, int], Way] = {}
        """By address; for reading only."""
        self._order = EndpointOrder()
        self._used: dict[str, float] = {}
        self._table: PeerAddresses | None = None

    def set_addresses(self, weights: Iterable[tuple[tuple[str, int], float]]) -> None:
        """Say which addresses there are, each with its weight; one that stays keeps what is known of it."""
        ways: dict[tuple[str, int], Way] = {}
        for address, weight in weights:
            way = ways[address] = self.ways.get(address) or Way(address, weight)
            way.weight = weight
        # At once: other threads may be reading the old ones.
        self.ways, self._table = ways, None

    def table(self, now: float) -> PeerAddresses | None:
        """Return what the data path is to know at `now`; None without an address."""
        if not self.ways:
            return None
        by_name = {way.name: way for way in self.ways.values()}
        used = self._order.choose(now, {name: way.seen(now) for name, way in by_name.items()})
        weights = {name: by_name[name].weight for name in used}
        # Places take hashes of all that are used, so they are given out only when those change.
        if self._table is None or weights != self._used:
            self._used = weights
            number = {name: number for number, name in enumerate(by_name)}
            self._table = PeerAddresses(tuple(self.ways), tuple(number[name] for name in place_endpoints(weights)))
        return self._table

    def views(self, cluster: int, newest_hop: int | None, now: float) -> Iterable[EndpointView]:
        """Return all endpoints as they are; `newest_hop` is the id of our newest hop key of the trunk to `cluster`."""
        for way in self.ways.values():
            health, heard_at = way.health, way.health.answered_at
            yield EndpointView(
                cluster=cluster,
                address=way.name,
                up=heard_at is not None and health.is_up(now),
                used=way.name in self._used,
                rtt_ms=None if health.rtt is None else round(health.rtt * 1000, 1),
                loss=round(health.loss, 3),
                sent=health.sent,
                answered=health.answered,
                held_ice=way.held.ice,
                held_hop=way.held.hop,
                heard_s=None if heard_at is None else round(now - heard_at, 3),
                lacks_newest_hop=heard_at is not None and newest_hop is not None and newest_hop not in way.held.hop,
            )
