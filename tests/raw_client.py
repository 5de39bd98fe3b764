"""A client made of single packets: no socket, no timers, every byte and address under the test's control."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

from OpenSSL import SSL

from tests.dtls_peers import make_context
from tests.ice_checks import check_bytes, path
from tests.transceiver_rig import Rig, until
from usher_core import stun
from usher_core.datagram import DatagramClass, classify
from usher_core.ids import ClientPath
from usher_core.stun import StunClass
from usher_transceiver.dtls import pack_records
from usher_transceiver.ice import Generation
from usher_transceiver.session import Session
from usher_transceiver.srtp import EXPORTER_LABEL, Srtp, profile_named

SSRC = 0x01020304


class RawClient:
    """One client; `mtu` cuts its DTLS flights, `key` is "p256" or "rsa"."""

    def __init__(
        self,
        rig: Rig,
        port: int,
        *,
        setup: str = "active",
        mtu: int = 1200,
        codec: str = "opus/48000/2",
        **context: Any,
    ) -> None:
        self.rig = rig
        self.path = path(port)
        self.ufrag = f"raw{port}"
        self.setup = setup
        self.codec = codec
        self.sequence = 0
        self.responses: list[stun.StunMessage] = []
        self.rtp: list[bytes] = []
        self.dtls_in: list[bytes] = []
        self.hold_dtls = False
        ssl_context, self.fingerprint = make_context(**context)
        self.ssl = SSL.Connection(ssl_context, None)
        self.ssl.set_ciphertext_mtu(mtu)
        self.mtu = mtu
        self.is_dtls_client = setup == "active"
        if self.is_dtls_client:
            self.ssl.set_connect_state()
        else:
            self.ssl.set_accept_state()
        self.srtp: Srtp | None = None
        rig.relay.sinks[self.path] = self._on_datagram

    def offer(self) -> str:
        transport = (
            f"c=IN IP4 0.0.0.0\na=ice-ufrag:{self.ufrag}\na=ice-pwd:0123456789abcdef01234567\n"
            f"a=fingerprint:sha-256 {self.fingerprint}\na=setup:{self.setup}\na=rtcp-mux\n"
        )
        return (
            "v=0\no=- 1 1 IN IP4 0.0.0.0\ns=-\nt=0 0\na=group:BUNDLE audio\n"
            f"m=audio 9 UDP/TLS/RTP/SAVP 111\na=mid:audio\na=rtpmap:111 {self.codec}\n{transport}"
        ).replace("\n", "\r\n")

    async def create(self, **create: Any) -> Session:
        created = await self.rig.create(self.offer(), **create)
        session = self.rig.transceiver.sessions.get(created["session_id"])
        assert session is not None
        self.session = session
        return session

    @property
    def generation(self) -> Generation:
        return self.session.participant.agent.newest

    # Out

    def send(self, payload: bytes, at: ClientPath | None = None, flags: int = 0) -> None:
        self.rig.relay.forward(at or self.path, payload, flags)

    def check(self, at: ClientPath | None = None, **options: Any) -> bytes:
        request = check_bytes(self.generation, **options)
        self.send(request, at)
        return request

    def speak(self, at: ClientPath | None = None, flags: int = 0, payload: bytes = b"\xf8\xff\xfe") -> bytes:
        """Send one RTP packet; return its protected bytes."""
        assert self.srtp is not None
        self.sequence += 1
        header = struct.pack("!BBHII", 0x80, 111, self.sequence, 960 * self.sequence, SSRC)
        protected = self.srtp.protect(header + payload)
        self.send(protected, at, flags)
        return protected

    # In

    def _on_datagram(self, payload: bytes) -> None:
        match classify(payload):
            case DatagramClass.STUN:
                self.responses.append(stun.parse(payload))
            case DatagramClass.DTLS:
                self.dtls_in.append(payload)
                if not self.hold_dtls:
                    self.ssl.bio_write(payload)
                    self.handshake()
            case DatagramClass.RTP:
                self.rtp.append(payload)

    # DTLS

    def flight(self) -> list[bytes]:
        """What OpenSSL wants to send, as datagrams."""
        with contextlib.suppress(SSL.WantReadError):
            self.ssl.do_handshake()
        try:
            return pack_records(self.ssl.bio_read(65_536), self.mtu)
        except SSL.WantReadError:
            return []

    def handshake(self) -> None:
        for datagram in self.flight():
            self.send(datagram)

    async def connect(self) -> None:
        """Check and complete DTLS."""
        self.check(nominate=True)
        await until(lambda: self.responses, "the check is answered")
        assert self.responses[-1].cls is StunClass.SUCCESS
        if self.is_dtls_client:
            self.handshake()
        await self.connected()

    async def connected(self) -> None:
        await until(lambda: self.session.state == "connected", "DTLS is done")
        await until(self.ssl.get_peer_finished, "the client is done too")
        profile = profile_named(self.ssl.get_selected_srtp_profile())
        assert profile is not None
        keying = self.ssl.export_keying_material(EXPORTER_LABEL, profile.keying_length, None)
        self.srtp = Srtp(profile, keying, "client" if self.is_dtls_client else "server")
