"""What a stranger with a recorder, a forger or another caller can do: nothing, and it is counted."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ice_checks import check_bytes, generation, path
from tests.raw_client import RawClient
from tests.transceiver_rig import POD, Client, Rig, rig, until
from usher_core.datagram import DatagramClass, classify
from usher_core.hop import HopType, Record, RecordFlag
from usher_core.ids import ClientPath

pytestmark = pytest.mark.timed

VICTIM_PORT, ATTACKER_PORT = 2000, 3000


async def calling(running: Rig) -> Client:
    client = running.client()
    await client.call()
    await until(client.hears_tone, "the tone is heard")
    return client


def sent_to(running: Rig, at: ClientPath) -> int:
    return len(running.relay.down_to(at))


async def test_recorded_packets_replayed_from_elsewhere_take_nothing_and_get_no_answer(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await calling(running)
        owner = client.remote_path
        recorded = [payload for _, at, payload in running.relay.log.up if at == owner]
        checks = sum(classify(payload) is DatagramClass.STUN for payload in recorded)
        thieves = [path(port, host="203.0.113.66") for port in range(50)]
        started = time.monotonic()
        for thief in thieves:
            for payload in recorded:
                running.relay.forward(thief, payload, RecordFlag.TENTATIVE)
            await asyncio.sleep(0.01)
        await until(lambda: running.checks["ice_replay"] == checks * len(thieves), "all replays seen")
        assert [sent_to(running, thief) for thief in thieves] == [0] * len(thieves)
        assert client.remote_path == owner
        assert running.transceiver.mux.paths == len(client.session.participant.agent.addresses)
        to_owner = [at for at, to, _, _ in running.relay.log.down if to == owner and at >= started]
        assert max(b - a for a, b in itertools.pairwise(to_owner)) < 0.2
        assert client.hears_tone()
        assert set(running.relay.log.unknown_flow) <= set(thieves)


async def test_a_check_with_another_sessions_ufrag_from_a_victims_address_moves_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        victim, attacker = RawClient(running, VICTIM_PORT), RawClient(running, ATTACKER_PORT)
        victims_session = await victim.create()
        attackers_session = await attacker.create()
        await victim.connect()
        answered = len(victim.responses)
        attacker.check(victim.path, nominate=True)
        await until(lambda: running.checks["foreign"], "the check was handled")
        # Answered as the attacker's own, to where it seemed to come from.
        await until(lambda: len(victim.responses) == answered + 1, "answered")
        assert attackers_session.participant.agent.addresses == ()
        victim.speak()
        await until(lambda: victims_session.sources, "the victim's packet reaches the victim's session")
        assert running.drops["srtp_early"] == 0


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"key": bytes(16)}, "hop_mac"),
        ({"pod": POD + 1}, "hop_not_our_route"),
        ({"to_client": True}, "hop_direction"),
        ({"time_ms": 1}, "hop_time"),
        ({"kind": HopType.PROBE_REPLY}, "hop_type"),
    ],
)
async def test_forged_hop_datagrams_reach_no_session(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, VICTIM_PORT)
        session = await client.create()
        running.relay.send(Record(client.path, check_bytes(client.generation)), **changes)
        await until(lambda: running.drops[reason], "dropped and counted")
        assert session.state == "new"
        assert client.responses == []


async def test_replayed_hop_datagrams_play_nothing_twice(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, VICTIM_PORT)
        session = await client.create()
        await client.connect()
        assert client.srtp is not None
        client.speak()
        packet = client.speak()
        await until(lambda: session.stream.stats(0).packets_received == 2, "both arrived")
        datagram = running.relay.encode(Record(client.path, packet))
        for _ in range(20):
            running.relay.send_raw(datagram)
        await until(lambda: running.drops["srtp_authentication"] == 20, "all dropped")
        assert session.stream.stats(0).packets_received == 2


@pytest.mark.parametrize(
    "make,counter",
    [
        (lambda client: check_bytes(generation(9)), "ice_ufrag"),
        (lambda client: b"\0\1\0\4\x21\x12\xa4\x42" + bytes(12), "stun_length"),
        (lambda client: check_bytes(client.generation)[:-1], "stun_length"),
        (lambda client: check_bytes(client.generation)[:-1] + b"\xff", "stun_fingerprint"),
        (lambda client: b"", "unknown_client"),
        (lambda client: b"\x50" * 40, "unknown_client"),
        (lambda client: b"\x80\x6f" + bytes(40), "unknown_client"),
        (lambda client: b"\x16\xfe\xfd" + bytes(40), "unknown_client"),
    ],
)
async def test_nothing_answers_a_packet_that_proves_nothing(tmp_path: Path, make: Any, counter: str) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, VICTIM_PORT)
        await client.create()
        client.send(make(client))
        await until(lambda: running.drops[counter], "dropped and counted")
        assert sent_to(running, client.path) == 0


@pytest.mark.parametrize(
    "options,counter",
    [({"password": b"wrong" * 6}, "ice_integrity"), ({"remote": b"stranger"}, "ice_username")],
)
async def test_a_check_with_a_wrong_password_or_name_is_not_answered(
    tmp_path: Path, options: dict[str, Any], counter: str
) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, VICTIM_PORT)
        await client.create()
        client.check(**options)
        await until(lambda: running.checks[counter], "dropped and counted")
        assert sent_to(running, client.path) == 0


async def test_media_that_does_not_authenticate_moves_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, VICTIM_PORT)
        session = await client.create()
        await client.connect()
        packet = client.speak()
        await until(lambda: session.sources, "authenticated")
        thief = path(6666, host="203.0.113.66")
        forged = packet[:2] + b"\x7f\x00" + packet[4:]
        for _ in range(100):
            client.send(forged, thief, RecordFlag.TENTATIVE)
        await until(lambda: running.drops["srtp_authentication"] == 100, "all dropped")
        assert session.participant.agent.path(thief) is None
        assert sent_to(running, thief) == 0
