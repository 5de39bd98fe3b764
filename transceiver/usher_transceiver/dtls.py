"""DTLS 1.2 of one client, without I/O: datagrams in, datagrams and application data out (RFC 6347, 5764).

OpenSSL is driven here through its memory BIO. aiortc's RTCDtlsTransport is not used: it reads one record per
datagram, cuts flights at no record boundary, has no MTU and needs a task and a queue per call
(docs/decisions/0007-dtls-by-hand.md).

Rules:
* Datagrams of ours have at most `MTU` bytes and end at record boundaries.
* A certificate is right when it matches one fingerprint of the offer (RFC 8122 section 5.1).
* During the handshake nothing but handshake messages is taken in clear, no alert above all: anybody who can fake the
  client's address could end its call with one (RFC 6347 section 4.1.2.7). A client that gives up in earnest is noticed
  when the handshake's time is over. Forged handshake messages can't be told from true ones in DTLS 1.2 and still spoil
  a handshake. After it OpenSSL itself drops all in clear but repeated flights.
* Whatever a peer sends, `receive` raises nothing; the state tells what became of it.
"""

from __future__ import annotations

import contextlib
from enum import Enum, auto
from typing import Literal

from OpenSSL import SSL

from usher_transceiver.certificate import Certificate
from usher_transceiver.sdp import Fingerprint
from usher_transceiver.srtp import EXPORTER_LABEL, Srtp, profile_named

MTU = 1200
"""UDP payload bytes; what every path carries (RFC 8831 section 5), and what Chromium itself uses."""
RECORD_HEADER = 13
MAX_PLAINTEXT = 16_384

_APPLICATION_DATA = 23
_HANDSHAKE = 22
_CHANGE_CIPHER_SPEC = 20
_CLIENT_HELLO = 1
_READ_SIZE = 4096
_DIGESTS = {"sha-256": "sha256", "sha-384": "sha384", "sha-512": "sha512"}


class DtlsState(Enum):
    """Life of a DTLS association."""

    NEW = auto()
    CONNECTING = auto()
    CONNECTED = auto()
    CLOSED = auto()
    """By close_notify or a fatal alert of either side."""
    FAILED = auto()
    """The handshake failed; `Dtls.failure` says why."""


