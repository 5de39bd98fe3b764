"""The interface behind which the data path runs, so that programs and tests do not depend on which one it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from usher_core.keys import HeldKey, KeyFile
from usher_core.routes import RouteTable
from usher_relay.counters import Counters
from usher_relay.listeners import Listener
from usher_relay.state import Limits
from usher_relay.trunk.peer_table import PeerTable


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is made from. Sizes in bytes; `hop_mtu` 0 means: ask the kernel for each transceiver.

    `workers` is the number of data threads, 0 for as many as the process may use at the same time; `bundle` whether
    several client datagrams may share a hop datagram, `bundle_hold` for how many seconds they may wait for others. The
    Python engine has one thread, and what it bundles waits for no others. `with_store` is whether a store of mappings
    is asked for unknown clients. `trunk` is the (IP, port) where relays of other clusters send to, None for nowhere;
    `with_peers` whether datagrams may go to other clusters.
    """

    listeners: tuple[Listener, ...]
    upstream: str
    limits: Limits
    hop_mtu: int
    receive_buffer: int
    send_buffer: int
    workers: int = 0
    bundle: bool = True
    bundle_hold: float = 0.0
    with_store: bool = False
    trunk: tuple[str, int] | None = None
    with_peers: bool = False


@dataclass(frozen=True, slots=True)
class SocketStatus:
    """A socket as the kernel sees it. `kernel_drops` is None where the kernel does not tell."""

    name: str
    receive_buffer: int
    send_buffer: int
    kernel_drops: int | None


@dataclass(frozen=True, slots=True)
class FlowView:
    """One flow, for people. Ages in seconds, None for never."""

    client: str
    listener: int
    route: str
    state: str
    verified_age: float | None
    alive_age: float | None
    ssrc: str


@dataclass(frozen=True, slots=True)
class RouteView:
    """One route, for people: how many client datagrams went there and came from there through this relay.

    `rtt_ms` is the round trip to it, where it is known; engines do not know it.
    """

    route: str
    udp: str
    hop_size: int
    uplink: int
    downlink: int
    rtt_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an engine knows about itself. Ages in seconds.

    `heartbeat_age` is how long ago the slowest data thread began a round of its loop; it does so at least every 0.5 s.
    `idle` is how long ago a flow last showed life, infinity for never.
    """

    counters: Counters
    flows_confirmed: int
    flows_on_probation: int
    flows_ended: int
    routes: int
    routes_unreachable: int
    keys: tuple[HeldKey, ...]
    heartbeat_age: float
    idle: float


class StoreDoor(Protocol):
    """Where a store of mappings (client address → route) is connected to a data path. No method waits.

    A path key names a client: listener 2, port 2, address 16 bytes; a route has 7 bytes.
    """

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when clients are asked for."""
        ...

    def take_questions(self) -> list[bytes]:
        """Return the path keys that are asked for; the data path waits for `answer`, of each."""
        ...

    def answer(self, answers: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Say whose path keys are; None where the store does not know."""
        ...

    def take_named(self) -> list[tuple[bytes, bytes]]:
        """Return (path key, route) of the flows that were confirmed, moved or refreshed since the last call."""
        ...

    def load(self, mappings: Sequence[tuple[bytes, bytes]]) -> None:
        """Hand over (path key, route) of clients that may come, so that they need no question."""
        ...


class Engine(Protocol):
    """A data path. All methods may be called from the main thread; none waits longer than a second."""

    name: str

    @property
    def store_door(self) -> StoreDoor | None:
        """Where a store is connected; None without `EngineConfig.with_store`."""
        ...

    @property
    def listening(self) -> dict[int, str]:
        """Listener id → the `HOST:PORT` it is bound to."""
        ...

    @property
    def trunk(self) -> str | None:
        """The `HOST:PORT` where relays of other clusters send to; None for nowhere."""
        ...

    def start(self) -> None:
        """Begin to forward."""
        ...

    def set_routes(self, table: RouteTable) -> None:
        """Swap the route table."""
        ...

    def set_peers(self, table: PeerTable) -> None:
        """Say which other clusters datagrams may go to, and where."""
        ...

    def set_keys(self, file: KeyFile) -> None:
        """Swap the keys. Raises LocalError when they are of no use; the old ones then stay."""
        ...

    def snapshot(self) -> Snapshot:
        """Return counts and ages, without disturbing the data path."""
        ...

    def sockets(self) -> list[SocketStatus]:
        """Return the state of each socket."""
        ...

    def flows(self, limit: int) -> list[FlowView]:
        """Return at most `limit` flows. Raises TimeoutError when the data path does not answer."""
        ...

    def routes(self, limit: int) -> list[RouteView]:
        """Return at most `limit` routes. Raises TimeoutError when the data path does not answer."""
        ...

    def stop(self) -> None:
        """End the data threads and close the sockets."""
        ...
