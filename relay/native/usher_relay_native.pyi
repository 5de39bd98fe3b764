"""The native engine of usher's relay; `usher_relay.engine.native_engine` says what the numbers mean."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypedDict

IceKey: TypeAlias = tuple[str, list[int], bytes, bytes | None, str, int]
"""Letter, cluster ids, ufrag key, password key, state, not_before."""
HopKey: TypeAlias = tuple[int, bytes, str, int]
"""Id, key, state, not_before; of the local scope, none retired."""
Keys: TypeAlias = tuple[list[IceKey], list[HopKey]]
Sockets: TypeAlias = tuple[list[tuple[int, int, bool]], int]
"""(Listener id, descriptor, whether it is IPv6) of each listener, and the descriptor of the upstream socket."""
Route: TypeAlias = tuple[bytes, bytes, int, int]
"""The 7 bytes of a route, 16 of its IP, port, hop size in bytes."""
Flow: TypeAlias = tuple[bytes, bytes, str, float | None, float | None, bytes | None]
"""Path key, route, state, seconds since the last check and the last sign of life, SSRC."""
Endpoint: TypeAlias = tuple[bytes, int]
"""16 bytes of an IP, port."""

class Counters(TypedDict):
    uplink: tuple[int, int, int, int]
    downlink: tuple[int, int, int, int]
    tentative: int
    split: int
    questions: int
    found_by_address: int
    found_by_ssrc: int
    store_asked: int
    store_skipped: int
    store_loaded: int
    store_found: int
    store_unnamed: int
    waiting_bytes: int
    drops: dict[str, int]
    flow_events: dict[str, int]
    hop_time_offset_ms: int
    hop_time_offset_max_ms: int

class Snapshot(Counters):
    confirmed: int
    on_probation: int
    ended: int
    routes: int
    heartbeat_age: float
    idle: float

class Limits(Protocol):
    """As `usher_relay.state.Limits`."""

    @property
    def max_flows(self) -> int: ...
    @property
    def probation_per_ufrag(self) -> int: ...
    @property
    def packets_per_client(self) -> int: ...
    @property
    def packets_per_address(self) -> int: ...
    @property
    def checks_per_client(self) -> int: ...
    @property
    def checks_per_ufrag(self) -> int: ...
    @property
    def tentative_per_client(self) -> int: ...
    @property
    def tentative_per_second(self) -> int: ...
    @property
    def who_has_limit(self) -> int: ...
    @property
    def questions_per_second(self) -> int: ...

class NativeEngine:
    """The data threads of one relay. The descriptors belong to the caller, open until `stop` has returned."""

    def __init__(
        self,
        sockets: list[Sockets],
        upstream_is_ipv6: bool,
        limits: Limits,
        keys: Keys,
        bundle: float | None,
        hop_mtu: int,
        with_store: bool,
    ) -> None: ...
    def store_fd(self) -> int | None: ...
    def take_questions(self) -> list[bytes]: ...
    def take_named(self) -> list[tuple[bytes, bytes]]: ...
    def answer(self, answers: Sequence[tuple[bytes, bytes | None]]) -> None: ...
    def load(self, mappings: Sequence[tuple[bytes, bytes]]) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def set_routes(self, routes: list[Route]) -> None: ...
    def set_keys(self, keys: Keys, unix: float) -> None: ...
    def snapshot(self) -> Snapshot: ...
    def flows(self, limit: int) -> list[Flow]: ...
    def routes(self, limit: int) -> list[tuple[Route, int, int]]: ...

class Path:
    """One forwarder without sockets and clock, for tests."""

    def __init__(self, limits: Limits, listeners: list[int], keys: Keys, bundle: bool, with_store: bool) -> None: ...
    def from_store(
        self, now: float, unix: float, answers: Sequence[tuple[bytes, bytes | None]]
    ) -> list[tuple[bytes, Endpoint]]: ...
    def take_questions(self) -> list[bytes]: ...
    def take_named(self) -> list[tuple[bytes, bytes]]: ...
    def load(self, mappings: Sequence[tuple[bytes, bytes]], now: float) -> None: ...
    def set_routes(self, routes: list[Route]) -> None: ...
    def set_hop_size(self, address: bytes, port: int, hop_size: int) -> None: ...
    def set_keys(self, keys: Keys) -> None: ...
    def tick(self, now: float, unix: float) -> None: ...
    def from_clients(
        self, now: float, unix: float, packets: list[tuple[bytes, int, bytes]]
    ) -> list[tuple[bytes, Endpoint]]: ...
    def from_transceivers(
        self, now: float, unix: float, datagrams: list[tuple[bytes, Endpoint]]
    ) -> tuple[list[tuple[bytes, bytes, int]], list[tuple[bytes, Endpoint]]]: ...
    def counters(self) -> Counters: ...
    def flows(self, now: float, limit: int) -> list[Flow]: ...

def usable_cores() -> int:
    """How many threads this process may really use: its CPU affinity and its cgroup's quota count."""
