"""`usher call --load`: many light clients, one full client in every N, and how much head-room this machine had left.

Rules:
* Each client has its own UDP socket: the server sees as many addresses as calls.
* One loop serves all clients: a quarter of them every 5 ms, each every 20 ms, on a grid that does not drift. What it is
  late by is the send lag: when that grows, it is this client that is too slow, not the server.
* Calls are set up 8 at a time; with a rate each begins when it is due, whether or not those before it are done.
* The sound is judged at the full clients (stock aiortc); light ones count packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from usher_cli.call.api import CallError, CallsApi
from usher_cli.call.hang_up import first_of, unless_told
from usher_cli.call.light_client import LightClient
from usher_cli.call.opus import FRAME_S
from usher_cli.call.result import CallResult, spread
from usher_cli.call.run import Plan, Progress, place_calls
from usher_transceiver.certificate import Certificate

SETTING_UP = 8
"""Light calls that are set up at a time."""
SLOTS = 4
CONNECT_LIMIT_S = 20.0
MAX_LATE_S = 1.0
"""The sender skips ahead when it is later than this, and says so."""
MIN_RETURNED_SHARE = 0.95
"""An echo sends as many packets as it gets, but for the first moments."""
MAX_CPU_SHARE = 0.8
MAX_SEND_LAG_S = 0.02
_READS_AT_ONCE = 16


@dataclass(slots=True)
class LightCall:
    """A light client with its socket, and how the call came about."""

    client: LightClient
    offered_at: float | None = None
    url: str | None = None
    failed: str | None = None
    transport: socket.socket | None = None

    @property
    def has_begun(self) -> bool:
        return self.offered_at is not None


@dataclass(slots=True)
class Sending:
    """How well the loop kept its time: lag of each round in s, rounds skipped."""

    lags_s: list[float] = field(default_factory=list)
    skipped: int = 0


async def place_load(
    plan: Plan, full_every: int, progress: Progress, rate: float | None, hang_up: asyncio.Event
) -> tuple[list[CallResult], dict[str, Any]]:
    """Place `plan.count` calls, one in `full_every` with the full client. Return the full calls and the load report.

    With `rate` so many light calls a second begin. Once `hang_up` is set, calls end, and those that have not begun
    never do.
    """
    full = -(-plan.count // full_every)
    light = plan.count - full
    certificate = Certificate()
    calls = [LightCall(LightClient(certificate, phase=7 * number)) for number in range(light)]
    sending = Sending()
    async with CallsApi(plan.url, plan.api_key, plan.region) as api:
        sender = asyncio.create_task(_send(calls, plan.source.packets, sending))
        try:
            await _set_up(api, calls, plan.via, progress, rate, hang_up)
            progress(0, f"{sum(call.client.is_connected for call in calls)} of {light} light calls connected")
            # Handshakes keep the loop busy; what counts is how it keeps up with the calls.
            sending.lags_s.clear()
            before = _Usage.now()
            full_plan = replace(plan, count=full, concurrency=full)
            results = await place_calls(full_plan, progress, hang_up)
            usage = _Usage.now().since(before)
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            await _hang_up(api, calls)
    return results, _report([call for call in calls if call.has_begun], sending, usage)


@dataclass(frozen=True, slots=True)
class _Usage:
    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> _Usage:
        return cls(time.monotonic(), time.process_time())

    def since(self, earlier: _Usage) -> _Usage:
        return _Usage(self.wall_s - earlier.wall_s, self.cpu_s - earlier.cpu_s)


async def _set_up(
    api: CallsApi,
    calls: Sequence[LightCall],
    via: tuple[str, int] | None,
    progress: Progress,
    rate: float | None,
    hang_up: asyncio.Event,
) -> None:
    free = asyncio.Semaphore(SETTING_UP if rate is None else len(calls))
    begin = time.monotonic()
    done = 0

    async def one(number: int, call: LightCall) -> None:
        nonlocal done
        if rate is not None:
            await first_of(hang_up, timeout=begin + number / rate - time.monotonic())
        async with free:
            if hang_up.is_set():
                return
            try:
                await unless_told(hang_up, _connect(api, call, via))
            except CallError as error:
                call.failed = str(error)
        done += 1
        if done % 50 == 0:
            progress(0, f"{done} light calls set up")

    await asyncio.gather(*(one(number, call) for number, call in enumerate(calls)))


async def _connect(api: CallsApi, call: LightCall, via: tuple[str, int] | None) -> None:
    call.offered_at = time.monotonic()
    placed = await api.place(call.client.offer)
    call.url = placed.url
    advertised = call.client.accept(placed.answer, time.monotonic())
    address = via or advertised
    call.transport = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM)
    call.transport.setblocking(False)
    call.transport.connect(address)
    asyncio.get_running_loop().add_reader(call.transport, _receive, call)
    deadline = time.monotonic() + CONNECT_LIMIT_S
    while not call.client.is_connected:
        if call.client.record.ended is not None or time.monotonic() > deadline:
            symptom = call.client.record.ended or "not connected in time"
            why = await api.why_ended(placed.url) if placed.url is not None else None
            raise CallError(f"{symptom}; {why}" if why else symptom)
        # The sender drives the client's timers.
        await asyncio.sleep(0.01)


def _receive(call: LightCall) -> None:
    assert call.transport is not None
    for _ in range(_READS_AT_ONCE):
        try:
            datagram = call.transport.recv(2048)
        except (BlockingIOError, ConnectionRefusedError):
            return
        _transmit(call, call.client.on_datagram(time.monotonic(), datagram))


def _transmit(call: LightCall, datagrams: Iterable[bytes]) -> None:
    if call.transport is None:
        return
    for datagram in datagrams:
        # A full buffer or a relay that is being restarted loses packets, as a network does.
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            call.transport.send(datagram)


async def _send(calls: Sequence[LightCall], packets: tuple[bytes, ...], sending: Sending) -> None:
    """Serve a quarter of the calls every 5 ms, for ever."""
    start = time.monotonic()
    tick = 0
    while True:
        due = start + tick * FRAME_S / SLOTS
        now = time.monotonic()
        if now < due:
            await asyncio.sleep(due - now)
            now = time.monotonic()
        sending.lags_s.append(now - due)
        for call in calls[tick % SLOTS :: SLOTS]:
            if call.transport is None:
                continue
            _transmit(call, call.client.on_timer(now))
            audio = call.client.next_audio(packets)
            if audio is not None:
                _transmit(call, (audio,))
        tick += 1
        if now - due > MAX_LATE_S:
            skipped = int((now - due) / (FRAME_S / SLOTS))
            sending.skipped += skipped
            tick += skipped
        elif now >= due:
            # Receiving has its turn even when sending is always late.
            await asyncio.sleep(0)


async def _hang_up(api: CallsApi, calls: Sequence[LightCall]) -> None:
    loop = asyncio.get_running_loop()
    for call in calls:
        if call.transport is not None:
            _transmit(call, call.client.close())
            loop.remove_reader(call.transport)
            call.transport.close()
    free = asyncio.Semaphore(SETTING_UP)

    async def one(url: str) -> None:
        async with free:
            await api.hang_up(url)

    await asyncio.gather(*(one(call.url) for call in calls if call.url is not None))


def _report(calls: Sequence[LightCall], sending: Sending, usage: _Usage) -> dict[str, Any]:
    """Return the load report; times in ms. `client_has_head_room` False: the numbers speak of this client."""
    records = [call.client.record for call in calls if call.failed is None]
    sent = sum(record.sent for record in records)
    received = sum(record.received for record in records)
    lost = sum(record.lost for record in records)
    lag = spread([1000 * value for value in sending.lags_s])
    cpu_share = usage.cpu_s / usage.wall_s if usage.wall_s else 0.0
    faults = [call.failed or call.client.record.ended for call in calls]
    wrong = Counter(fault for fault in faults if fault)
    return {
        "light_calls": len(calls),
        "connected": len(records),
        "wrong": dict(wrong),
        "offer_answer_ms": _spread_between((call.offered_at, call.client.record.answered_at) for call in calls),
        "ice_ms": _spread_between((record.answered_at, record.ice_at) for record in records),
        "dtls_ms": _spread_between((record.ice_at, record.dtls_at) for record in records),
        "first_packet_ms": _spread_between((call.offered_at, call.client.record.first_packet_at) for call in calls),
        "check_rtt_ms": spread([1000 * rtt for record in records for rtt in record.rtts_s]),
        "sent": sent,
        "received": received,
        "lost_share": round(lost / (received + lost), 5) if received else 1.0,
        "longest_gap_ms": spread([1000 * record.longest_gap_s for record in records if record.received]),
        "client_cpu_share": round(cpu_share, 2),
        "send_lag_ms": lag,
        "rounds_skipped": sending.skipped,
        "client_has_head_room": bool(
            cpu_share < MAX_CPU_SHARE and lag is not None and lag["p99"] < 1000 * MAX_SEND_LAG_S and not sending.skipped
        ),
        "ok": not wrong and (not calls or received >= MIN_RETURNED_SHARE * sent > 0),
    }


def _spread_between(times: Iterable[tuple[float | None, float | None]]) -> dict[str, float] | None:
    return spread([1000 * (end - start) for start, end in times if start is not None and end is not None])
