"""One client of a call: ICE, DTLS, SRTP and data channels put together, and nothing about what is said.

Datagrams of the client come in by `on_check` and `on_packet`; plain RTP, RTCP and channel messages go to the
listener. What is to be sent leaves through `send`. Time is an argument; `clock` serves only aiortc's SCTP timers,
which call by themselves.

Rules:
* DTLS is taken from addresses that have passed a check; SRTP from anywhere, since it authenticates itself.
* A packet that is refused raises RemoteError and changes nothing; the caller counts it.
* Audio goes before data where an address is not confirmed (paths.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from usher_core.datagram import DatagramClass, classify
from usher_core.errors import RemoteError
from usher_core.ids import ClientPath
from usher_core.stun import StunMessage
from usher_transceiver.aiortc_adapter import ChannelListener, DataChannels
from usher_transceiver.dtls import Dtls, DtlsState, is_client_hello, record_number
from usher_transceiver.flight import Flight
from usher_transceiver.ice import CheckOutcome, Expiry, IceAgent
from usher_transceiver.paths import Path, Via
from usher_transceiver.sdp import DataSection
from usher_transceiver.srtp import Srtp

LOOK_S = 0.1
"""Seconds between looks at a connected client's life: what they find is counted in seconds."""

SendDatagram = Callable[[ClientPath, Via, bytes, bool], None]
"""Sends a datagram to a client: its address, the way back, the payload, and whether the client is alive there."""


class ParticipantListener(ChannelListener, Protocol):
    """Told what happens; all calls come from within the participant's own methods."""

    def on_first_check(self, now: float) -> None:
        """The client reaches us."""

    def on_connected(self, now: float) -> None:
        """DTLS is done: SRTP can be sent."""

    def on_source(self, ssrc: int) -> None:
        """An SSRC of the client's authenticated for the first time."""

    def on_rtp(self, now: float, packet: bytes) -> None:
        """A plain RTP packet."""

    def on_rtcp(self, now: float, packet: bytes) -> None:
        """A plain RTCP packet."""

    def on_gone(self, reason: str) -> None:
        """The client hung up, or can't go on; may come from any method, and more than once."""


