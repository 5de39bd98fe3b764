"""What strangers may try against a live fleet: nothing is answered, nothing moves, everything is counted.

A victim's call runs through a recording proxy, so the attacker knows every datagram of it, and can send from the
victim's own address (which a stranger on the internet could only spoof).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from aiortc import RTCConfiguration, RTCPeerConnection
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.fleet import Fleet, running_fleet
from tests.integration.udp_proxy import Address, UdpProxy
from usher_cli.call.api import CallsApi
from usher_cli.call.client import CallRecord, place_call
from usher_cli.call.source import tone
from usher_core import hop, stun
from usher_core.datagram import DatagramClass, classify
from usher_core.ids import ClientPath, pack_address
from usher_core.rtp import is_rtcp

pytestmark = pytest.mark.timed

VICTIM_SECONDS = 2.5
LONGEST_GAP_S = 0.2
"""What a client that speaks may notice of a move there and back (docs/wire.md section 6)."""


class RecordingProxy(UdpProxy):
    """Keeps what the victim sent; can hold one packet back."""

    def __init__(self, target: Address) -> None:
        super().__init__(target)
        self.sent: list[bytes] = []
        self.delivered: list[bytes] = []
        self.steal_rtp: Callable[[bytes], None] | None = None

    def from_client(self, packet: bytes, client: Address) -> None:
        if self.steal_rtp is not None and classify(packet) is DatagramClass.RTP and not is_rtcp(packet):
            steal, self.steal_rtp = self.steal_rtp, None
            steal(packet)
            return
        self.sent.append(packet)
        super().from_client(packet, client)

    def to_client(self, packet: bytes, client: Address) -> None:
        self.delivered.append(packet)
        super().to_client(packet, client)

    def valid_check(self) -> bytes:
        return next(packet for packet in reversed(self.sent) if classify(packet) is DatagramClass.STUN)


class Stranger:
    """A socket of somebody else, and what it was sent."""

    def __init__(self, target: Address) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._target = target
        self.sent_bytes = 0

    def send(self, packet: bytes) -> None:
        self.sent_bytes += len(packet)
        self._socket.sendto(packet, self._target)

    def received(self) -> list[bytes]:
        packets: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                packets.append(self._socket.recv(65_535))
        return packets

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client needs to make a valid check for its own session."""

    server_ufrag: str
    server_password: str
    client_ufrag: str
    call_url: str

    def check(self, transaction_id: bytes) -> bytes:
        username = f"{self.server_ufrag}:{self.client_ufrag}".encode()
        attributes = [
            (stun.Attribute.USERNAME, username),
            (stun.Attribute.PRIORITY, bytes(4)),
            (stun.Attribute.ICE_CONTROLLING, bytes(8)),
            (stun.Attribute.USE_CANDIDATE, b""),
        ]
        return stun.build(stun.StunClass.REQUEST, transaction_id, attributes, self.server_password.encode())


@pytest.fixture(scope="module", name="fleet")
def _fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("attacks"), "--relays=1", "--transceivers=2") as fleet:
        yield fleet


@pytest.fixture(name="stranger")
def _stranger(fleet: Fleet) -> Iterator[Stranger]:
    stranger = Stranger(fleet.udp)
    yield stranger
    stranger.close()


@pytest.fixture(name="proxy")
async def _proxy(fleet: Fleet) -> AsyncIterator[RecordingProxy]:
    async with RecordingProxy(fleet.udp) as proxy:
        yield proxy


def ask_relay(fleet: Fleet, path: str) -> Any:
    """What the one relay's admin page says."""
    return httpx.get(fleet.state()["relays"][0]["admin"] + path).json()


def counters(fleet: Fleet, kind: str) -> dict[str, float]:
    """All samples of all programs of a kind, summed: `name{label values}` → value."""
    found: dict[str, float] = {}
    for entry in fleet.state()[kind]:
        for family in text_string_to_metric_families(httpx.get(f"{entry['admin']}/metrics").text):
            for sample in family.samples:
                key = ",".join([sample.name, *sample.labels.values()])
                found[key] = found.get(key, 0.0) + sample.value
    return found


async def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.02)


