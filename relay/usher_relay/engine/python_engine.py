"""The Python engine: one data thread that moves datagrams between its sockets and the forwarder.

* One thread owns sockets and state, so there is no lock on the path. Others ask it by handing it a function, which it
  calls between two rounds; plain numbers are read across threads as they are.
* Before the first route table no client is served: what arrives waits in the sockets' buffers. So a relay that starts
  beside others, or in the place of one that died, loses nothing of the clients that the kernel gives it.
* A round reads at most BATCH datagrams from each socket that is ready, so none starves another. Clocks are read once a
  round.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

import structlog

from usher_core.ids import join_host_port
from usher_core.keys import KeyFile
from usher_core.routes import RouteTable
from usher_relay.bundle import HopSend
from usher_relay.counters import Drop
from usher_relay.downlink import ClientSend
from usher_relay.endpoint import Endpoint
from usher_relay.engine.interface import EngineConfig, FlowView, RouteView, Snapshot, SocketStatus
from usher_relay.engine.python_door import Answers, Mappings, PythonDoor
from usher_relay.engine.sockets import HopSocket, ListenSocket, drop_reason, status
from usher_relay.engine.views import flow_view
from usher_relay.flow import Flow
from usher_relay.forwarder import Forwarder
from usher_relay.hop_codec import route_bytes, route_of
from usher_relay.state import LiveRoute, RelayKeys
from usher_relay.trunk.peer_table import SOCKETS_TO_PEERS, PeerAddresses, PeerTable, reachable
from usher_relay.trunk.peers import PeerWays

log = structlog.get_logger()

BATCH = 64
TICK = 0.25
LONGEST_WAIT = 0.25
ANSWER_WITHIN = 1.0
HOP_SIZE_EVERY = 1.0
FAULT_LOG_EVERY = 60.0

ResultT = TypeVar("ResultT")


class PythonEngine:
    """See `interface.Engine`. Raises LocalError when a socket cannot be bound or the keys are of no use."""

    name = "python"

    def __init__(self, config: EngineConfig, keys: KeyFile) -> None:
        ring = RelayKeys.of(keys)
        buffers = config.receive_buffer, config.send_buffer
        with ExitStack() as opened:  # closes what is open already when a later one fails
            self._upstream = HopSocket("upstream", config.upstream, *buffers, config.hop_mtu)
            opened.enter_context(self._upstream.socket)
            # A peer's kernel spreads what it gets over its data threads by our port.
            self._to_peers = [
                HopSocket(f"peers/{number}", config.upstream, *buffers)
                for number in range(SOCKETS_TO_PEERS if config.with_peers else 0)
            ]
            self._trunk = None
            if config.trunk is not None:
                self._trunk = HopSocket("trunk", config.trunk[0], *buffers, port=config.trunk[1], is_shared=True)
            for sock in self._trunk_sockets:
                opened.enter_context(sock.socket)
            self._listeners: list[ListenSocket] = []
            for listener in config.listeners:
                self._listeners.append(ListenSocket(listener, *buffers, config.limits.max_flows))
                opened.enter_context(self._listeners[-1].socket)
            self._wake_receiver, self._wake_sender = map(opened.enter_context, socket.socketpair())
            self._opened = opened.pop_all()
        self._by_id = {sock.listener.id.to_bytes(2): sock for sock in self._listeners}
        self._forwarder = Forwarder(
            config.limits,
            (sock.listener.id for sock in self._listeners),
            ring,
            with_store=config.with_store,
            bundles=config.bundle,
        )
        exchange = self._forwarder.state.exchange
        self._door = None if exchange is None else PythonDoor(exchange, self._answer, self._load)
        if self._door is not None:
            self._opened.callback(self._door.close)
        self._routes_by_address: dict[Endpoint, LiveRoute] = {}
        self._unreachable = 0
        self._poller = select.poll()
        self._requests: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._stopping = False
        self._heartbeat = time.monotonic()
        self._next_tick = 0.0
        self._next_hop_size = 0.0
        self._next_fault_log = 0.0
        self._thread = threading.Thread(target=self._run, name="relay-data", daemon=True)

    @property
    def listening(self) -> dict[int, str]:
        """See `interface.Engine`."""
        return {sock.listener.id: sock.address for sock in self._listeners}

    @property
    def store_door(self) -> PythonDoor | None:
        """See `interface.Engine`."""
        return self._door

    def start(self) -> None:
        """See `interface.Engine`."""
        self._heartbeat = time.monotonic()
        self._thread.start()

    def set_routes(self, table: RouteTable) -> None:
        """See `interface.Engine`."""
        reachable = self._upstream.reachable(table)
        routes = [LiveRoute(route_bytes(route), address, size) for route, address, size in reachable]

        def swap() -> None:
            self._forwarder.set_routes(routes)
            for sock in self._listeners:
                self._poller.register(sock.socket, select.POLLIN)
            self._routes_by_address = {route.address: route for route in routes}
            self._unreachable = len(table) - len(routes)

        self._request(swap)

    @property
    def trunk(self) -> str | None:
        """See `interface.Engine`."""
        return None if self._trunk is None else self._trunk.address

    @property
    def _trunk_sockets(self) -> list[HopSocket]:
        return [*self._to_peers, *([] if self._trunk is None else [self._trunk])]

    def set_peers(self, table: PeerTable) -> None:
        """See `interface.Engine`."""
        ways = {cluster.to_bytes(2): found for cluster, peer in table.items() if (found := self._ways(peer))}

        def swap() -> None:
            self._forwarder.set_peers(ways)
            self._next_tick = 0.0

        self._request(swap)

    def _ways(self, peer: PeerAddresses) -> PeerWays | None:
        """Return how a peer is reached; None when none of its addresses is of our sockets' family."""
        reached = reachable(peer, is_ipv6=self._upstream.is_ipv6)
        if reached is None:
            return None
        endpoints = [self._upstream.endpoint(*address) for address in reached.addresses]
        known = [endpoint for endpoint in endpoints if endpoint is not None]
        return PeerWays(frozenset(known), tuple(known[index] for index in reached.places))

    def set_keys(self, file: KeyFile) -> None:
        """See `interface.Engine`."""
        keys = RelayKeys.of(file)

        def swap() -> None:
            self._forwarder.set_keys(keys)
            self._next_tick = 0.0

        self._request(swap)

    def snapshot(self) -> Snapshot:
        """See `interface.Engine`."""
        state = self._forwarder.state
        on_probation, ended = state.flows.on_probation, state.flows.ended
        now = time.monotonic()
        return Snapshot(
            counters=state.counters.copy(),
            flows_confirmed=max(0, len(state.flows) - on_probation - ended),
            flows_on_probation=on_probation,
            flows_ended=ended,
            routes=len(state.routes),
            routes_unreachable=self._unreachable,
            keys=state.keys.held,
            heartbeat_age=now - self._heartbeat,
            idle=now - state.flows.last_life,
        )

    def sockets(self) -> list[SocketStatus]:
        """See `interface.Engine`."""
        return [*map(status, self._listeners), *map(status, (self._upstream, *self._trunk_sockets))]

    def flows(self, limit: int) -> list[FlowView]:
        """See `interface.Engine`."""
        return self._ask(lambda: self._view_flows(limit))

    def routes(self, limit: int) -> list[RouteView]:
        """See `interface.Engine`."""
        return self._ask(lambda: self._view_routes(limit))

    def stop(self) -> None:
        """See `interface.Engine`."""
        self._request(self._stop)
        if self._thread.is_alive():
            self._thread.join(timeout=ANSWER_WITHIN)
        self._opened.close()

    # From here on: the data thread.

    def _run(self) -> None:
        self._poller.register(self._wake_receiver, select.POLLIN)
        self._poller.register(self._upstream.socket, select.POLLIN)
        handlers: dict[int, Callable[[float, float], None]] = {
            self._wake_receiver.fileno(): self._serve_requests,
            **{sock.socket.fileno(): self._peer_handler(sock) for sock in self._to_peers},
            self._upstream.socket.fileno(): self._from_transceivers,
            **{sock.socket.fileno(): self._client_handler(sock) for sock in self._listeners},
        }
        if self._trunk is not None:
            handlers[self._trunk.socket.fileno()] = self._ingress_handler(self._trunk)
        for sock in self._trunk_sockets:
            self._poller.register(sock.socket, select.POLLIN)
        while not self._stopping:
            ready = self._poller.poll(LONGEST_WAIT * 1000)
            now, unix = time.monotonic(), time.time()
            self._heartbeat = now
            try:
                if now >= self._next_tick:
                    self._next_tick = now + TICK
                    self._forwarder.tick(now, unix)
                for descriptor, _ in ready:
                    handlers[descriptor](now, unix)
                self._send_over_trunks()
                if self._door is not None:
                    self._door.wake()
            except Exception as fault:  # noqa: BLE001  # one packet's fault must not end the calls of all others
                self._report_fault(fault, now)

    def _client_handler(self, sock: ListenSocket) -> Callable[[float, float], None]:
        receive = sock.receive
        from_clients = self._forwarder.from_clients

        def handle(now: float, unix: float) -> None:
            self._send_to_transceivers(from_clients(now, unix, receive(BATCH)), now)

        return handle

    def _send_to_transceivers(self, sends: list[HopSend], now: float) -> None:
        sendto = self._upstream.socket.sendto
        for datagram, address in sends:
            try:
                sendto(datagram, address)
            except OSError as error:
                self._hop_send_failed(error, address, now)

    def _from_transceivers(self, now: float, unix: float) -> None:
        answers = self._forwarder.from_transceivers(now, unix, self._upstream.receive(BATCH))
        self._send_to_clients(answers.to_clients)
        self._send_to_transceivers(answers.to_transceivers, now)

    def _send_to_clients(self, sends: list[ClientSend]) -> None:
        by_id = self._by_id
        for path_key, datagram, local in sends:
            try:
                by_id[path_key[:2]].send(path_key, datagram, local)
            except OSError as error:
                self._forwarder.state.drop(drop_reason(error))

    def _peer_handler(self, sock: HopSocket) -> Callable[[float, float], None]:
        def handle(now: float, unix: float) -> None:
            self._send_to_clients(self._forwarder.from_peers(now, unix, sock.receive(BATCH)))

        return handle

    def _ingress_handler(self, sock: HopSocket) -> Callable[[float, float], None]:
        def handle(now: float, unix: float) -> None:
            self._send_to_transceivers(self._forwarder.from_ingress(now, unix, sock.receive(BATCH)), now)

        return handle

    def _send_over_trunks(self) -> None:
        for datagram, address, path_key in self._forwarder.take_for_peers() if self._to_peers else ():
            # By the port, which differs between clients behind one NAT: the datagrams of one leave in order.
            self._send_on_trunk(self._to_peers[path_key[3] % len(self._to_peers)], datagram, address)
        if self._trunk is not None:
            for datagram, address in self._forwarder.take_for_ingress():
                self._send_on_trunk(self._trunk, datagram, address)

    def _send_on_trunk(self, sock: HopSocket, datagram: bytes, address: Endpoint) -> None:
        try:
            sock.socket.sendto(datagram, address)
        except OSError as error:
            self._forwarder.state.drop(drop_reason(error))

    def _from_store(self, answers: Answers) -> None:
        now = time.monotonic()
        self._send_to_transceivers(self._forwarder.from_store(now, time.time(), answers), now)

    def _take_loaded(self, mappings: Mappings) -> None:
        exchange = self._forwarder.state.exchange
        if exchange is not None:
            exchange.load(mappings, time.monotonic())

    def _hop_send_failed(self, error: OSError, address: Endpoint, now: float) -> None:
        reason = drop_reason(error)
        self._forwarder.state.drop(reason)
        # The kernel has learnt of a narrower link on the way (RFC 1191, RFC 8201): ask it, but not for every packet.
        if reason is Drop.SEND_TOO_LONG and now >= self._next_hop_size:
            self._next_hop_size = now + HOP_SIZE_EVERY
            route = self._routes_by_address.get(address)
            if route is not None:
                route.set_hop_size(self._upstream.hop_size(address[0]))

    def _serve_requests(self, _now: float, _unix: float) -> None:
        with suppress(BlockingIOError):
            self._wake_receiver.recv(4096)
        while True:
            try:
                request = self._requests.get_nowait()
            except Empty:
                return
            request()

    def _report_fault(self, fault: Exception, now: float) -> None:
        self._forwarder.state.drop(Drop.INTERNAL)
        if now >= self._next_fault_log:
            self._next_fault_log = now + FAULT_LOG_EVERY
            log.error("a fault of ours; the datagrams of one batch may be lost", exc_info=fault)

    def _stop(self) -> None:
        self._stopping = True

    def _view_flows(self, limit: int) -> list[FlowView]:
        now = time.monotonic()
        return [self._view_flow(flow, now) for flow in self._forwarder.state.flows.first(limit)]

    def _view_flow(self, flow: Flow, now: float) -> FlowView:
        if flow.ended:
            state = "ended"
        elif flow.probation_until:
            state = "probation"
        else:
            state = "quiet" if self._forwarder.state.flows.is_quiet(flow, now) else "live"
        ages = (_age(now, flow.verified_at), _age(now, flow.alive_at))
        return flow_view(flow.key, flow.route, state, *ages, flow.ssrc)

    def _view_routes(self, limit: int) -> list[RouteView]:
        routes = list(self._forwarder.state.routes.values())[:limit]
        return [
            RouteView(
                route=str(route_of(route.route)),
                udp=join_host_port(route.address[0], route.address[1]),
                hop_size=route.hop_size,
                uplink=route.uplink,
                downlink=route.downlink,
            )
            for route in routes
        ]

    # From any thread.

    def _answer(self, answers: Answers) -> None:
        self._request(lambda: self._from_store(answers))

    def _load(self, mappings: Mappings) -> None:
        self._request(lambda: self._take_loaded(mappings))

    def _request(self, request: Callable[[], None]) -> None:
        self._requests.put(request)
        with suppress(BlockingIOError):  # then enough wake-ups wait already
            self._wake_sender.send(b"\0")

    def _ask(self, question: Callable[[], ResultT]) -> ResultT:
        answer: Future[ResultT] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001  # whoever asked gets it
                answer.set_exception(error)

        self._request(run)
        return answer.result(timeout=ANSWER_WITHIN)


def _age(now: float, then: float) -> float | None:
    return None if then == float("-inf") else now - then
