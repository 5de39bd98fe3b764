"""Invariant: parse or raise RemoteError, nothing else. What parses is written back byte for byte."""

from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core import hop
    from usher_core.errors import RemoteError
    from usher_core.ids import ClientPath, pack_address

KEY = bytes(range(16))


def one_input(data: bytes) -> None:
    with suppress(RemoteError):
        datagram = hop.parse(data)
        again = hop.encode(datagram.outer, datagram.records, KEY)
        assert hop.verify(hop.parse(again), KEY)
        assert hop.verify(datagram, KEY) == (again == data)
        for record in datagram.records:
            assert str(record.path)


def _seed(kind: hop.HopType, *payloads: bytes) -> bytes:
    path = ClientPath(pack_address("192.0.2.7"), 50000, 1)
    outer = hop.Outer(kind, to_client=kind is hop.HopType.HERE, cluster=1, pod=17, worker=0, key_id=1, time_ms=0)
    return hop.encode(outer, tuple(hop.Record(path, payload) for payload in payloads), KEY)


SEEDS = [_seed(kind, b"", bytes(40)) for kind in hop.HopType] + [_seed(hop.HopType.DATA, b"x")]

if __name__ == "__main__":
    main(one_input, SEEDS)