async def credentials(fleet: Fleet) -> Credentials:
    """Place a call and keep its credentials; no packet of it is ever sent by a real client."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    connection.addTransceiver("audio")
    await connection.setLocalDescription(await connection.createOffer())
    offer = connection.localDescription.sdp
    async with CallsApi(fleet.url, None) as api:
        placed = await api.place(offer)
    await connection.close()
    assert placed.url is not None

    def value(sdp: str, name: str) -> str:
        return next(line.partition(":")[2] for line in sdp.splitlines() if line.startswith(f"a={name}:"))

    return Credentials(
        value(placed.answer, "ice-ufrag"), value(placed.answer, "ice-pwd"), value(offer, "ice-ufrag"), placed.url
    )


async def attack_live_call(fleet: Fleet, proxy: RecordingProxy, attack: Callable[[], Awaitable[None]]) -> CallRecord:
    """Let a call run through the proxy and, in the middle of it, the attack."""
    connected = asyncio.Event()

    def progress(step: str) -> None:
        if step == "connected":
            connected.set()

    async with CallsApi(fleet.url, None) as api:
        call = asyncio.create_task(
            place_call(api, tone(440.0), VICTIM_SECONDS, progress, via=proxy.address, hang_up=asyncio.Event())
        )
        await asyncio.wait_for(connected.wait(), 20)
        # Media flows both ways, so the first authenticated packet has been there.
        await until(lambda: sum(classify(p) is DatagramClass.RTP for p in proxy.delivered) > 25, 10, "audio came back")
        await attack()
        return await call


def assert_unharmed(record: CallRecord) -> None:
    times = [arrival.at for arrival in record.arrivals]
    assert record.broke is None
    assert len(times) > VICTIM_SECONDS * 50 * 0.8
    assert max(after - before for before, after in itertools.pairwise(times)) <= LONGEST_GAP_S


async def wrong_checks(fleet: Fleet) -> dict[str, bytes]:
    """Checks that no answer of ours produced, by the reason for which they are dropped."""
    mine = await credentials(fleet)
    ufrag = mine.server_ufrag
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    mistyped = ufrag[:9] + ("A" if ufrag[9] != "A" else "B") + ufrag[10:]
    other_spelling = ufrag[:-1] + alphabet[alphabet.index(ufrag[-1]) + 1]
    other_letter = ("b" if ufrag[0] != "b" else "c") + ufrag[1:]

    def check(server_ufrag: str, password: str = mine.server_password) -> bytes:
        return Credentials(server_ufrag, password, mine.client_ufrag, "").check(os.urandom(12))

    return {
        "truncated ufrag": check(ufrag[:4]),
        "ufrag of another server": check("kZ2qkHXX/u11"),
        "other spelling": check(other_spelling),
        "unknown letter": check(other_letter),
        "mistyped ufrag": check(mistyped),
        "wrong password": check(ufrag, "x" * 32),
        "no username": stun.build(stun.StunClass.REQUEST, os.urandom(12), [], b"x" * 32),
        "cut off": check(ufrag)[:-3],
    }


async def test_check_that_no_answer_of_ours_produced_is_dropped_counted_and_not_answered(
    fleet: Fleet, stranger: Stranger
) -> None:
    checks = await wrong_checks(fleet)
    before, owners = counters(fleet, "relays"), counters(fleet, "transceivers")

    def dropped() -> float:
        now = counters(fleet, "relays")
        return sum(now[name] - before[name] for name in now if name.startswith("usher_relay_drops_total"))

    for check in checks.values():
        stranger.send(check)
    await until(lambda: dropped() == len(checks), 5, "every one of them is counted as dropped")
    after = counters(fleet, "relays")
    grown = {
        name.partition(",")[2]: after[name] - before[name]
        for name in after
        if name.startswith("usher_relay_drops_total") and after[name] > before[name]
    }
    assert grown == {"ufrag_shape": 3, "ufrag_unknown": 2, "integrity": 1, "unknown_address": 1, "stun_malformed": 1}
    name = "usher_transceiver_hop_received_total"
    assert counters(fleet, "transceivers")[name] == owners[name]
    assert stranger.received() == []


async def test_recorded_check_replayed_from_other_addresses_is_not_answered_and_moves_nothing(
    fleet: Fleet, proxy: RecordingProxy
) -> None:
    before = counters(fleet, "transceivers")
    # Each data thread of the relay has a flow map, and so a bound, of its own.
    threads = sum(name.startswith("usher_relay_receive_buffer_bytes,upstream") for name in counters(fleet, "relays"))
    strangers = [Stranger(fleet.udp) for _ in range(40 * threads)]

    async def attack() -> None:
        for _ in range(4):
            for stranger in strangers:
                stranger.send(proxy.valid_check())
            await asyncio.sleep(0.1)

    record = await attack_live_call(fleet, proxy, attack)
    replayed = "usher_transceiver_checks_total,ice_replay"
    assert counters(fleet, "transceivers")[replayed] > before.get(replayed, 0)
    assert [packet for stranger in strangers for packet in stranger.received()] == []
    flows = ask_relay(fleet, "/flows?limit=1000")["flows"]
    probation = [flow for flow in flows if flow["state"] == "probation"]
    assert len(probation) <= 16 * threads
    for stranger in strangers:
        stranger.close()
    assert_unharmed(record)


async def test_check_of_another_session_from_the_victims_address_is_answered_and_moves_nothing(
    fleet: Fleet, proxy: RecordingProxy
) -> None:
    """Placement spreads sessions, so some of eight are on the victim's pod and some are not."""
    attackers = [await credentials(fleet) for _ in range(8)]
    transactions = [os.urandom(12) for _ in attackers]
    before = counters(fleet, "relays")

    async def attack() -> None:
        for attacker, transaction in zip(attackers, transactions, strict=True):
            proxy.send_as_client(attacker.check(transaction))
            await asyncio.sleep(0.05)

    record = await attack_live_call(fleet, proxy, attack)
    async with CallsApi(fleet.url, None) as api:
        owners = {(await api.describe(attacker.call_url))["path"]["transceiver"] for attacker in attackers}
    assert len(owners) == 2
    answered = {
        packet[8:20] for packet in proxy.delivered if classify(packet) is DatagramClass.STUN and packet[:2] == b"\1\1"
    }
    assert set(transactions) <= answered
    kept = "usher_relay_flow_events_total,kept"
    assert counters(fleet, "relays")[kept] > before[kept]
    assert_unharmed(record)


