"""The data path without I/O: datagrams and the time in, datagrams out.

`uplink` and `downlink` hold the rules of either direction, `flows` those of the flow map, `waiting` those of what waits
for a transceiver's word. Every engine does what this does; the Python engine runs it, others are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from usher_relay.bundle import HopSend
from usher_relay.counters import Counters
from usher_relay.downlink import ClientSend, Downlink
from usher_relay.endpoint import Endpoint
from usher_relay.state import Limits, LiveRoute, RelayKeys, RelayState
from usher_relay.trunk.inlet import Inlet
from usher_relay.trunk.peers import PeerWays, TrunkSend
from usher_relay.uplink import Packet, Uplink

OFFSET_WINDOW = 60.0


class Answers(NamedTuple):
    """What comes of a batch of hop datagrams."""

    to_clients: list[ClientSend]
    to_transceivers: list[HopSend]
    """Client datagrams that had waited until a transceiver said that they are its own."""


class Forwarder:
    """One data thread's worth of relay.

    Args:
        limits: bounds of tables and rates.
        listeners: the ids of the listeners that this thread serves.
        keys: replaced with `set_keys`.
        with_store: whether a store of mappings is asked; `state.exchange` is the way to it.
        bundles: whether what one batch holds for one transceiver may share hop datagrams.

    Times: `now` is monotonic seconds, `unix` Unix seconds; both are read once per batch. `tick` is to be called at
    least once a second, and before the first datagram after a change of keys.
    """

    def __init__(
        self,
        limits: Limits,
        listeners: Iterable[int],
        keys: RelayKeys,
        *,
        with_store: bool = False,
        bundles: bool = False,
    ) -> None:
        self.state = RelayState(limits, listeners, keys, with_store=with_store)
        self._uplink = Uplink(self.state, bundles=bundles)
        self._downlink = Downlink(self.state)
        self._inlet = Inlet(self.state)
        self._offset_window_ends = 0.0

    @property
    def counters(self) -> Counters:
        """What was counted so far."""
        return self.state.counters

    def set_routes(self, routes: Iterable[LiveRoute]) -> None:
        """Swap the route table."""
        self.state.set_routes(routes)

    def set_peers(self, ways: Mapping[bytes, PeerWays]) -> None:
        """Swap the peers: other clusters by the 2 bytes of their id."""
        self.state.set_peers(ways)

    def set_keys(self, keys: RelayKeys) -> None:
        """Swap the keys."""
        self.state.keys = keys

    def from_clients(self, now: float, unix: float, packets: Sequence[Packet]) -> list[HopSend]:
        """Return the hop datagrams for one batch of client datagrams, each with its transceiver's address."""
        return self._uplink.forward(now, self.state.stamp(unix), packets)

    def from_transceivers(self, now: float, unix: float, datagrams: Sequence[tuple[bytes, Endpoint]]) -> Answers:
        """Return what comes of one batch of hop datagrams, each given with its source address."""
        to_clients, heres = self._downlink.forward(now, int(unix * 1000), datagrams)
        return Answers(to_clients, self._uplink.release(now, self.state.stamp(unix), heres) if heres else [])

    def from_store(self, now: float, unix: float, answers: Iterable[tuple[bytes, bytes | None]]) -> list[HopSend]:
        """Return the hop datagrams that come of the store's answers: (path key, route or None)."""
        return self._uplink.on_stored(now, self.state.stamp(unix), answers)

    def from_ingress(self, now: float, unix: float, datagrams: Sequence[tuple[bytes, Endpoint]]) -> list[HopSend]:
        """Return the hop datagrams for what came to our trunk listener, each with its transceiver's address."""
        return self._inlet.forward(now, int(unix * 1000), self.state.stamp(unix), datagrams)

    def from_peers(self, now: float, unix: float, datagrams: Sequence[tuple[bytes, Endpoint]]) -> list[ClientSend]:
        """Return the client datagrams of what relays of other clusters answered."""
        return self._downlink.from_peers(now, int(unix * 1000), datagrams)

    def take_for_peers(self) -> list[TrunkSend]:
        """Return what any call before has made for relays of other clusters that own a session."""
        taken, self.state.to_peers = self.state.to_peers, []
        return taken

    def take_for_ingress(self) -> list[HopSend]:
        """Return what any call before has made for relays where clients of ours entered, with their addresses."""
        taken, self.state.to_ingress = self.state.to_ingress, []
        return taken

    def tick(self, now: float, unix: float) -> None:
        """Do what time demands: choose the hop key, expire flows and what waits."""
        self.state.choose_hop_keys(unix)
        self.state.flows.expire(now)
        self.state.waiting.expire(now)
        self.state.slots.expire(now)
        if self.state.exchange is not None:
            self.state.exchange.expire(now)
        if now >= self._offset_window_ends:
            self._offset_window_ends = now + OFFSET_WINDOW
            self.state.counters.hop_time_offset_max_ms = abs(self.state.counters.hop_time_offset_ms)
