"""What we use of aiortc beside its documentation. When an upgrade breaks one of these, read aiortc_adapter.py again."""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections import deque
from importlib.metadata import version
from typing import Any

import aiortc
import pytest
from aiortc import rtcsctptransport
from aiortc.rtcsctptransport import RTCSctpTransport, SackChunk
from google_crc32c import value as crc32c

from usher_core.errors import RemoteError
from usher_transceiver import aiortc_adapter
from usher_transceiver.aiortc_adapter import (
    LAST_BURST,
    MAX_BUFFERED,
    MAX_FRAGMENTS,
    MAX_MESSAGE_SIZE,
    MAX_SACK_GAPS,
    MAX_STREAMS,
    DataChannels,
)
from usher_transceiver.dtls import MTU

TESTED_VERSION = "1.16.0"


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("aiortc") == TESTED_VERSION == aiortc.__version__


def test_the_names_that_the_adapter_uses_exist() -> None:
    for name in ("_handle_data", "_send_chunk", "_data_channel_flush", "_transmit", "start", "stop", "_abort"):
        assert inspect.iscoroutinefunction(getattr(RTCSctpTransport, name)), name
    for name in ("gaps", "duplicates"):
        assert isinstance(getattr(SackChunk(), name), list)


async def test_the_attributes_that_the_adapter_reads_exist() -> None:
    sctp = Side("server").channels._sctp
    assert sctp.state == "new"
    for name in ("_advertised_rwnd", "_cwnd", "_flight_size"):
        assert isinstance(getattr(sctp, name), int), name
    assert isinstance(sctp._inbound_streams, dict)
    assert isinstance(sctp._sack_misordered, set)
    assert sctp._get_inbound_stream(5).reassembly == []
    # What was sent and is not acknowledged is in one of these.
    for name in ("_data_channel_queue", "_outbound_queue", "_sent_queue"):
        assert isinstance(getattr(sctp, name), deque), name


def test_the_fragment_size_is_read_from_the_module_when_fragments_are_made() -> None:
    assert "USERDATA_MAX_LENGTH" in inspect.getsource(RTCSctpTransport._send)
    overhead = aiortc_adapter._DTLS_OVERHEAD + aiortc_adapter._DATA_OVERHEAD
    assert rtcsctptransport.USERDATA_MAX_LENGTH + overhead <= MTU


def test_sctp_uses_nothing_of_a_dtls_transport_that_our_port_lacks() -> None:
    used = {
        name.split("(")[0].split(".")[0].split(" ")[0].strip("=):,\n")
        for part in inspect.getsource(RTCSctpTransport)
        .replace("self.__transport.", "self.transport.")
        .split("self.transport.")[1:]
        for name in [part]
    }
    assert used == {"_role", "_register_data_receiver", "_unregister_data_receiver", "_send_data"}
    assert {"state", *used} <= set(dir(aiortc_adapter._DtlsPort("server", print)))


class Side:
    """One end of an association; what it sends waits in `out`."""

    def __init__(self, role: Any) -> None:
        self.out: list[bytes] = []
        self.opened = 0
        self.messages: list[str | bytes] = []
        self.channels = DataChannels(role, self.out.append, self)

    def on_channel_open(self) -> None:
        self.opened += 1

    def on_message(self, message: str | bytes) -> None:
        self.messages.append(message)


async def settle(*sides: Side, limit: int = 2000) -> None:
    """Carry packets between two sides until none is left."""
    one, two = sides
    for _ in range(limit):
        await asyncio.sleep(0)
        up, one.out[:] = one.out[:], []
        down, two.out[:] = two.out[:], []
        if not up and not down:
            return
        for packet in up:
            assert len(packet) + aiortc_adapter._DTLS_OVERHEAD <= MTU
            two.channels.receive(packet)
        for packet in down:
            assert len(packet) + aiortc_adapter._DTLS_OVERHEAD <= MTU
            one.channels.receive(packet)


async def connected() -> tuple[Side, Side, Any]:
    """Our side, the client's side, and the channel that the client opened."""
    ours, theirs = Side("server"), Side("client")
    for side in (ours, theirs):
        side.channels.start(5000, MAX_MESSAGE_SIZE)
    channel = aiortc.RTCDataChannel(theirs.channels._sctp, aiortc.RTCDataChannelParameters(label="any"))
    await settle(ours, theirs)
    assert ours.opened == 1
    return ours, theirs, channel


async def test_nothing_of_aiortc_waits_so_a_packet_is_handled_when_receive_returns() -> None:
    ours, theirs, channel = await connected()
    channel.send("hello")
    await settle(ours, theirs)
    assert ours.messages == ["hello"]
    ours.channels.abort()
    theirs.channels.receive(ours.out[-1])
    assert theirs.channels.is_closed


async def test_the_first_channel_carries_events_and_the_next_one_after_it_was_closed() -> None:
    ours, theirs, channel = await connected()
    second = aiortc.RTCDataChannel(theirs.channels._sctp, aiortc.RTCDataChannelParameters(label="second"))
    await settle(ours, theirs)
    second.send("ignored")
    await settle(ours, theirs)
    assert ours.opened == 1
    assert ours.messages == []
    channel.close()
    await settle(ours, theirs)
    assert not ours.channels.is_open
    third = aiortc.RTCDataChannel(theirs.channels._sctp, aiortc.RTCDataChannelParameters(label="third"))
    await settle(ours, theirs)
    assert ours.opened == 2
    third.send("heard")
    await settle(ours, theirs)
    assert ours.messages == ["heard"]


