"""The data channels of one client on aiortc's SCTP: the only module that touches aiortc's private names.

aiortc is pinned; `tests/unit/test_transceiver_aiortc_contract.py` fails when an upgrade changes what is used here.

Rules:
* aiortc wants a DTLS transport; `_DtlsPort` is the part of one that it uses. Its sends never wait, so its coroutines
  run to their end at once, and a packet has been handled when `receive` returns.
* What comes in is checked first (sctp_guard.py). Whatever aiortc raises on it is the peer's fault, and counted.
* Bounds: streams, fragments waiting, bytes waiting to be sent, gap blocks of a SACK.
* What waits for the congestion window at the end leaves beyond it, within a bound, so that the last event is heard.
* Packets of ours fit `MTU` with the widest DTLS record around them.
"""

# ruff: noqa: SLF001
from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal, Protocol

from aiortc import rtcsctptransport
from aiortc.rtcdatachannel import RTCDataChannel
from aiortc.rtcsctptransport import RTCSctpCapabilities, RTCSctpTransport, SackChunk

from usher_core.errors import RemoteError
from usher_transceiver.dtls import MTU
from usher_transceiver.sctp_guard import MAX_GAP, DataChunk, check_packet
from usher_transceiver.sdp.answer import LOCAL_SCTP_PORT

MAX_MESSAGE_SIZE = 262_144
"""Bytes of one message, both ways; what browsers take (RFC 8841 section 6)."""
MAX_BUFFERED = 1_048_576
"""Bytes waiting to be sent on a channel; 4 full messages. More means that the client reads nothing."""
MAX_STREAMS = 16
"""Data channels of a client. One carries the events; nobody needs the others."""
MAX_FRAGMENTS = 1024
"""Chunks of a stream that wait to become messages: one receive window of full chunks."""
MAX_OVERDRAFT = 65_536
"""Bytes that a client may send beyond the window it was given; one that sends more does so on purpose."""
LAST_BURST = 16_384
"""Bytes that may leave beyond the congestion window before the association is aborted: about the ten segments that are
an initial window of TCP (RFC 6928). After it nothing is sent any more, so nothing congests.
"""
MAX_SACK_GAPS = 200
MAX_SACK_DUPLICATES = 20

_DTLS_OVERHEAD = 13 + 16 + 20 + 16
"""Record header, and IV, HMAC-SHA-1 and padding of the AES-CBC suites; AEAD needs less."""
_DATA_OVERHEAD = 12 + 16
"""SCTP common header and DATA chunk header."""

# The constant of the module is what its fragmentation reads (RFC 8831 section 5 wants the path's MTU respected).
rtcsctptransport.USERDATA_MAX_LENGTH = (MTU - _DTLS_OVERHEAD - _DATA_OVERHEAD) // 4 * 4


class ChannelListener(Protocol):
    """Told what happens on the channel that carries the events."""

    def on_channel_open(self) -> None:
        """The client has opened it; `DataChannels.send` works from now on."""

    def on_message(self, message: str | bytes) -> None:
        """A message came."""


class _DtlsPort:
    """As much of an RTCDtlsTransport as RTCSctpTransport uses."""

    state = "connected"

    def __init__(self, role: Literal["client", "server"], send: Callable[[bytes], None]) -> None:
        self._role = role
        self._send = send

    def _register_data_receiver(self, _receiver: object) -> None:
        """Nothing to do: `DataChannels.receive` hands the data over."""

    def _unregister_data_receiver(self, _receiver: object) -> None:
        """Nothing to do."""

    async def _send_data(self, data: bytes) -> None:
        self._send(data)


class _Sctp(RTCSctpTransport):
    """Keeps a SACK within one packet, whatever the peer does."""

    async def _send_chunk(self, chunk: rtcsctptransport.Chunk) -> None:
        if isinstance(chunk, SackChunk):
            del chunk.gaps[MAX_SACK_GAPS:]
            del chunk.duplicates[MAX_SACK_DUPLICATES:]
        await super()._send_chunk(chunk)