async def test_forged_hop_datagram_is_dropped_counted_and_not_answered(fleet: Fleet, proxy: RecordingProxy) -> None:
    routes = ask_relay(fleet, "/routes")["routes"]
    forged = "usher_transceiver_drops_total,hop_mac"
    before = counters(fleet, "transceivers").get(forged, 0)
    strangers: list[Stranger] = []

    async def attack() -> None:
        for route in routes:
            host, _, port = route["udp"].rpartition(":")
            stranger = Stranger((host, int(port)))
            strangers.append(stranger)
            cluster, pod, worker = map(int, route["route"].split("/"))
            outer = hop.Outer(hop.HopType.DATA, False, cluster, pod, worker, key_id=1, time_ms=0)
            path = ClientPath(pack_address("127.0.0.1"), proxy.outer_ports[0], 1)
            stranger.send(hop.encode(outer, (hop.Record(path, proxy.valid_check()),), os.urandom(16)))
            stranger.send(os.urandom(200))

    record = await attack_live_call(fleet, proxy, attack)
    await until(
        lambda: counters(fleet, "transceivers").get(forged, 0) >= before + len(routes), 5, "forged ones are counted"
    )
    assert [packet for stranger in strangers for packet in stranger.received()] == []
    for stranger in strangers:
        stranger.close()
    assert_unharmed(record)


async def test_address_without_a_check_gets_at_most_three_times_what_it_sent(
    fleet: Fleet, proxy: RecordingProxy, stranger: Stranger, record_property: Callable[[str, object], None]
) -> None:
    """Somebody on the path takes a fresh SRTP packet and sends it first: the most that a thief of packets can do."""

    async def attack() -> None:
        for _ in range(10):
            proxy.steal_rtp = stranger.send
            await until(lambda: proxy.steal_rtp is None, 5, "a packet was stolen")
            await asyncio.sleep(0.03)

    record = await attack_live_call(fleet, proxy, attack)
    got = sum(len(packet) for packet in stranger.received())
    assert stranger.sent_bytes > 0
    figure = round(got / stranger.sent_bytes, 2)
    print(f"\nbytes back per byte sent: {figure}")
    record_property("amplification", figure)
    assert got <= 3 * stranger.sent_bytes
    assert_unharmed(record)