class Participant:
    """The transport of one client.

    Args:
        agent: its ICE agent.
        dtls: its DTLS association, not started.
        data: the data section of the offer, if there was one.
        send: sends a datagram.
        listener: see ParticipantListener.
        clock: seconds, monotonic, the same as `now`.
    """

    def __init__(
        self,
        agent: IceAgent,
        dtls: Dtls,
        data: DataSection | None,
        send: SendDatagram,
        listener: ParticipantListener,
        clock: Callable[[], float],
    ) -> None:
        self.agent = agent
        self._dtls = dtls
        self._data = data
        self._send = send
        self._listener = listener
        self._clock = clock
        self._flight = Flight()
        self._srtp: Srtp | None = None
        self._channels: DataChannels | None = None
        self._newest_record = -1
        self._look_at = 0.0
        self._closed = False
        self.unsent = 0
        """Datagrams that had nowhere to go, or would have gone beyond the bound of an unconfirmed address."""
        if dtls.role == "server":
            dtls.start()

    # In

    def on_check(
        self, now: float, request: StunMessage, address: ClientPath, via: Via, *, usable: bool
    ) -> CheckOutcome:
        """Handle a Binding request for one of our ufrags and answer it, if it is to be answered."""
        was_reached = self.agent.first_check is not None
        outcome, answer = self.agent.on_check(now, request, address, via, usable=usable)
        if answer is not None:
            path = self.agent.path(address)
            self._send(address, via, answer, path is not None and path.is_alive(now))
        if not was_reached and self.agent.first_check is not None:
            self._listener.on_first_check(now)
            if self._dtls.state is DtlsState.NEW:
                self._dtls.start()
                self._flush_dtls(now)
        return outcome

    def on_packet(self, now: float, address: ClientPath, via: Via, packet: bytes) -> None:
        """Handle anything that is not STUN.

        Raises RemoteError: `unknown_class`, `dtls_unchecked_address`, `srtp_early` (before DTLS is done), what
        `Srtp.unprotect` raises and what `DataChannels.receive` raises.
        """
        match classify(packet):
            case DatagramClass.RTP:
                self._on_srtp(now, address, via, packet)
            case DatagramClass.DTLS:
                self._on_dtls(now, address, via, packet)
            case _:
                raise RemoteError("unknown_class", "neither DTLS nor RTP")

    def _on_srtp(self, now: float, address: ClientPath, via: Via, packet: bytes) -> None:
        if self._srtp is None:
            raise RemoteError("srtp_early", "SRTP before DTLS has made keys")
        plain, is_rtcp, newer, new_source = self._srtp.unprotect(packet)
        self._on_authenticated(now, address, via, len(packet), newer)
        if new_source is not None:
            self._listener.on_source(new_source)
        if is_rtcp:
            self._listener.on_rtcp(now, plain)
        else:
            self._listener.on_rtp(now, plain)

    def _on_authenticated(self, now: float, address: ClientPath, via: Via, size: int, newer: bool) -> None:
        self.agent.on_authenticated(now, address, via, size, newer=newer)
        self._flight.done()

    def _on_dtls(self, now: float, address: ClientPath, via: Via, packet: bytes) -> None:
        if not self.agent.on_dtls(address):
            raise RemoteError("dtls_unchecked_address", "DTLS from an address that has passed no check")
        was = self._dtls.state
        data = self._dtls.receive(packet)
        self._flush_dtls(now, solicited=is_client_hello(packet))
        state = self._dtls.state
        if state is DtlsState.CONNECTED and was is not DtlsState.CONNECTED:
            self._on_handshake_done(now)
        if state is DtlsState.FAILED:
            self._gone(f"dtls_{self._dtls.failure}")
        if data:
            number = record_number(packet)
            newer = number is not None and number > self._newest_record
            if number is not None and newer:
                self._newest_record = number
            self._on_authenticated(now, address, via, len(packet), newer)
            self._on_data(data)
        self._check_closed()

    def _on_handshake_done(self, now: float) -> None:
        self._srtp = self._dtls.make_srtp()
        if self._srtp is None:
            self._gone("dtls_no_srtp")
            return
        if self._dtls.role == "client":
            self._flight.done()
        self._listener.on_connected(now)
        if self._data is not None and not self._closed:
            self._channels = DataChannels(self._dtls.role, self._send_sctp, self._listener)
            self._channels.start(self._data.sctp_port, self._data.max_message_size)

    def _on_data(self, packets: list[bytes]) -> None:
        for packet in packets:
            if self._channels is None or self._closed:
                return
            try:
                self._channels.receive(packet)
            except RemoteError as error:
                if error.reason == "sctp_abuse":
                    self._gone("sctp_abuse")
                raise

    def _gone(self, reason: str) -> None:
        if not self._closed:
            self._listener.on_gone(reason)

    # Out

    @property
    def is_connected(self) -> bool:
        """Whether audio can be sent."""
        return self._srtp is not None and not self._closed

    def send_rtp(self, now: float, packet: bytes) -> bool:
        """Protect and send a plain RTP or RTCP packet; False when it could not be sent."""
        path = self.agent.sending
        if self._srtp is None or path is None:
            self.unsent += 1
            return False
        return self._send_on(now, path, self._srtp.protect(packet), is_data=False)

    def send_text(self, text: str) -> bool:
        """Send a message on the events channel; False when it was dropped."""
        return self._channels is not None and self._channels.send(text)

    @property
    def has_sent_all(self) -> bool:
        """Whether the events channel is open, and the client has acknowledged all that was sent on it."""
        return self._channels is not None and self._channels.is_flushed

    @property
    def channel_bytes(self) -> int:
        """What waits to be sent on the events channel."""
        return 0 if self._channels is None else self._channels.buffered_bytes

    def _send_sctp(self, packet: bytes) -> None:
        self._dtls.send(packet)
        self._flush_dtls(self._clock())

    def _flush_dtls(self, now: float, *, solicited: bool = False) -> None:
        datagrams = self._dtls.take()
        is_flight = bool(datagrams) and not self._is_open_for_data
        if is_flight:
            self._flight.sent(now, datagrams)
        elif not datagrams and solicited:
            datagrams = self._flight.solicited(now)
        self._send_dtls(now, datagrams)

    @property
    def _is_open_for_data(self) -> bool:
        # The last flight of the server leaves before SRTP keys are made of it.
        return self._srtp is not None or self._dtls.state in (DtlsState.CLOSED, DtlsState.FAILED)

    def _send_dtls(self, now: float, datagrams: tuple[bytes, ...]) -> None:
        path = self.agent.dtls_path
        for datagram in datagrams:
            if path is None:
                self.unsent += 1
            else:
                self._send_on(now, path, datagram, is_data=True)

    def _send_on(self, now: float, path: Path, payload: bytes, *, is_data: bool) -> bool:
        if not path.spend(len(payload), is_data=is_data):
            self.unsent += 1
            return False
        self._send(path.address, path.via, payload, path.is_alive(now))
        return True

    # Time

    def tick(self, now: float) -> Expiry | None:
        """Repeat what was lost, and tell whether the client's life has ended. To be called every 20 ms; once it is
        connected only one in five of them looks.
        """
        if now < self._look_at and not self._flight.is_waiting:
            return None
        if self._srtp is not None:
            self._look_at = now + LOOK_S
        again = self._flight.due(now)
        if again:
            self._send_dtls(now, again)
        if self._dtls.state is DtlsState.CONNECTING:
            self._dtls.on_timer()
            self._flush_dtls(now)
            if self._dtls.failure:
                self._gone(f"dtls_{self._dtls.failure}")
        self._check_closed()
        return self.agent.tick(now)

    def _check_closed(self) -> None:
        aborted = self._channels is not None and self._channels.is_closed
        if aborted or self._dtls.state is DtlsState.CLOSED:
            self._gone("client_closed")

    # End

    def close(self, now: float, last_rtcp: bytes | None = None) -> None:
        """Say goodbye in every language the client may understand: RTCP BYE, SCTP abort, close_notify."""
        if self._closed:
            return
        self._closed = True
        if last_rtcp is not None and self._srtp is not None:
            self.send_rtp(now, last_rtcp)
        if self._channels is not None:
            self._channels.abort()
        self._dtls.close()
        self._flush_dtls(now)
