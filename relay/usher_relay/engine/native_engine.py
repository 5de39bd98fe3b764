"""The native engine as the rest of the program sees it: opens the sockets, hands them to the threads of
`usher_relay_native`, and translates between its plain numbers and the types of `interface`.

Each thread has sockets of its own: one of every listener (SO_REUSEPORT spreads the clients over them) and one towards
the transceivers, so that answers come back to the thread that knows the flow.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import usher_relay_native as native

from usher_core.ids import join_host_port, pack_address, split_host_port, unpack_address
from usher_core.keys import KeyFile
from usher_core.routes import RouteTable
from usher_relay.counters import Counters, Drop, FlowEvent, Traffic
from usher_relay.engine.interface import EngineConfig, FlowView, RouteView, Snapshot, SocketStatus
from usher_relay.engine.sockets import HopSocket, ListenSocket, status
from usher_relay.engine.views import flow_view
from usher_relay.hop_codec import route_bytes, route_of
from usher_relay.state import RelayKeys
from usher_relay.trunk.peer_table import SOCKETS_TO_PEERS, PeerTable, reachable


class NativeEngine:
    """See `interface.Engine`. Raises LocalError when a socket cannot be bound or the keys are of no use."""

    name = "native"

    def __init__(self, config: EngineConfig, keys: KeyFile) -> None:
        ring = RelayKeys.of(keys)
        with ExitStack() as opened:  # closes what is open already when a later one fails
            threads = config.workers or native.usable_cores()
            self._workers = [_Sockets(config, opened, threads)]
            for _ in range(1, threads):
                self._workers.append(_Sockets(config, opened, threads, self._workers[0]))
            self._engine = native.NativeEngine(
                [sockets.descriptors() for sockets in self._workers],
                ":" in config.upstream,
                config.limits,
                native_keys(ring, keys),
                config.bundle_hold if config.bundle else None,
                config.hop_mtu,
                config.with_store,
            )
            self._opened = opened.pop_all()
        descriptor = self._engine.store_fd()
        self._door = None if descriptor is None else NativeDoor(self._engine, descriptor)
        self._held = ring.held
        self._unreachable = 0

    @property
    def store_door(self) -> NativeDoor | None:
        """See `interface.Engine`."""
        return self._door

    @property
    def listening(self) -> dict[int, str]:
        """See `interface.Engine`."""
        return {sock.listener.id: sock.address for sock in self._workers[0].listeners}

    def start(self) -> None:
        """See `interface.Engine`."""
        self._engine.start()

    def set_routes(self, table: RouteTable) -> None:
        """See `interface.Engine`."""
        reachable = self._workers[0].upstream.reachable(table)
        self._unreachable = len(table) - len(reachable)
        self._engine.set_routes(
            [(route_bytes(route), pack_address(address[0]), address[1], size) for route, address, size in reachable]
        )

    @property
    def trunk(self) -> str | None:
        """See `interface.Engine`."""
        trunk = self._workers[0].trunk
        return None if trunk is None else trunk.address

    def set_peers(self, table: PeerTable) -> None:
        """See `interface.Engine`."""
        is_ipv6 = self._workers[0].is_ipv6
        reached = ((cluster, reachable(peer, is_ipv6=is_ipv6)) for cluster, peer in table.items())
        self._engine.set_peers(
            [
                (cluster, [(pack_address(host), port) for host, port in peer.addresses], list(peer.places))
                for cluster, peer in reached
                if peer is not None
            ]
        )

    def set_keys(self, file: KeyFile) -> None:
        """See `interface.Engine`."""
        ring = RelayKeys.of(file)
        self._engine.set_keys(native_keys(ring, file), time.time())
        self._held = ring.held

    def snapshot(self) -> Snapshot:
        """See `interface.Engine`."""
        seen = self._engine.snapshot()
        return Snapshot(
            counters=counters_of(seen),
            flows_confirmed=seen["confirmed"],
            flows_on_probation=seen["on_probation"],
            flows_ended=seen["ended"],
            routes=seen["routes"],
            routes_unreachable=self._unreachable,
            keys=self._held,
            heartbeat_age=seen["heartbeat_age"],
            idle=seen["idle"],
        )

    def sockets(self) -> list[SocketStatus]:
        """See `interface.Engine`. Of several threads each socket's name has the thread's number behind it."""
        found = [(number, status(sock)) for number, worker in enumerate(self._workers) for sock in worker.all]
        if len(self._workers) == 1:
            return [seen for _, seen in found]
        return [replace(seen, name=f"{seen.name}/{number}") for number, seen in found]

    def flows(self, limit: int) -> list[FlowView]:
        """See `interface.Engine`."""
        return [
            flow_view(key, route, state, verified_age, alive_age, ssrc or b"")
            for key, route, state, verified_age, alive_age, ssrc in self._engine.flows(limit)
        ]

    def routes(self, limit: int) -> list[RouteView]:
        """See `interface.Engine`."""
        return [
            RouteView(
                route=str(route_of(route)),
                udp=join_host_port(unpack_address(address), port),
                hop_size=hop_size,
                uplink=uplink,
                downlink=downlink,
            )
            for (route, address, port, hop_size), uplink, downlink in self._engine.routes(limit)
        ]

    def stop(self) -> None:
        """See `interface.Engine`."""
        self._engine.stop()
        self._opened.close()


class NativeDoor:
    """See `interface.StoreDoor`."""

    def __init__(self, engine: native.NativeEngine, descriptor: int) -> None:
        self._descriptor = descriptor
        self.take_questions = engine.take_questions
        self.take_named = engine.take_named
        self.answer = engine.answer
        self.load = engine.load

    def fileno(self) -> int:
        """See `interface.StoreDoor`."""
        return self._descriptor


class _Sockets:
    """What one thread listens on; `first` are those of the first thread, whose ports the others share.

    Of the sockets towards peers, several for the whole relay, each thread has its share.
    """

    def __init__(self, config: EngineConfig, opened: ExitStack, threads: int, first: _Sockets | None = None) -> None:
        buffers = config.receive_buffer, config.send_buffer
        self.upstream = HopSocket("upstream", config.upstream, *buffers, config.hop_mtu)
        opened.enter_context(self.upstream.socket)
        self.listeners: list[ListenSocket] = []
        ports = {} if first is None else {sock.listener.id: _port(sock) for sock in first.listeners}
        for listener in config.listeners:
            shared = replace(listener, port=ports.get(listener.id, listener.port))
            self.listeners.append(ListenSocket(shared, *buffers, cached_addresses=0))
            opened.enter_context(self.listeners[-1].socket)
        self.is_ipv6 = ":" in config.upstream
        count = -(-SOCKETS_TO_PEERS // threads) if config.with_peers else 0
        self.peers = [HopSocket(f"peers/{number}", config.upstream, *buffers) for number in range(count)]
        self.trunk: HopSocket | None = None
        if config.trunk is not None:
            port = config.trunk[1] if first is None or first.trunk is None else _port(first.trunk)
            self.trunk = HopSocket("trunk", config.trunk[0], *buffers, port=port, is_shared=True)
        for sock in self._of_trunks:
            opened.enter_context(sock.socket)

    @property
    def _of_trunks(self) -> list[HopSocket]:
        return [*self.peers, *([] if self.trunk is None else [self.trunk])]

    @property
    def all(self) -> list[ListenSocket | HopSocket]:
        return [*self.listeners, self.upstream, *self._of_trunks]

    def descriptors(self) -> native.Sockets:
        listeners = [(sock.listener.id, sock.socket.fileno(), sock.listener.is_ipv6) for sock in self.listeners]
        peers = [sock.socket.fileno() for sock in self.peers]
        trunk = None if self.trunk is None else self.trunk.socket.fileno()
        return listeners, self.upstream.socket.fileno(), peers, trunk


def native_keys(ring: RelayKeys, file: KeyFile) -> native.Keys:
    """Return the keys in the form that the native side takes."""
    ice = [
        (key.letter, list(key.clusters), key.ufrag_key, key.password_key, str(key.state), key.not_before)
        for key in file.ice
    ]
    hop = [(key.id, key.key, str(key.state), key.not_before) for key in ring.hop.values()]
    trunk = [
        (cluster, (key.id, key.key, str(key.state), key.not_before))
        for cluster, held in ring.trunk.all()
        for key in held.values()
    ]
    return ice, hop, trunk


def counters_of(seen: native.Counters) -> Counters:
    """Return native counters as those of the Python engine."""
    return Counters(
        uplink=Traffic(*seen["uplink"]),
        downlink=Traffic(*seen["downlink"]),
        tentative=seen["tentative"],
        split=seen["split"],
        questions=seen["questions"],
        found_by_address=seen["found_by_address"],
        found_by_ssrc=seen["found_by_ssrc"],
        store_asked=seen["store_asked"],
        store_skipped=seen["store_skipped"],
        store_loaded=seen["store_loaded"],
        store_found=seen["store_found"],
        store_unnamed=seen["store_unnamed"],
        waiting_bytes=seen["waiting_bytes"],
        drops={Drop(reason): count for reason, count in seen["drops"].items()},
        flow_events={FlowEvent(event): count for event, count in seen["flow_events"].items()},
        hop_time_offset_ms=seen["hop_time_offset_ms"],
        hop_time_offset_max_ms=seen["hop_time_offset_max_ms"],
    )


def _port(sock: ListenSocket | HopSocket) -> int:
    return split_host_port(sock.address)[1]