class DataChannels:
    """The SCTP association of one client; the first channel it opens carries the events, whatever its label.

    Args:
        role: our DTLS role, which decides who uses even stream ids (RFC 8832 section 6).
        send: takes an SCTP packet to protect and send.
        listener: of the events channel.
    """

    def __init__(
        self, role: Literal["client", "server"], send: Callable[[bytes], None], listener: ChannelListener
    ) -> None:
        self._listener = listener
        self._channel: RTCDataChannel | None = None
        self._remote_limit = 0
        # A duck: it has what RTCSctpTransport uses, which the contract test proves.
        self._sctp = _Sctp(_DtlsPort(role, send), LOCAL_SCTP_PORT)  # type: ignore[arg-type]
        self._sctp.on("datachannel", self._on_channel)

    def start(self, remote_port: int, max_message_size: int) -> None:
        """Begin the association, once DTLS is connected; both sides do (RFC 8841 section 9.3)."""
        self._remote_limit = max_message_size
        _run(self._sctp.start(RTCSctpCapabilities(max_message_size), remote_port))

    def receive(self, packet: bytes) -> None:
        """Take an SCTP packet.

        Raises RemoteError: `sctp_malformed`, `sctp_flood` (beyond all bounds: the packet was dropped), `sctp_abuse`
        (so far beyond them that the call should end).
        """
        for chunk in check_packet(packet):
            self._check_room(chunk)
        try:
            _run(self._sctp._handle_data(packet))
        except Exception:  # noqa: BLE001 - aiortc asserts and unpacks what the peer wrote
            raise RemoteError("sctp_malformed", "aiortc could not handle this SCTP packet") from None

    def _check_room(self, chunk: DataChunk) -> None:
        sctp = self._sctp
        if sctp._advertised_rwnd < -MAX_OVERDRAFT:
            raise RemoteError("sctp_abuse", "the client ignores the window it was given")
        if sctp._last_received_tsn is None:
            raise RemoteError("sctp_malformed", "data before there is an association")
        ahead = (chunk.tsn - sctp._last_received_tsn) & 0xFFFF_FFFF
        if MAX_GAP < ahead < 1 << 31:
            # A SACK has 16 bits to say how far ahead a gap is.
            raise RemoteError("sctp_malformed", "data from far beyond any window")
        stream = sctp._inbound_streams.get(chunk.stream)
        too_many_streams = stream is None and len(sctp._inbound_streams) >= MAX_STREAMS
        too_many_fragments = stream is not None and len(stream.reassembly) >= MAX_FRAGMENTS
        if too_many_streams or too_many_fragments or len(sctp._sack_misordered) >= MAX_FRAGMENTS:
            raise RemoteError("sctp_flood", "more streams or unfinished messages than one client needs")

    @property
    def is_closed(self) -> bool:
        """Whether the client aborted the association, or does not answer any more."""
        return self._sctp.state == "closed"

    @property
    def is_open(self) -> bool:
        """Whether the events channel is open."""
        return self._channel is not None and self._channel.readyState == "open"

    @property
    def is_flushed(self) -> bool:
        """Whether the events channel is open and the client has acknowledged all that was sent."""
        sctp = self._sctp
        return self.is_open and not (sctp._data_channel_queue or sctp._outbound_queue or sctp._sent_queue)

    @property
    def buffered_bytes(self) -> int:
        """What waits to be sent on the events channel."""
        return 0 if self._channel is None else self._channel.bufferedAmount

    def send(self, text: str) -> bool:
        """Queue a message on the events channel; False when it had to be dropped: not open, too large, too much
        waiting.
        """
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return False
        size = len(text.encode())
        if self._remote_limit and size > self._remote_limit:
            return False
        if channel.bufferedAmount + size > MAX_BUFFERED:
            return False
        channel.send(text)
        return True

    def abort(self) -> None:
        """Tell the client that it is over (RFC 9260 section 9.1), after what it was just sent, and stop all timers."""
        if not self.is_closed:
            self._send_last_burst()
        _run(self._sctp.stop())

    def _send_last_burst(self) -> None:
        """Send what waits. On a long way events fill the window, and acknowledgements would come too late."""
        sctp = self._sctp
        sctp._cwnd = limit = sctp._flight_size + LAST_BURST
        # A message leaves in the next turn of the loop by itself; there will be none.
        _run(sctp._data_channel_flush())
        while sctp._outbound_queue and sctp._flight_size < limit:
            _run(sctp._transmit())
            _run(sctp._data_channel_flush())

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if self.is_open or self._channel is channel:
            return
        self._channel = channel
        channel.on("message", self._on_message)
        self._listener.on_channel_open()

    def _on_message(self, message: str | bytes) -> None:
        self._listener.on_message(message)


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing to its end, now."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise AssertionError("aiortc's SCTP waited for something")
