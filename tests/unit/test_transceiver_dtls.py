"""DTLS without sockets: handshakes, loss, order, sizes, certificates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import pytest
from OpenSSL import SSL

from tests.dtls_peers import make_context
from usher_transceiver.certificate import Certificate
from usher_transceiver.dtls import (
    MTU,
    RECORD_HEADER,
    Dtls,
    DtlsState,
    is_client_hello,
    pack_records,
    record_number,
)
from usher_transceiver.sdp import Fingerprint

OURS, THEIRS = Certificate(), Certificate()
Hook = Callable[[tuple[bytes, ...]], Iterable[bytes]]


def fingerprints(of: Certificate) -> tuple[Fingerprint, ...]:
    return (Fingerprint("sha-256", of.fingerprint),)


def pair(role: str = "server") -> tuple[Dtls, Dtls]:
    other = "client" if role == "server" else "server"
    ours = Dtls(OURS, role, fingerprints(THEIRS))  # type: ignore[arg-type]
    return ours, Dtls(THEIRS, other, fingerprints(OURS))  # type: ignore[arg-type]


def exchange(ours: Dtls, theirs: Dtls, change: Hook = lambda datagrams: datagrams) -> None:
    ours.start()
    theirs.start()
    while True:
        down, up = ours.take(), theirs.take()
        if not down and not up:
            return
        for datagram in change(up):
            ours.receive(datagram)
        for datagram in change(down):
            theirs.receive(datagram)


@pytest.mark.parametrize("role", ["server", "client"])
def test_both_roles_connect_and_agree_on_keys(role: str) -> None:
    ours, theirs = pair(role)
    exchange(ours, theirs)
    assert ours.state is theirs.state is DtlsState.CONNECTED
    here, there = ours.make_srtp(), theirs.make_srtp()
    assert here is not None
    assert there is not None
    packet = bytes((0x80, 111, 0, 1)) + bytes(8) + b"speech"
    assert there.unprotect(here.protect(packet)).plain == packet
    assert here.unprotect(there.protect(packet)).plain == packet


def test_a_wrong_certificate_ends_the_handshake() -> None:
    ours = Dtls(OURS, "server", fingerprints(OURS))
    theirs = Dtls(THEIRS, "client", fingerprints(OURS))
    exchange(ours, theirs)
    assert ours.state is DtlsState.FAILED
    assert ours.failure == "fingerprint"


def test_one_matching_fingerprint_of_several_is_enough() -> None:
    ours = Dtls(OURS, "server", fingerprints(OURS) + fingerprints(THEIRS))
    exchange(ours, Dtls(THEIRS, "client", fingerprints(OURS)))
    assert ours.state is DtlsState.CONNECTED


def test_close_notify_closes_the_peer() -> None:
    ours, theirs = pair()
    exchange(ours, theirs)
    ours.close()
    for datagram in ours.take():
        theirs.receive(datagram)
    assert ours.state is theirs.state is DtlsState.CLOSED


def test_all_records_of_a_datagram_are_read() -> None:
    ours, theirs = pair()
    exchange(ours, theirs)
    theirs.send(b"one")
    theirs.send(b"two")
    assert ours.receive(b"".join(theirs.take())) == [b"one", b"two"]


def test_a_replayed_record_is_dropped() -> None:
    ours, theirs = pair()
    exchange(ours, theirs)
    theirs.send(b"one")
    (datagram,) = theirs.take()
    assert ours.receive(datagram) == [b"one"]
    assert ours.receive(datagram) == []


@pytest.mark.parametrize("size", [0, 1, 12, 13, 14, 100, 1200])
def test_noise_closes_nothing(size: int) -> None:
    ours, theirs = pair()
    exchange(ours, theirs)
    for first in (20, 21, 22, 23, 24, 40, 63):
        ours.receive(bytes([first]) * size)
    theirs.send(b"still here")
    assert ours.receive(theirs.take()[0]) == [b"still here"]


ALERTS = {
    "close_notify": b"\x01\x00",
    "handshake_failure": b"\x02\x28",
    "unexpected_message": b"\x02\x0a",
    "no_renegotiation": b"\x01\x64",
    "cut off": b"\x02",
    "too long": b"\x02\x28\x02\x28",
}


def plain_record(kind: int, body: bytes, number: int, epoch: int = 0) -> bytes:
    return bytes([kind]) + b"\xfe\xfd" + epoch.to_bytes(2) + number.to_bytes(6) + len(body).to_bytes(2) + body


@pytest.mark.parametrize("number", [0, 1, 5, 1 << 47])
@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
@pytest.mark.parametrize("role", ["server", "client"])
def test_a_forged_alert_in_clear_ends_nothing_at_any_time(role: str, alert: bytes, number: int) -> None:
    ours, theirs = pair(role)
    forged = plain_record(21, alert, number)

    def forge(datagrams: tuple[bytes, ...]) -> Iterable[bytes]:
        ours.receive(forged)
        for datagram in datagrams:
            yield datagram
            ours.receive(forged)

    ours.start()
    ours.receive(forged)
    exchange(ours, theirs, forge)
    assert ours.state is theirs.state is DtlsState.CONNECTED
    for epoch in (0, 1, 2):
        ours.receive(plain_record(21, alert, number, epoch))
    theirs.send(b"still here")
    assert ours.receive(theirs.take()[0]) == [b"still here"]


def test_an_alert_beside_a_handshake_message_does_not_take_it_along() -> None:
    ours, theirs = pair()
    exchange(ours, theirs, lambda datagrams: [plain_record(21, b"\x02\x28", 77) + datagram for datagram in datagrams])
    assert ours.state is theirs.state is DtlsState.CONNECTED


@pytest.mark.parametrize("role", ["server", "client"])
@pytest.mark.parametrize("kind", [20, 22, 23, 24, 25])
@pytest.mark.parametrize("body", [b"", b"\x01", bytes(12), bytes(40), b"\x01\x00\x00\x20" + bytes(40)])
def test_nothing_in_clear_ends_what_is_connected(role: str, kind: int, body: bytes) -> None:
    ours, theirs = pair(role)
    exchange(ours, theirs)
    for epoch in (0, 1, 2):
        for number in (0, 7, 1 << 47):
            ours.receive(plain_record(kind, body, number, epoch))
    theirs.send(b"still here")
    assert ours.receive(theirs.take()[0]) == [b"still here"]


def fragment(client_hello: bytes, sizes: tuple[int, ...]) -> list[bytes]:
    """Cut a ClientHello into handshake fragments, each a record of its own (RFC 6347 section 4.2.3)."""
    record = client_hello[:RECORD_HEADER]
    header, body = client_hello[RECORD_HEADER : RECORD_HEADER + 12], client_hello[RECORD_HEADER + 12 :]
    fragments: list[bytes] = []
    offset = 0
    for number, size in enumerate(sizes):
        part = body[offset : offset + size]
        message = header[:6] + offset.to_bytes(3) + len(part).to_bytes(3) + part
        fragments.append(record[:5] + number.to_bytes(6) + len(message).to_bytes(2) + message)
        offset += len(part)
    assert offset == len(body)
    return fragments


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_client_hello_in_two_datagrams_is_understood_in_either_order(order: tuple[int, int]) -> None:
    ours, theirs = pair()
    ours.start()
    theirs.start()
    (hello,) = theirs.take()
    size = len(hello) - RECORD_HEADER - 12
    parts = fragment(hello, (size - 40, 40))
    assert all(is_client_hello(part) for part in parts)
    ours.receive(parts[order[0]])
    assert ours.take() == ()
    ours.receive(parts[order[1]])
    flight = ours.take()
    assert flight
    for datagram in flight:
        theirs.receive(datagram)
    assert theirs.take()


def test_datagrams_of_ours_fit_and_end_at_record_boundaries() -> None:
    ours, theirs = pair()
    seen: list[bytes] = []

    def look(datagrams: tuple[bytes, ...]) -> tuple[bytes, ...]:
        seen.extend(datagrams)
        return datagrams

    exchange(ours, theirs, look)
    assert max(map(len, seen)) <= MTU
    for datagram in seen:
        rest = datagram
        while rest:
            length = RECORD_HEADER + int.from_bytes(rest[11:13])
            assert length <= len(rest)
            rest = rest[length:]


def test_a_run_of_records_longer_than_a_datagram_is_cut_between_records() -> None:
    record = bytes((22,)) + bytes(10) + (500).to_bytes(2) + bytes(500)
    assert [len(part) for part in pack_records(record * 5)] == [1026, 1026, 513]
    assert pack_records(b"") == []
    assert pack_records(record + b"rest") == [record + b"rest"]


def test_record_numbers_are_read_from_application_data_only() -> None:
    ours, theirs = pair()
    exchange(ours, theirs)
    theirs.send(b"one")
    theirs.send(b"two")
    first, second = (record_number(datagram) for datagram in theirs.take())
    assert first is not None
    assert second == first + 1
    assert record_number(b"\x16" + bytes(20)) is None
    assert record_number(b"\x17") is None


@pytest.mark.parametrize("role", ["server", "client"])
@pytest.mark.parametrize("bits", [2048, 1024])
def test_rsa_certificates_of_clients_are_accepted_in_both_roles(role: str, bits: int) -> None:
    # GStreamer 1.22 has RSA 2048, small devices RSA 1024 (clients.md items 11 and 12).
    context, fingerprint = make_context("rsa", bits)
    theirs = SSL.Connection(context, None)
    theirs.set_ciphertext_mtu(MTU)
    if role == "server":
        theirs.set_connect_state()
    else:
        theirs.set_accept_state()
    ours = Dtls(OURS, role, (Fingerprint("sha-256", fingerprint),))  # type: ignore[arg-type]
    ours.start()
    for _ in range(6):
        with contextlib.suppress(SSL.WantReadError):
            theirs.do_handshake()
        with contextlib.suppress(SSL.WantReadError):
            for datagram in pack_records(theirs.bio_read(65_536)):
                ours.receive(datagram)
        for datagram in ours.take():
            theirs.bio_write(datagram)
    assert ours.state is DtlsState.CONNECTED


def test_as_client_we_offer_rsa_suites_and_fit_one_datagram() -> None:
    ours = Dtls(OURS, "client", fingerprints(THEIRS))
    ours.start()
    (hello,) = ours.take()
    assert len(hello) <= MTU
    assert b"\xc0\x2f" in hello  # TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    assert b"\xc0\x2b" in hello  # TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
    assert b"\x00\x01" in hello[hello.index(b"\x00\x0e\x00") :]  # use_srtp with AES128_CM_SHA1_80


def test_the_fingerprint_is_written_as_sdp_wants_it() -> None:
    assert len(OURS.fingerprint) == 95
    assert OURS.fingerprint == OURS.fingerprint.upper()