async def test_what_does_not_fit_is_refused_and_what_waits_is_bounded() -> None:
    ours, theirs, _ = await connected()
    assert not theirs.channels.send("this side has no events channel")
    assert not ours.channels.send("x" * (MAX_MESSAGE_SIZE + 1))
    accepted = 0
    while ours.channels.send("x" * MAX_MESSAGE_SIZE):
        accepted += 1
    assert accepted == MAX_BUFFERED // MAX_MESSAGE_SIZE
    ours.channels.abort()


async def test_at_the_end_what_waits_for_the_window_leaves_before_the_abort() -> None:
    ours, theirs, channel = await connected()
    heard: list[str] = []
    channel.on("message", heard.append)
    said = [f"{number} {'x' * 1000}" for number in range(12)] + ["the end"]
    for text in said:
        ours.channels.send(text)
    await asyncio.sleep(0)
    assert len(ours.out) < len(said) / 2, "the window is open, so nothing is shown"
    # No acknowledgement has come back by then: the way is long.
    ours.channels.abort()
    await settle(ours, theirs)
    assert heard == said
    assert theirs.channels.is_closed


@pytest.mark.parametrize("waiting", [64, 1024])
async def test_the_last_burst_is_bounded(waiting: int) -> None:
    ours, _, _ = await connected()
    for _ in range(waiting):
        ours.channels.send("x" * 1000)
    await asyncio.sleep(0)
    before = len(ours.out)
    ours.channels.abort()
    assert LAST_BURST <= sum(map(len, ours.out[before:])) <= LAST_BURST + 2 * MTU


async def test_one_who_has_left_gets_no_last_burst() -> None:
    ours, theirs, _ = await connected()
    for _ in range(64):
        ours.channels.send("x" * 1000)
    await asyncio.sleep(0)
    theirs.channels.abort()
    ours.channels.receive(theirs.out[-1])
    assert ours.channels.is_closed
    before = len(ours.out)
    ours.channels.abort()
    assert len(ours.out) == before


def packet(tag: int, chunks: bytes) -> bytes:
    header = struct.pack("!HHL", 5000, 5000, tag)
    return header + struct.pack("<L", crc32c(header + bytes(4) + chunks)) + chunks


def data_chunk(tsn: int, stream: int, flags: int, payload: bytes) -> bytes:
    body = struct.pack("!LHHL", tsn % 2**32, stream, 0, 51) + payload
    return struct.pack("!BBH", 0, flags, 4 + len(body)) + body + bytes(-len(body) % 4)


async def flood(make: Any, count: int = 5000) -> tuple[Side, set[str]]:
    """Send DATA that `make(number)` describes; return our side and why packets were refused."""
    ours, _, _ = await connected()
    sctp = ours.channels._sctp
    start = sctp._last_received_tsn
    assert start is not None
    reasons = set()
    for number in range(1, count + 1):
        step, stream, flags, payload = make(number)
        try:
            ours.channels.receive(
                packet(sctp._local_verification_tag, data_chunk(start + step, stream, flags, payload))
            )
        except RemoteError as error:
            reasons.add(error.reason)
        ours.out.clear()
    ours.channels.abort()
    return ours, reasons


async def test_a_message_without_end_is_bounded() -> None:
    ours, reasons = await flood(lambda n: (n, 0, 2 if n == 1 else 0, b"x"))
    assert reasons == {"sctp_flood"}
    assert len(ours.channels._sctp._inbound_streams[0].reassembly) <= MAX_FRAGMENTS


async def test_a_client_that_ignores_its_window_is_an_abuser() -> None:
    _, reasons = await flood(lambda n: (n, n % MAX_STREAMS, 2, bytes(1100)), 2000)
    assert "sctp_abuse" in reasons


async def test_data_far_ahead_is_bounded() -> None:
    ours, reasons = await flood(lambda n: (2 * n, 0, 3, b"x"), 3000)
    assert reasons == {"sctp_flood"}
    assert len(ours.channels._sctp._sack_misordered) <= MAX_FRAGMENTS


async def test_streams_are_bounded() -> None:
    ours, reasons = await flood(lambda n: (n, n, 2, b"x"), 200)
    assert reasons == {"sctp_flood"}
    assert len(ours.channels._sctp._inbound_streams) <= MAX_STREAMS


async def test_a_sack_of_ours_fits_one_packet_whatever_the_gaps() -> None:
    ours, _, _ = await connected()
    sctp = ours.channels._sctp
    start = sctp._last_received_tsn
    assert start is not None
    for number in range(1, 900):
        ours.channels.receive(packet(sctp._local_verification_tag, data_chunk(start + 2 * number, 0, 3, b"x")))
    assert max(map(len, ours.out)) <= 16 + 12 + 4 * MAX_SACK_GAPS + 80
    ours.channels.abort()


@pytest.mark.parametrize(
    "chunks",
    [
        struct.pack("!BBHHH", 4, 0, 8, 1, 0),
        struct.pack("!BBH", 0, 3, 17) + bytes(13),
        struct.pack("!BBH", 10, 0, 4),
        struct.pack("!BBHHH", 130, 0, 8, 13, 4),
    ],
)
async def test_malformed_packets_end_nothing(chunks: bytes) -> None:
    ours, theirs, channel = await connected()
    try:
        ours.channels.receive(packet(ours.channels._sctp._local_verification_tag, chunks))
    except RemoteError as error:
        assert error.reason == "sctp_malformed"
    channel.send("still here")
    await settle(ours, theirs)
    assert "still here" in ours.messages
