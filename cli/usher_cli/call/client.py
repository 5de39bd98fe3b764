"""One call with a stock aiortc client.

Stock means: RTCPeerConnection with its own ICE, DTLS, SCTP, RTP and RTCP, no change but two: checks come every 2.5 s
(`steady_checks.py`), and each RTP packet is noted as the receiver gets it (`_tap`). What is sent is encoded before the
call, so that many calls do not measure the Opus encoder of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import av
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError
from aiortc.rtp import RtpPacket
from aiortc.stats import RTCRemoteInboundRtpStreamStats

from usher_cli.call.api import DTLS_GUESS, ICE_GUESS, CallError, CallsApi
from usher_cli.call.check_times import CheckTimes
from usher_cli.call.hang_up import TOO_EARLY, first_of, unless_told
from usher_cli.call.opus import FRAME_S, FRAME_SAMPLES, RATE
from usher_cli.call.reception import MAX_PACKETS, RtpArrival
from usher_cli.call.source import Source

CONNECT_LIMIT_S = 20.0
LOOK_AFTER_S = 2.0
"""The server is asked for the path of a call this long after it was made: then it knows it. While a call does not come
about, it is asked as often whether the call has ended."""
MAX_EVENTS = 200
EVENTS_LABEL = "oai-events"

Progress = Callable[[str], None]


@dataclass(slots=True)
class CallRecord:
    """What one call left behind. Times are monotonic seconds, None until it happened."""

    offered_at: float | None = None
    answered_at: float | None = None
    ice_at: float | None = None
    dtls_at: float | None = None
    sent_from: float | None = None
    late_s: float = 0.0
    ended_at: float | None = None
    broke: str | None = None
    rtt_s: float | None = None
    check_s: float | None = None
    lost_upstream: int | None = None
    description: dict[str, Any] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    arrivals: list[RtpArrival] = field(default_factory=list)


class OpusTrack(MediaStreamTrack):
    """An audio track of ready Opus packets, one each 20 ms by the clock."""

    kind = "audio"

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._index = 0
        self.sent_from: float | None = None
        self.late_s = 0.0

    async def recv(self) -> av.Packet[Any]:
        """Return the next packet when it is due; the first at once."""
        if self.readyState != "live":
            raise MediaStreamError
        if self.sent_from is None:
            self.sent_from = time.monotonic()
        due = self.sent_from + self._index * FRAME_S
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        self.late_s = max(self.late_s, time.monotonic() - due)
        packet = av.Packet(self._source.payload(self._index))
        packet.pts = self._index * FRAME_SAMPLES
        packet.time_base = fractions.Fraction(1, RATE)
        self._index += 1
        return packet


async def place_call(
    api: CallsApi,
    source: Source,
    seconds: float,
    progress: Progress,
    via: tuple[str, int] | None = None,
    *,
    hang_up: asyncio.Event,
    trace: bool = False,
) -> CallRecord:
    """Place a call, talk for `seconds` once connected or until told to, hang up.

    Args:
        api: of the server.
        source: what to send.
        seconds: how long to stay connected.
        progress: told of each step, in words.
        via: send media to this (IP, port) and not to the addresses in the answer: to a proxy that drops packets, say.
        hang_up: is set to end the call before its time.
        trace: ask the server for the hops of the call.

    Raises CallError when the call does not come about; one that breaks later is recorded (`broke`).
    """
    record = CallRecord()
    track = OpusTrack(source)
    async with contextlib.AsyncExitStack() as stack:
        connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        stack.push_async_callback(connection.close)
        connected, ended = _watch(connection, record)
        connection.addTrack(track)
        events = connection.createDataChannel(EVENTS_LABEL)
        events.on("message", lambda message: _note_event(record, message))
        receiver = connection.getTransceivers()[0].receiver
        _tap(receiver, record.arrivals)
        await connection.setLocalDescription(await connection.createOffer())

        record.offered_at = time.monotonic()
        placed = await unless_told(hang_up, api.place(connection.localDescription.sdp))
        record.answered_at = time.monotonic()
        progress("answered")
        if placed.url is not None:
            stack.push_async_callback(api.hang_up, placed.url)
        await _accept(connection, placed.answer if via is None else redirect(placed.answer, *via))
        drain = asyncio.create_task(_drain(receiver.track))
        stack.callback(drain.cancel)

        cause = await _connect(api, placed.url, connected, ended, hang_up)
        if record.dtls_at is None:
            raise CallError(_not_connected(record, cause))
        progress("connected")
        checks = CheckTimes(connection)
        await first_of(ended, hang_up, timeout=min(seconds / 2, LOOK_AFTER_S))
        if placed.url is not None:
            record.description = await api.describe(placed.url, trace=trace)
        await first_of(ended, hang_up, timeout=record.dtls_at + seconds - time.monotonic())
        record.ended_at = time.monotonic()
        if ended.is_set():
            lasted = f"{record.ended_at - record.dtls_at:.1f} s"
            record.broke = _with_cause(
                f"the connection ended by itself {lasted} after it was made", await _why_ended(api, placed.url)
            )
        elif not record.arrivals and (cause := await _why_ended(api, placed.url)):
            record.broke = cause
        record.sent_from = track.sent_from
        record.late_s = track.late_s
        record.check_s = checks.least()
        await _read_reports(connection, record)
    return record


def redirect(answer: str, host: str, port: int) -> str:
    """Return an answer whose only candidate is (host, port)."""
    lines: list[str] = []
    done = False
    for line in answer.splitlines():
        if line.startswith("m="):
            done = False
        if line.startswith("a=candidate:"):
            if done:
                continue
            done = True
            parts = line.split(" ")
            parts[4:6] = [host, str(port)]
            line = " ".join(parts)  # noqa: PLW2901
        lines.append(line)
    return "\r\n".join(lines) + "\r\n"


def _watch(connection: RTCPeerConnection, record: CallRecord) -> tuple[asyncio.Event, asyncio.Event]:
    """Note when ICE and DTLS are done. Return the events "connected" and "ended"."""
    connected, ended = asyncio.Event(), asyncio.Event()

    @connection.on("iceconnectionstatechange")
    def on_ice() -> None:
        if connection.iceConnectionState == "completed" and record.ice_at is None:
            record.ice_at = time.monotonic()
        elif connection.iceConnectionState == "failed":
            ended.set()

    @connection.on("connectionstatechange")
    def on_state() -> None:
        if connection.connectionState == "connected" and record.dtls_at is None:
            record.dtls_at = time.monotonic()
            connected.set()
        elif connection.connectionState in ("failed", "closed"):
            ended.set()

    return connected, ended


async def _connect(
    api: CallsApi, url: str | None, connected: asyncio.Event, ended: asyncio.Event, hang_up: asyncio.Event
) -> str | None:
    """Wait until the call is connected, has ended, or took too long; return why it ended where the server tells.

    Raises CallError when we are to hang up before.
    """
    deadline = time.monotonic() + CONNECT_LIMIT_S
    while not connected.is_set():
        await first_of(connected, ended, hang_up, timeout=min(LOOK_AFTER_S, deadline - time.monotonic()))
        if connected.is_set():
            break
        if hang_up.is_set():
            raise CallError(TOO_EARLY)
        cause = await _why_ended(api, url)
        if cause or ended.is_set() or time.monotonic() >= deadline:
            return cause
    return None


async def _why_ended(api: CallsApi, url: str | None) -> str | None:
    return await api.why_ended(url) if url is not None else None


def _not_connected(record: CallRecord, cause: str | None) -> str:
    symptom, guess = ("no ICE check was answered", ICE_GUESS)
    if record.ice_at is not None:
        symptom, guess = ("ICE came about, but DTLS did not", DTLS_GUESS)
    return _with_cause(symptom, cause) if cause else f"{symptom}: {guess}"


def _with_cause(symptom: str, cause: str | None) -> str:
    return f"{symptom}; {cause}" if cause else symptom


def _tap(receiver: RTCRtpReceiver, arrivals: list[RtpArrival]) -> None:
    """Note each RTP packet as the receiver gets it, in front of its jitter buffer, and pass it on."""
    handle = receiver._handle_rtp_packet  # noqa: SLF001

    async def tapped(packet: RtpPacket, arrival_time_ms: int) -> None:
        if len(arrivals) < MAX_PACKETS:
            arrivals.append(RtpArrival(time.monotonic(), packet.sequence_number, packet.timestamp, packet.payload))
        await handle(packet, arrival_time_ms=arrival_time_ms)

    receiver._handle_rtp_packet = tapped  # type: ignore[method-assign]  # noqa: SLF001


def _note_event(record: CallRecord, message: str | bytes) -> None:
    if len(record.events) >= MAX_EVENTS:
        return
    try:
        kind = str(json.loads(message)["type"])
    except (ValueError, KeyError, TypeError):
        kind = "(no event)"
    record.events.append(kind[:64])


async def _accept(connection: RTCPeerConnection, answer: str) -> None:
    try:
        await connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
    except Exception as error:  # noqa: BLE001  (aiortc raises what its parsers happen to raise)
        raise CallError(f"our client can't use the answer: {error!r}") from None


async def _drain(track: MediaStreamTrack) -> None:
    """Take decoded frames away: aiortc would pile them up without bound."""
    with contextlib.suppress(MediaStreamError):
        while True:
            await track.recv()


async def _read_reports(connection: RTCPeerConnection, record: CallRecord) -> None:
    """Take round trip time and upstream loss from the RTCP reports of the other side (RFC 3550 section 6.4.1)."""
    for report in (await connection.getStats()).values():
        if isinstance(report, RTCRemoteInboundRtpStreamStats):
            record.rtt_s = report.roundTripTime
            record.lost_upstream = report.packetsLost