class Dtls:
    """One association.

    Args:
        certificate: ours.
        role: ours, by `a=setup`.
        fingerprints: of the offer; all of one hash function.
    """

    def __init__(
        self, certificate: Certificate, role: Literal["client", "server"], fingerprints: tuple[Fingerprint, ...]
    ) -> None:
        self.role = role
        self.state = DtlsState.NEW
        self.failure = ""
        self._fingerprints = fingerprints
        self._out: list[bytes] = []
        self._ssl = SSL.Connection(certificate.context, None)
        self._ssl.set_ciphertext_mtu(MTU)
        if role == "server":
            self._ssl.set_accept_state()
        else:
            self._ssl.set_connect_state()

    def start(self) -> None:
        """Begin the handshake; as client that makes the ClientHello."""
        if self.state is DtlsState.NEW:
            self.state = DtlsState.CONNECTING
            self._handshake()

    def receive(self, datagram: bytes) -> list[bytes]:
        """Take a datagram of the client; return the application data in it."""
        if not datagram or self.state not in (DtlsState.CONNECTING, DtlsState.CONNECTED):
            return []
        if self.state is DtlsState.CONNECTING:
            datagram = _without_plain_extras(datagram)
            if not datagram:
                return []
            self._ssl.bio_write(datagram)
            self._handshake()
        else:
            self._ssl.bio_write(datagram)
        data = self._read() if self.state is DtlsState.CONNECTED else []
        self._drain()
        return data

    def take(self) -> tuple[bytes, ...]:
        """Return the datagrams to send, and forget them."""
        taken = tuple(self._out)
        self._out.clear()
        return taken

    def send(self, data: bytes) -> None:
        """Protect application data as one record. Does nothing unless connected."""
        if self.state is not DtlsState.CONNECTED:
            return
        try:
            self._ssl.send(data)
        except SSL.Error:
            self.state = DtlsState.CLOSED
        self._drain()

    def on_timer(self) -> None:
        """Let OpenSSL repeat its flight if its own timer (1 s, doubling) has run out."""
        if self.state is not DtlsState.CONNECTING:
            return
        left = self._ssl.DTLSv1_get_timeout()
        if left is not None and left <= 0:
            try:
                self._ssl.DTLSv1_handle_timeout()
            except SSL.Error:
                self._fail("timeout")
            self._drain()

    def close(self) -> None:
        """Make the close_notify alert (RFC 5246 section 7.2.1)."""
        if self.state in (DtlsState.CONNECTING, DtlsState.CONNECTED):
            # In the middle of a handshake there is nothing to close.
            with contextlib.suppress(SSL.Error):
                self._ssl.shutdown()
            self._drain()
        self.state = DtlsState.CLOSED

    def make_srtp(self) -> Srtp | None:
        """Return the SRTP keys of the finished handshake; None when the client negotiated no profile."""
        profile = profile_named(self._ssl.get_selected_srtp_profile())
        if profile is None:
            return None
        keying = self._ssl.export_keying_material(EXPORTER_LABEL, profile.keying_length, None)
        return Srtp(profile, keying, self.role)

    def _handshake(self) -> None:
        try:
            self._ssl.do_handshake()
        except SSL.WantReadError:
            self._drain()
            return
        except SSL.Error:
            self._fail("handshake")
            self._drain()
            return
        self._drain()
        if self._is_expected_peer():
            self.state = DtlsState.CONNECTED
        else:
            self._fail("fingerprint")

    def _is_expected_peer(self) -> bool:
        certificate = self._ssl.get_peer_certificate()
        if certificate is None:
            return False
        for fingerprint in self._fingerprints:
            digest = _DIGESTS.get(fingerprint.algorithm.lower())
            if digest and certificate.digest(digest).decode("ascii").upper() == fingerprint.value.upper():
                return True
        return False

    def _fail(self, why: str) -> None:
        self.state = DtlsState.FAILED
        self.failure = why

    def _read(self) -> list[bytes]:
        data: list[bytes] = []
        while True:
            try:
                data.append(self._ssl.recv(MAX_PLAINTEXT))
            except SSL.WantReadError:
                return data
            except SSL.Error:
                # ZeroReturnError is the client's close_notify, everything else a fatal alert.
                self.state = DtlsState.CLOSED
                return data

    def _drain(self) -> None:
        written = b""
        while True:
            try:
                written += self._ssl.bio_read(_READ_SIZE)
            except SSL.Error:
                break
        self._out.extend(pack_records(written))


def pack_records(records: bytes, limit: int = MTU) -> list[bytes]:
    """Cut a run of DTLS records into datagrams of at most `limit` bytes, each as full as whole records allow."""
    datagrams: list[bytes] = []
    start = end = 0
    while end < len(records):
        stop = len(records)
        if end + RECORD_HEADER <= len(records):
            stop = min(stop, end + RECORD_HEADER + int.from_bytes(records[end + 11 : end + 13]))
        if end > start and stop - start > limit:
            datagrams.append(records[start:end])
            start = end
        end = stop
    if end > start:
        datagrams.append(records[start:end])
    return datagrams


def _without_plain_extras(datagram: bytes) -> bytes:
    """Leave out the records of epoch 0 that are neither handshake nor ChangeCipherSpec, and what is no record."""
    kept = b""
    start = 0
    while start + RECORD_HEADER <= len(datagram):
        end = start + RECORD_HEADER + int.from_bytes(datagram[start + 11 : start + 13])
        is_plain = datagram[start + 3 : start + 5] == b"\x00\x00"
        if not is_plain or datagram[start] in (_HANDSHAKE, _CHANGE_CIPHER_SPEC):
            kept += datagram[start:end]
        start = end
    return kept


def record_number(datagram: bytes) -> int | None:
    """Return epoch and sequence number of the first record if it is application data, else None (RFC 6347 section
    4.1).
    """
    if len(datagram) < RECORD_HEADER or datagram[0] != _APPLICATION_DATA:
        return None
    return int.from_bytes(datagram[3:11])


def is_client_hello(datagram: bytes) -> bool:
    """Tell whether a datagram begins with a ClientHello in clear, or with a fragment of one."""
    return (
        len(datagram) > RECORD_HEADER
        and datagram[0] == _HANDSHAKE
        and datagram[3:5] == b"\x00\x00"
        and datagram[RECORD_HEADER] == _CLIENT_HELLO
    )
