"""Clients that move: NAT rebinding, ICE restart, interfaces; and how long the audio towards them stops."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import aioice
import pytest
from aiortc import RTCPeerConnection

from tests.ice_checks import path
from tests.raw_client import RawClient
from tests.transceiver_rig import Client, Rig, rig, until
from usher_core.datagram import DatagramClass, classify
from usher_core.hop import RecordFlag
from usher_core.ids import ClientPath
from usher_core.internal_api import BASE_PATH
from usher_core.rtp import is_rtcp

pytestmark = pytest.mark.programs


def rtp_times(running: Rig, since: float, to: ClientPath | None = None) -> list[float]:
    return [
        at
        for at, path_, payload, _ in running.relay.log.down
        if at >= since and classify(payload) is DatagramClass.RTP and to in (None, path_)
    ]


def largest_gap(times: list[float]) -> float:
    return max(later - earlier for earlier, later in itertools.pairwise(times))


async def test_a_nat_rebinding_of_a_speaking_client_costs_less_than_200_ms(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = running.client()
        await client.call()
        await until(client.hears_tone, "the tone is heard")
        old = client.remote_path
        new = ("198.51.100.99", 4242)
        running.relay.rename[(old.host, old.port)] = new
        running.relay.tentative.add(new)
        moved_at = time.monotonic()
        await until(lambda: client.remote_path.host == new[0], "moved", 1.0)
        first = await until(lambda: rtp_times(running, moved_at, client.remote_path), "audio to the new port", 1.0)
        assert first[0] - moved_at < 0.2
        await asyncio.sleep(0.5)
        assert client.hears_tone()
        alive = [flags for at, to, _, flags in running.relay.log.down if to.host == new[0]]
        assert all(flags & RecordFlag.ALIVE for flags in alive)
        assert client.channel is not None
        client.channel.send('{"type": "session.update", "session": {}}')
        await until(lambda: client.of_type("session.updated"), "the channel goes on")


async def test_until_a_check_comes_an_unconfirmed_address_gets_three_times_what_came_from_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000)
        session = await client.create()
        await client.connect()
        client.speak()
        await until(lambda: session.sources, "authenticated")
        other = path(2001)
        at_other: list[bytes] = []
        running.relay.sinks[other] = at_other.append
        session.stream.play(b"\x10\x20" * 24_000 * 5)
        received = len(client.speak(other, RecordFlag.TENTATIVE, bytes(400)))
        await until(lambda: session.participant.unsent > 20, "the bound is reached")
        sent = sum(map(len, at_other))
        assert 0 < sent <= 3 * received
        client.check(other)
        await until(lambda: sum(map(len, at_other)) > 10 * received, "a check opens the path")


class SwitchableIce:
    """Lets a stock aiortc client change its aioice connection under a running DTLS transport."""

    def __init__(self, pc: RTCPeerConnection) -> None:
        transport: Any = pc.getTransceivers()[0].receiver.transport.transport
        self.current: Any = transport._connection
        transport._recv = self._recv
        transport._send = self._send

    async def _recv(self) -> bytes:
        while True:
            current = self.current
            data: bytes | None = await current.recv()
            if current is self.current:
                assert data is not None
                return data

    async def _send(self, data: bytes) -> None:
        await self.current.send(data)

    def switch(self, connection: Any) -> None:
        old, self.current = self.current, connection
        old._queue.put_nowait((None, None))  # wakes the reader, which then reads from the new one


async def restart_ice(client: Client, ice: SwitchableIce) -> aioice.Connection:
    connection = aioice.Connection(ice_controlling=True)
    await connection.gather_candidates()
    credentials = {"ufrag": connection.local_username, "pwd": connection.local_password}
    answer = await client.rig.post(f"/sessions/{client.session_id}/restart", credentials)
    assert answer.status_code == 200
    restarted = answer.json()
    connection.remote_username, connection.remote_password = restarted["ufrag"], restarted["pwd"]
    for value in restarted["candidates"]:
        await connection.add_remote_candidate(aioice.Candidate.from_sdp(value))
    await connection.add_remote_candidate(None)
    return connection


@pytest.mark.timed
async def test_an_ice_restart_is_make_before_break_and_loses_no_audio(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = running.client()
        await client.offer()
        ice = SwitchableIce(client.pc)
        await client.call()
        await until(client.hears_tone, "the tone is heard")
        old = client.remote_path
        before = (await running.http.get(f"{BASE_PATH}/sessions/{client.session_id}")).json()
        started = time.monotonic()
        connection = await restart_ice(client, ice)
        assert client.remote_path == old
        await connection.connect()
        ice.switch(connection)
        await until(lambda: client.remote_path != old, "moved to the new socket", 1.0)
        await asyncio.sleep(0.5)
        assert client.hears_tone()
        assert largest_gap(rtp_times(running, started - 0.1)) < 0.1
        ssrcs = {
            payload[8:12]
            for at, _, payload, _ in running.relay.log.down
            if at > started and classify(payload) is DatagramClass.RTP and not is_rtcp(payload)
        }
        assert ssrcs == {client.session.facts.stream.ssrc.to_bytes(4)}
        after = (await running.http.get(f"{BASE_PATH}/sessions/{client.session_id}")).json()
        assert after["ufrag"] != before["ufrag"]
        assert after["remote_ufrags"] == [connection.local_username]
        assert client.channel is not None
        client.channel.send('{"type": "session.update", "session": {}}')
        await until(lambda: client.of_type("session.updated"), "the channel goes on")
        await connection.close()


async def test_the_answer_to_a_restart_names_candidates_and_mids(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = running.client()
        await client.call()
        answer = await running.post(f"/sessions/{client.session_id}/restart", {"ufrag": "abcd", "pwd": "x" * 22})
        restarted = answer.json()
        assert f"127.0.0.1 {running.relay.port} typ host" in restarted["candidates"][0]
        assert restarted["mids"] == ["0", "1"]
        trickle = {"ufrag": "abcd", "candidates": ["1 1 udp 1 192.0.2.1 9 typ host"], "end_of_candidates": True}
        assert (await running.post(f"/sessions/{client.session_id}/trickle", trickle)).status_code == 204


@pytest.mark.parametrize("order", ["nominated first", "nominated last"])
async def test_checks_from_several_sockets_end_at_the_nominated_one(tmp_path: Path, order: str) -> None:
    # Chromium checks from two or three sockets (clients.md section 2).
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000)
        session = await client.create()
        other = path(2001)
        running.relay.sinks[other] = lambda _payload: None
        steps = [lambda: client.check(nominate=True), lambda: client.check(other)]
        for step in steps if order == "nominated first" else reversed(steps):
            step()
        await until(lambda: len(session.participant.agent.addresses) == 2, "both seen")
        client.handshake()
        await client.connected()
        sending = session.participant.agent.sending
        assert sending is not None
        assert sending.address == client.path
