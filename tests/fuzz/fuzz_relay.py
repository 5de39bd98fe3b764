"""Invariant: parse or raise RemoteError, nothing else. Here it is counted instead: a relay takes any datagrams from
either side, sends only to its live routes and its own listeners, and loses count of none.
"""

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core import hop, stun
    from usher_core.errors import RemoteError
    from usher_core.ids import ClientPath, Route, pack_address
    from usher_core.keys import HopKey, IceKey, KeyFile
    from usher_relay.forwarder import Forwarder
    from usher_relay.hop_codec import route_bytes
    from usher_relay.state import Limits, LiveRoute, RelayKeys

LISTENER = 1
ROUTE = Route(1, 17)
TRANSCEIVER = ("192.0.2.17", 40001)
HOP_KEY = bytes(range(16))
UNIX = 1_800_000_000.0
ICE_KEY = IceKey(letter="A", clusters=(1,), ufrag_key=bytes(16), password_key=bytes(32))
KEYS = RelayKeys.of(KeyFile(version=1, ice=(ICE_KEY,), hop=(HopKey(id=1, key=HOP_KEY),)))
UFRAG, PASSWORD = (text.encode() for text in KEYS.ice.make(ROUTE, b"usher", UNIX))
CLIENT = ClientPath(pack_address("198.51.100.7"), 50_000, LISTENER)
OTHER_CLIENT = ClientPath(pack_address("2001:db8::7"), 50_000, LISTENER)
MAX_FLOWS = 8


def one_input(data: bytes) -> None:
    relay = Forwarder(Limits(max_flows=MAX_FLOWS), [LISTENER], KEYS)
    relay.set_routes([LiveRoute(route_bytes(ROUTE), TRANSCEIVER, 1400)])
    relay.tick(0.0, UNIX)
    checks = [(path_key(CLIENT), None, CHECK)] if data[:1] > b"\x7f" else []
    relay.from_clients(0.0, UNIX, checks)
    cut = len(data) // 2
    clients = [(path_key(path), None, part) for path in (CLIENT, OTHER_CLIENT) for part in (data[1:], data[1:cut])]
    for datagram, address in relay.from_clients(1.0, UNIX, clients):
        assert address == TRANSCEIVER
        assert hop.verify(hop.parse(datagram), HOP_KEY)
    hops = [(part, TRANSCEIVER) for part in (data[1:], signed(data[1:]), hop_datagram(data[1:]), here(data[1:5]))]
    answers = relay.from_transceivers(1.01, UNIX, [*hops, (hops[2][0], ("203.0.113.1", 1))])
    for key, _datagram, _local in answers.to_clients:
        assert key[:2] == LISTENER.to_bytes(2)
    for datagram, address in answers.to_transceivers:
        assert address == TRANSCEIVER
        assert hop.verify(hop.parse(datagram), HOP_KEY)
    relay.tick(200.0, UNIX)
    assert relay.counters.waiting_bytes == 0
    counted = relay.counters
    assert counted.uplink.received == len(clients) + len(checks)
    assert counted.downlink.received == len(hops) + 1
    assert counted.uplink.forwarded + sum(counted.drops.values()) >= counted.uplink.received
    assert len(relay.state.flows.by_key) <= MAX_FLOWS


def path_key(path: ClientPath) -> bytes:
    return path.listener.to_bytes(2) + path.port.to_bytes(2) + path.address


def signed(data: bytes) -> bytes:
    """The input as a hop datagram with a MAC that holds, where it parses at all."""
    try:
        return hop.encode(hop.parse(data).outer, hop.parse(data).records, HOP_KEY)
    except RemoteError:
        return data


def hop_datagram(data: bytes) -> bytes:
    """The input as the payload of an answer."""
    kind = hop.HopType.UNKNOWN_FLOW if data[:1] < b"\x10" else hop.HopType.DATA
    outer = hop.Outer(kind, True, ROUTE.cluster, ROUTE.pod, ROUTE.worker, 1, int(UNIX * 1000))
    flags = data[0] if data else 0
    return hop.encode(outer, (hop.Record(CLIENT, data, flags), hop.Record(OTHER_CLIENT, data[:20], flags)), HOP_KEY)


def here(data: bytes) -> bytes:
    """The input as the answer to the question that the other client's datagrams have raised."""
    outer = hop.Outer(hop.HopType.HERE, True, ROUTE.cluster, ROUTE.pod, ROUTE.worker, 1, int(UNIX * 1000))
    return hop.encode(outer, (hop.Record(OTHER_CLIENT, data),), HOP_KEY)


CHECK = stun.build(stun.StunClass.REQUEST, bytes(12), [(stun.Attribute.USERNAME, UFRAG + b":client")], PASSWORD)
RTP = b"\x80\x6f" + bytes(30)
BODIES = (CHECK, RTP, b"\x80\x6f" + bytes(10), hop_datagram(RTP), hop_datagram(b""))
SEEDS = [first + body for first in (b"\0", b"\xff") for body in BODIES]

if __name__ == "__main__":
    main(one_input, SEEDS)
