"""A client that only listens, while relays die and come back: it is heard of again at its next check."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.fleet import Fleet, running_fleet, wait_until
from usher_cli.call.api import CallsApi
from usher_cli.call.light_client import LightClient
from usher_cli.call.steady_checks import CHECK_INTERVAL_S
from usher_transceiver.certificate import Certificate

pytestmark = [pytest.mark.timed, pytest.mark.timeout(120)]

CALLS = 16
SLACK_S = 0.5
BACKEND = """
import math, struct

async def run(call):
    second = struct.pack("<24000h", *(round(8000 * math.sin(2 * math.pi * 440 * n / 24000)) for n in range(24000)))
    while True:
        await call.play(second)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Two relays, and a transceiver that hums to whoever calls."""
    site = tmp_path / "site"
    (site / "hum-0.dist-info").mkdir(parents=True)
    (site / "hum.py").write_text(BACKEND)
    (site / "hum-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: hum\nVersion: 0\n")
    (site / "hum-0.dist-info" / "entry_points.txt").write_text("[usher.backends]\nhum = hum:run\n")
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(site))))
    settings = {"PYTHONPATH": path, "USHER_BACKEND": "hum"}
    with running_fleet(tmp_path, "--relays=2", settings=settings) as fleet:
        yield fleet


@dataclass(slots=True)
class Listener:
    """A client that sends checks and its handshake, and no media."""

    client: LightClient
    sock: socket.socket
    gaps: list[float] = field(default_factory=list)
    heard_at: float | None = None

    def look(self) -> None:
        """Take what came and send what is due."""
        for _ in range(64):
            now = time.monotonic()
            try:
                datagram = self.sock.recv(2048)
            except BlockingIOError:
                break
            except ConnectionRefusedError:
                continue
            before = self.client.record.received
            self._send(self.client.on_datagram(now, datagram))
            if self.client.record.received > before:
                if self.heard_at is not None:
                    self.gaps.append(now - self.heard_at)
                self.heard_at = now
        self._send(self.client.on_timer(time.monotonic()))

    def _send(self, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            with contextlib.suppress(ConnectionRefusedError):
                self.sock.send(datagram)


async def listen(listeners: list[Listener], seconds: float) -> float:
    """Look at all again and again; return how many seconds the longest pause between two looks was."""
    looked_at = time.monotonic()
    until, longest = looked_at + seconds, 0.0
    while (now := time.monotonic()) < until:
        longest, looked_at = max(longest, now - looked_at), now
        for listener in listeners:
            listener.look()
        await asyncio.sleep(0.005)
    return longest


async def place(api: CallsApi, certificate: Certificate) -> Listener:
    client = LightClient(certificate, phase=0)
    placed = await api.place(client.offer)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.connect(client.accept(placed.answer, time.monotonic()))
    return Listener(client, sock)


async def test_a_muted_client_hears_nothing_until_its_next_check_when_its_relay_dies(fleet: Fleet) -> None:
    listeners: list[Listener] = []
    try:
        async with CallsApi(fleet.url, None) as api:
            certificate = Certificate()
            for _ in range(CALLS):
                listeners.append(await place(api, certificate))
                # So that their checks are spread over the interval.
                await listen(listeners, CHECK_INTERVAL_S / CALLS)
            deadline = time.monotonic() + 15
            while not all(listener.client.record.received for listener in listeners):
                assert time.monotonic() < deadline
                await listen(listeners, 0.1)
            assert all(listener.client.record.sent == 0 for listener in listeners)
            for listener in listeners:
                listener.gaps.clear()
            victim = fleet.state()["relays"][0]["pid"]
            os.kill(victim, signal.SIGKILL)
            late_s = await listen(listeners, 2 * CHECK_INTERVAL_S + 2)
            stopped_at = time.monotonic()
    finally:
        for listener in listeners:
            listener.sock.close()
    wait_until(lambda: len(fleet.state()["relays"]) == 2, 10, "the relay has come back")
    gaps = sorted(round(1000 * max(listener.gaps)) for listener in listeners)
    print(f"\nlongest silence of {CALLS} clients that only listen, ms: {gaps}; late by {1000 * late_s:.0f} ms at most")
    assert all(listener.client.record.ended is None for listener in listeners)
    assert all(stopped_at - (listener.heard_at or 0) < CHECK_INTERVAL_S for listener in listeners)
    # A pause makes a check late, and what answers it.
    assert max(gaps) <= 1000 * (CHECK_INTERVAL_S + SLACK_S + 2 * late_s)
    assert max(gaps) > 200, "no call went through the relay that was killed, so nothing was shown"
