"""A relay without sockets and with a clock of its own: keys, sessions, clients, transceivers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from usher_core import hop, stun
from usher_core.hop import HopDatagram, HopType, Outer, Record
from usher_core.ids import ClientPath, Route, pack_address
from usher_core.keys import HopKeyRing, IceKeyRing, KeyFile, parse_key_file
from usher_core.stun import Attribute, StunClass
from usher_relay.counters import Drop, FlowEvent
from usher_relay.exchange import Exchange
from usher_relay.flow import Flow
from usher_relay.forwarder import Forwarder
from usher_relay.hop_codec import route_bytes
from usher_relay.state import Endpoint, Limits, LiveRoute, RelayKeys

HOP_KEY = bytes(range(16))
UFRAG_KEY = bytes(range(1, 17))
PASSWORD_KEY = bytes(range(2, 34))
PLENTY = 65_507
LISTENER = 1
LISTENER_V6 = 2
ALIVE = hop.RecordFlag.ALIVE

POD_A, POD_B, POD_C = Route(1, 17), Route(1, 18), Route(1, 19)
ADDRESSES: dict[Route, Endpoint] = {
    POD_A: ("10.1.0.17", 7200),
    POD_B: ("10.1.0.18", 7200),
    POD_C: ("10.1.0.19", 7200),
}


def key_file(*, ingress_only: bool = False, hop_key: bytes = HOP_KEY) -> KeyFile:
    return parse_key_file(key_text(ingress_only=ingress_only, hop_key=hop_key))


def key_text(*, ingress_only: bool = False, hop_key: bytes = HOP_KEY, hop_id: int = 3) -> str:
    def text(key: bytes) -> str:
        return base64.b64encode(key).decode()

    ice = {"letter": "u", "clusters": [1], "ufrag_key": text(UFRAG_KEY), "password_key": text(PASSWORD_KEY)}
    if ingress_only:
        del ice["password_key"]
    return json.dumps({"version": 1, "ice": [ice], "hop": [{"id": hop_id, "key": text(hop_key)}]})


ICE_KEYS = IceKeyRing(key_file().ice)
HOP_KEYS = HopKeyRing(key_file().hop)


@dataclass(frozen=True)
class Session:
    """A live session of a transceiver: what its answer told the client."""

    route: Route
    ufrag: str
    password: str

    def check(self, number: int = 0, *, size: int = 0, password: str | None = None, ufrag: str | None = None) -> bytes:
        """A Binding request as an ICE agent sends it; `size` pads it to about that many bytes."""
        attributes: list[tuple[int, bytes]] = [
            (Attribute.PRIORITY, bytes(4)),
            (Attribute.USERNAME, f"{ufrag or self.ufrag}:peer".encode()),
        ]
        if size:
            attributes.append((Attribute.SOFTWARE, bytes(size - 120)))
        secret = (password or self.password).encode()
        return stun.build(StunClass.REQUEST, number.to_bytes(12), attributes, secret)


def session(route: Route, number: int = 0) -> Session:
    return Session(route, *ICE_KEYS.make(route, number.to_bytes(5), 0))


def client(port: int, host: str = "192.0.2.1", listener: int = LISTENER) -> bytes:
    """The path key of a client."""
    return listener.to_bytes(2) + port.to_bytes(2) + pack_address(host)


def path_of(path_key: bytes) -> ClientPath:
    return ClientPath(path_key[4:], int.from_bytes(path_key[2:4]), int.from_bytes(path_key[:2]))


def rtp(ssrc: int, size: int = 160) -> bytes:
    return b"\x80\x6f" + bytes(6) + ssrc.to_bytes(4) + bytes(size - 12)


def rtcp(ssrc: int) -> bytes:
    """SRTCP: an empty receiver report, index and tag."""
    return b"\x80\xc9\x00\x01" + ssrc.to_bytes(4) + b"\x80" + bytes(13)


DTLS = b"\x16\xfe\xfd" + bytes(60)
INDICATION = stun.build(StunClass.INDICATION, bytes(12), [], None)


@dataclass(frozen=True)
class ToPod:
    """A hop datagram that the relay sent: parsed, its MAC tried."""

    route: Route
    address: Endpoint
    record: Record
    outer: Outer


def read_hop(datagram: bytes, address: Endpoint) -> ToPod:
    parsed: HopDatagram = hop.parse(datagram)
    assert HOP_KEYS.verify(parsed)
    assert not parsed.outer.to_client
    (record,) = parsed.records
    outer = parsed.outer
    return ToPod(Route(outer.cluster, outer.pod, outer.worker), address, record, outer)


@dataclass
class Rig:
    """A forwarder with three pods. Time stands still until `advance`."""

    limits: Limits = field(default_factory=Limits)
    ingress_only: bool = False
    with_store: bool = False
    hop_size: int = PLENTY
    now: float = 1_000.0
    unix: float = 1_800_000_000.0
    asked: list[ToPod] = field(default_factory=list)
    """Every WHO-HAS that was sent, one for each pod."""

    def __post_init__(self) -> None:
        keys = RelayKeys.of(key_file(ingress_only=self.ingress_only))
        self.forwarder = Forwarder(self.limits, (LISTENER, LISTENER_V6), keys, with_store=self.with_store)
        self.set_routes(POD_A, POD_B, POD_C)
        self.forwarder.tick(self.now, self.unix)

    def set_routes(self, *routes: Route, addresses: Mapping[Route, Endpoint] | None = None) -> None:
        places = addresses or ADDRESSES
        self.forwarder.set_routes(LiveRoute(route_bytes(route), places[route], self.hop_size) for route in routes)

    def advance(self, seconds: float) -> None:
        """Let time pass, with a tick at the end of every second."""
        end = self.now + seconds
        while self.now < end:
            step = min(1.0, end - self.now)
            self.now += step
            self.unix += step
            self.forwarder.tick(self.now, self.unix)

    def send(self, path_key: bytes, *datagrams: bytes, local: object = None) -> list[ToPod]:
        """Let a client send; return what goes to transceivers, and keep the questions in `asked`."""
        packets = [(path_key, local, datagram) for datagram in datagrams]
        sends = [read_hop(*sent) for sent in self.forwarder.from_clients(self.now, self.unix, packets)]
        data = [sent for sent in sends if sent.outer.type is HopType.DATA]
        questions = sends[len(data) :]
        assert all(sent.outer.type is HopType.WHO_HAS for sent in questions), "they leave last"
        self.asked += questions
        return data

    def count_sent(self, path_key: bytes, datagrams: list[bytes]) -> int:
        """Like `send`, for many: return only how many hop datagrams there were."""
        packets = [(path_key, None, datagram) for datagram in datagrams]
        return len(self.forwarder.from_clients(self.now, self.unix, packets))

    def hop(
        self,
        route: Route,
        path_key: bytes,
        payload: bytes = b"",
        flags: int = 0,
        *,
        kind: HopType = HopType.DATA,
        key: bytes = HOP_KEY,
        copies: int = 1,
        **outer: int | bool,
    ) -> bytes:
        """A hop datagram as a transceiver sends it; `outer` overrides fields of its outer part."""
        head = Outer(kind, True, route.cluster, route.pod, route.worker, 3, int(self.unix * 1000))
        head = replace(head, **outer)  # type: ignore[arg-type]  # names and types are checked by the class
        return hop.encode(head, (Record(path_of(path_key), payload, flags),) * copies, key)

    def receive(self, datagram: bytes, source: Endpoint) -> list[tuple[bytes, bytes, object]]:
        """Let a hop datagram arrive from `source`; return what goes to clients: (path key, datagram, local)."""
        answers = self.forwarder.from_transceivers(self.now, self.unix, [(datagram, source)])
        assert answers.to_transceivers == []
        return answers.to_clients

    def answer(
        self, route: Route, path_key: bytes, payload: bytes = b"answer", flags: int = ALIVE
    ) -> list[tuple[bytes, bytes, object]]:
        """Let the transceiver of `route` answer a client."""
        return self.receive(self.hop(route, path_key, payload, flags), ADDRESSES[route])

    def unknown_flow(self, route: Route, path_key: bytes) -> None:
        assert self.receive(self.hop(route, path_key, kind=HopType.UNKNOWN_FLOW), ADDRESSES[route]) == []

    def here(self, route: Route, path_key: bytes, ssrc: int = 0) -> list[ToPod]:
        """Let the transceiver of `route` say that it knows the client; return what had waited for that."""
        datagram = self.hop(route, path_key, ssrc.to_bytes(4), kind=HopType.HERE)
        answers = self.forwarder.from_transceivers(self.now, self.unix, [(datagram, ADDRESSES[route])])
        assert answers.to_clients == []
        released = [read_hop(*sent) for sent in answers.to_transceivers]
        assert all(sent.outer.type is HopType.DATA for sent in released)
        return released

    @property
    def exchange(self) -> Exchange:
        exchange = self.forwarder.state.exchange
        assert exchange is not None
        return exchange

    def stored(self, path_key: bytes, route: Route | None) -> list[ToPod]:
        """Let the store answer; return what had waited for that, and keep the questions in `asked`."""
        answer = (path_key, None if route is None else route_bytes(route))
        sends = [read_hop(*sent) for sent in self.forwarder.from_store(self.now, self.unix, [answer])]
        data = [sent for sent in sends if sent.outer.type is HopType.DATA]
        self.asked += sends[len(data) :]
        return data

    def connect(self, path_key: bytes, at: Session, ssrc: int | None = None) -> None:
        """Make a confirmed flow: check, answer, and RTP when `ssrc` is given."""
        assert len(self.send(path_key, at.check())) == 1
        assert self.answer(at.route, path_key)
        assert self.route_of(path_key) == at.route
        if ssrc is not None:
            assert len(self.send(path_key, rtp(ssrc))) == 1

    def flow(self, path_key: bytes) -> Flow | None:
        return self.forwarder.state.flows.by_key.get(path_key)

    def route_of(self, path_key: bytes) -> Route | None:
        """Where the flow map would send the client's packets."""
        flow = self.flow(path_key)
        if flow is None:
            return None
        return Route(int.from_bytes(flow.route[:2]), int.from_bytes(flow.route[2:6]), flow.route[6])

    def dropped(self, reason: Drop) -> int:
        return self.forwarder.counters.drops[reason]

    def happened(self, event: FlowEvent) -> int:
        return self.forwarder.counters.flow_events[event]

    @property
    def flows(self) -> int:
        return len(self.forwarder.state.flows)

    @property
    def drops(self) -> dict[Drop, int]:
        """The reasons that were counted."""
        return {reason: count for reason, count in self.forwarder.counters.drops.items() if count}
