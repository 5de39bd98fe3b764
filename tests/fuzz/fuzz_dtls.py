"""Invariant: parse or raise RemoteError, nothing else. Here not even that: the state tells what became of a peer."""

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_transceiver.certificate import Certificate
    from usher_transceiver.dtls import MTU, Dtls, DtlsState, is_client_hello, pack_records, record_number
    from usher_transceiver.sdp import Fingerprint

CERTIFICATE = Certificate()
FINGERPRINTS = (Fingerprint("sha-256", ":".join(["AB"] * 32)),)


def one_input(data: bytes) -> None:
    is_client_hello(data)
    record_number(data)
    assert b"".join(pack_records(data)) == data
    first = data[0] if data else 0
    dtls = Dtls(CERTIFICATE, "client" if first & 1 else "server", FINGERPRINTS)
    dtls.start()
    middle = 1 + first * len(data) // 256
    for datagram in filter(None, (data[1:middle], data[middle:])):
        assert dtls.receive(datagram) == []
        assert all(len(sent) <= MTU for sent in dtls.take())
    assert dtls.state is not DtlsState.CONNECTED
    dtls.on_timer()
    dtls.close()


def _client_hello() -> bytes:
    client = Dtls(CERTIFICATE, "client", FINGERPRINTS)
    client.start()
    return b"".join(client.take())


def _server_flight(client_hello: bytes) -> bytes:
    server = Dtls(CERTIFICATE, "server", FINGERPRINTS)
    server.start()
    server.receive(client_hello)
    return b"".join(server.take())


HELLO = _client_hello()
SEEDS = [b"\xfe" + HELLO, b"\xff" + _server_flight(HELLO), b"\x80" + HELLO + HELLO]

if __name__ == "__main__":
    main(one_input, SEEDS)
