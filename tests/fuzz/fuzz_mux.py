"""Invariant: parse or raise RemoteError, nothing else. Here it is counted instead: the door of a transceiver takes any
hop datagram, and what it sends back is authentic and goes where the question came from.
"""

import tempfile
from pathlib import Path

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core import hop, stun
    from usher_core.errors import RemoteError
    from usher_core.ids import ClientPath, Route, pack_address
    from usher_core.keys import HopKey, IceKey, KeyFile
    from usher_transceiver.ice import CheckOutcome, Generation, IceAgent
    from usher_transceiver.mux import Mux
    from usher_transceiver.paths import Via
    from usher_transceiver.transceiver_keys import TransceiverKeys

ROUTE = Route(1, 17)
HOP_KEY = bytes(range(16))
UNIX = 1_800_000_000.0
RELAY = ("192.0.2.1", 3478)
CLIENT = ClientPath(pack_address("198.51.100.7"), 50_000, 1)
UFRAG, PASSWORD = b"Aserver", b"p" * 32


def load_keys() -> TransceiverKeys:
    ice = IceKey(letter="A", clusters=(1,), ufrag_key=bytes(16), password_key=bytes(32))
    file = KeyFile(version=1, ice=(ice,), hop=(HopKey(id=1, key=HOP_KEY),))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "keys.json")
        path.write_text(file.model_dump_json())
        return TransceiverKeys(path, ROUTE, lambda: UNIX)


KEYS = load_keys()


class Session:
    """An owner with a real ICE agent, to whom no packet ever authenticates."""

    def __init__(self) -> None:
        self.agent = IceAgent(Generation(UFRAG, PASSWORD, (b"client",)), bytes(16), now=0.0)

    def on_check(
        self, now: float, request: stun.StunMessage, address: ClientPath, via: Via, *, usable: bool
    ) -> CheckOutcome:
        outcome, answer = self.agent.on_check(now, request, address, via, usable=usable)
        assert answer is None or stun.parse(answer).verify_integrity(PASSWORD)
        return outcome

    def on_packet(self, now: float, address: ClientPath, via: Via, packet: bytes) -> None:
        self.agent.on_dtls(address)
        raise RemoteError("srtp_authentication", "never")

    has_ended = False

    def is_quiet_at(self, now: float, address: ClientPath) -> bool:
        return False

    def forget(self, address: ClientPath) -> None:
        self.agent.forget(address)

    def fail(self, error: Exception) -> None:
        raise error


def one_input(data: bytes) -> None:
    sent: list[bytes] = []

    def send(datagram: bytes, address: object) -> None:
        assert address == RELAY
        sent.append(datagram)

    mux = Mux(ROUTE, KEYS, send, lambda: UNIX)
    session = Session()
    mux.add_ufrag(UFRAG, session)
    mux.add_source(7, session)
    kind = hop.HopType(1 + data[0] % 6) if data else hop.HopType.DATA
    for datagram in (data, signed(data), hop_datagram(kind, data[1:2], data[2:]), hop_datagram(kind, b"\4", data)):
        mux.on_datagram(1.0, datagram, RELAY)
    session.agent.tick(100.0)
    assert mux.received == 4
    assert all(hop.verify(hop.parse(datagram), HOP_KEY) for datagram in sent)


def signed(data: bytes) -> bytes:
    """The input as a hop datagram with a MAC that holds, where it parses at all."""
    try:
        return hop.encode(hop.parse(data).outer, hop.parse(data).records, HOP_KEY)
    except RemoteError:
        return data


def hop_datagram(kind: hop.HopType, flags: bytes, payload: bytes) -> bytes:
    """The input as the payload of two records."""
    outer = hop.Outer(kind, False, ROUTE.cluster, ROUTE.pod, ROUTE.worker, 1, int(UNIX * 1000))
    record = hop.Record(CLIENT, payload, flags[0] if flags else 0)
    return hop.encode(outer, (record, record), HOP_KEY)


def _check(*extra: tuple[int, bytes]) -> bytes:
    attributes = [(stun.Attribute.USERNAME, UFRAG + b":client"), (stun.Attribute.ICE_CONTROLLING, bytes(8)), *extra]
    return stun.build(stun.StunClass.REQUEST, bytes(12), attributes, PASSWORD)


SEEDS = [
    b"\0\0" + _check((stun.Attribute.USE_CANDIDATE, b"")),
    b"\0\0" + _check((stun.Attribute.ICE_CONTROLLED, bytes(8)), (0x0030, b"")),
    b"\0\0\x80\x6f" + bytes(6) + b"\0\0\0\7" + bytes(20),
    b"\2\0\0\0\0\7",
    b"\0\4" + bytes(30),
]

if __name__ == "__main__":
    main(one_input, SEEDS)
