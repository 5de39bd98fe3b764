"""A client that is light enough to make hundreds of calls from one process: for load, not for judging sound.

It is a full peer on the wire (ICE controlling agent with one candidate pair, DTLS, SRTP; the last two are the
transceiver's own), also for servers with full ICE and those that begin the handshake. But it encodes and decodes
nothing: it sends ready Opus packets, and reads of what comes back only what SRTP leaves in clear. Protocol only:
datagrams and `now` (monotonic seconds) in, datagrams out.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass, field
from typing import Final, Literal

from usher_cli.call.api import CallError
from usher_cli.call.opus import FRAME_SAMPLES
from usher_cli.call.steady_checks import CHECK_INTERVAL_S
from usher_core import stun
from usher_core.datagram import DatagramClass, classify
from usher_core.errors import RemoteError
from usher_core.ids import pack_address
from usher_core.rtp import is_rtcp
from usher_core.sdplines import Level, read_document
from usher_core.stun import Attribute, StunClass, StunMessage
from usher_transceiver.certificate import Certificate
from usher_transceiver.dtls import Dtls, DtlsState
from usher_transceiver.sdp import Fingerprint
from usher_transceiver.srtp import Srtp

CHECK_AGAIN_S: Final = 0.05
CONSENT_S: Final = 30.0
"""RFC 7675 section 5.1: without an answered check for so long, sending must stop."""
PAYLOAD_TYPE: Final = 111
_PRIORITY: Final = (126 << 24 | 65535 << 8 | 255).to_bytes(4)
_MAX_OPEN_CHECKS: Final = 32
_RTP = struct.Struct("!BBHII")


@dataclass(slots=True)
class LightRecord:
    """What a light call saw. Times in monotonic seconds; `sequence` is the highest RTP sequence number, unwrapped."""

    answered_at: float | None = None
    ice_at: float | None = None
    dtls_at: float | None = None
    first_packet_at: float | None = None
    last_packet_at: float | None = None
    longest_gap_s: float = 0.0
    received: int = 0
    sent: int = 0
    first_sequence: int = 0
    sequence: int = 0
    rtts_s: list[float] = field(default_factory=list)
    ended: str | None = None

    @property
    def lost(self) -> int:
        """Packets of the sequence that never came; duplicates hide as many."""
        return max(0, self.sequence - self.first_sequence + 1 - self.received) if self.received else 0


class LightClient:
    """One call.

    Args:
        certificate: shared by all clients.
        phase: where in the loop of packets it starts, so that not all calls send the same packet at a time.
    """

    def __init__(self, certificate: Certificate, phase: int) -> None:
        self.record = LightRecord()
        self._certificate = certificate
        self._ufrag = secrets.token_hex(4)
        self._password = secrets.token_hex(16)
        self._ssrc = secrets.randbits(32)
        self._sequence = secrets.randbits(15)
        self._timestamp = secrets.randbits(32)
        self._index = phase
        self._tie_breaker = secrets.token_bytes(8)
        self._username = b""
        self._server_password = b""
        self._server = ("", 0)
        self._dtls: Dtls | None = None
        self._srtp: Srtp | None = None
        self._checks: dict[bytes, float] = {}
        self._next_check_at = 0.0
        self._answered_check_at: float | None = None

    @property
    def offer(self) -> str:
        """The offer: one audio section, nothing else."""
        lines = [
            "v=0",
            f"o=- {secrets.randbits(62)} 1 IN IP4 127.0.0.1",
            "s=-",
            "t=0 0",
            "a=group:BUNDLE 0",
            f"m=audio 9 UDP/TLS/RTP/SAVPF {PAYLOAD_TYPE}",
            "c=IN IP4 0.0.0.0",
            "a=mid:0",
            "a=sendrecv",
            "a=rtcp-mux",
            f"a=rtpmap:{PAYLOAD_TYPE} opus/48000/2",
            f"a=ice-ufrag:{self._ufrag}",
            f"a=ice-pwd:{self._password}",
            f"a=fingerprint:sha-256 {self._certificate.fingerprint}",
            "a=setup:actpass",
            f"a=ssrc:{self._ssrc} cname:{self._ufrag}",
        ]
        return "\r\n".join(lines) + "\r\n"

    def accept(self, answer: str, now: float) -> tuple[str, int]:
        """Take the answer; return the (IP, port) to talk to. Raises CallError for an answer that lacks something."""
        try:
            section = read_document(answer).sections[0][1]
        except (RemoteError, IndexError) as error:
            raise CallError(f"our client can't use the answer: {error}") from None
        algorithm, _, value = _attribute(section, "fingerprint").partition(" ")
        candidate = _attribute(section, "candidate").split()
        self._username = f"{_attribute(section, 'ice-ufrag')}:{self._ufrag}".encode()
        self._server_password = _attribute(section, "ice-pwd").encode()
        setup = section.first("setup")
        role: Literal["client", "server"] = "server" if setup and setup.argument == "active" else "client"
        self._dtls = Dtls(self._certificate, role, (Fingerprint(algorithm, value),))
        if role == "server":
            self._dtls.start()
        self.record.answered_at = now
        self._next_check_at = now
        self._server = (candidate[4], int(candidate[5]))
        return self._server

    @property
    def is_connected(self) -> bool:
        return self._srtp is not None and self.record.ended is None

    def on_datagram(self, now: float, datagram: bytes) -> list[bytes]:
        """Take a datagram; return what to send."""
        match classify(datagram):
            case DatagramClass.RTP:
                self._on_media(now, datagram)
            case DatagramClass.STUN:
                return self._on_stun(now, datagram)
            case DatagramClass.DTLS:
                return self._on_dtls(now, datagram)
        return []

    def on_timer(self, now: float) -> list[bytes]:
        """Return the checks and handshake datagrams that are due."""
        out: list[bytes] = []
        if self.record.ended is not None:
            return out
        if self._answered_check_at is not None and now - self._answered_check_at > CONSENT_S:
            self.record.ended = "consent expired"
            return out
        if now >= self._next_check_at:
            self._next_check_at = now + (CHECK_AGAIN_S if self.record.ice_at is None else CHECK_INTERVAL_S)
            out.append(self._check(now))
        if self._dtls is not None and self._srtp is None:
            self._dtls.on_timer()
            out += self._dtls.take()
        return out

    def next_audio(self, packets: tuple[bytes, ...]) -> bytes | None:
        """Return the next audio packet, protected; None unless connected."""
        if self._srtp is None or self.record.ended is not None:
            return None
        header = _RTP.pack(0x80, PAYLOAD_TYPE, self._sequence, self._timestamp, self._ssrc)
        packet = self._srtp.protect(header + packets[self._index % len(packets)])
        self._sequence = (self._sequence + 1) & 0xFFFF
        self._timestamp = (self._timestamp + FRAME_SAMPLES) & 0xFFFFFFFF
        self._index += 1
        self.record.sent += 1
        return packet

    def close(self) -> tuple[bytes, ...]:
        """Return the farewell."""
        if self._dtls is None:
            return ()
        self._dtls.close()
        return self._dtls.take()

    def _check(self, now: float) -> bytes:
        transaction_id = secrets.token_bytes(12)
        if len(self._checks) >= _MAX_OPEN_CHECKS:
            self._checks.pop(next(iter(self._checks)))
        self._checks[transaction_id] = now
        attributes: list[tuple[int, bytes]] = [
            (Attribute.USERNAME, self._username),
            (Attribute.PRIORITY, _PRIORITY),
            (Attribute.ICE_CONTROLLING, self._tie_breaker),
        ]
        if self.record.ice_at is None:
            # Its only pair, so it nominates at once (RFC 8445 section 8.1.1 leaves the criteria to us).
            attributes.append((Attribute.USE_CANDIDATE, b""))
        return stun.build(StunClass.REQUEST, transaction_id, attributes, self._server_password)

    def _on_stun(self, now: float, datagram: bytes) -> list[bytes]:
        try:
            message = stun.parse(datagram)
        except RemoteError:
            return []
        if message.is_binding_request:
            return self._answer_check(message)
        sent_at = self._checks.pop(message.transaction_id, None)
        if sent_at is None or message.cls is not StunClass.SUCCESS:
            return []
        if not message.verify_integrity(self._server_password):
            return []
        self._answered_check_at = now
        self.record.rtts_s.append(now - sent_at)
        if self.record.ice_at is not None or self._dtls is None:
            return []
        self.record.ice_at = now
        self._next_check_at = now + CHECK_INTERVAL_S
        if self._dtls.state is DtlsState.NEW:
            self._dtls.start()
        return list(self._dtls.take())

    def _answer_check(self, request: StunMessage) -> list[bytes]:
        """A server with full ICE checks too (RFC 8445 section 7.3)."""
        password = self._password.encode()
        if not request.verify_integrity(password):
            return []
        host, port = self._server
        return [stun.build_success(request, pack_address(host), port, password)]

    def _on_dtls(self, now: float, datagram: bytes) -> list[bytes]:
        if self._dtls is None:
            return []
        self._dtls.receive(datagram)
        if self._dtls.state is DtlsState.CONNECTED and self._srtp is None:
            self._srtp = self._dtls.make_srtp()
            self.record.dtls_at = now
        elif self._dtls.state in (DtlsState.CLOSED, DtlsState.FAILED):
            self.record.ended = self.record.ended or f"DTLS {self._dtls.failure or 'was closed by the server'}"
        return list(self._dtls.take())

    def _on_media(self, now: float, datagram: bytes) -> None:
        if is_rtcp(datagram) or len(datagram) < _RTP.size:
            return
        record = self.record
        sequence = int.from_bytes(datagram[2:4])
        if record.last_packet_at is None:
            record.first_packet_at = now
            record.first_sequence = record.sequence = sequence
        else:
            record.longest_gap_s = max(record.longest_gap_s, now - record.last_packet_at)
            step = (sequence - record.sequence + 0x8000) % 0x10000 - 0x8000
            record.sequence += max(step, 0)
        record.last_packet_at = now
        record.received += 1


def _attribute(section: Level, name: str) -> str:
    line = section.first(name)
    if line is None:
        raise CallError(f"our client can't use the answer: it has no a={name}")
    return line.argument
