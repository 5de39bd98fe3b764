"""Which session a hop datagram reaches, and what never reaches one."""

from __future__ import annotations

import secrets
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ice_checks import check_bytes, generation, path
from tests.transceiver_rig import HOP_KEY_ID, POD, write_files
from usher_core import hop, stun
from usher_core.errors import RemoteError
from usher_core.hop import HopType, Outer, Record, RecordFlag
from usher_core.ids import ClientPath, Route
from usher_core.keys import HopKey, KeyFile
from usher_relay.routes.round_trips import RoundTrips
from usher_transceiver.ice import CheckOutcome
from usher_transceiver.mux import GIVEN_UP_RATE, PROBE_RATE, UNKNOWN_FLOW_RATE, WHO_HAS_RATE, Mux
from usher_transceiver.paths import Path as ClientWay
from usher_transceiver.paths import SocketAddress, Via
from usher_transceiver.transceiver_keys import TransceiverKeys

RELAY = ("10.0.0.1", 40_000)
ROUTE = Route(1, POD, 0)
WALL = 1_764_000_000.0
P1, P2 = path(1001), path(1002)
DTLS = b"\x16\xfe\xfd" + bytes(20)


def rtp(ssrc: int) -> bytes:
    return bytes((0x80, 111, 0, 1, 0, 0, 0, 0)) + ssrc.to_bytes(4) + b"speech"


class FakeSession:
    """Takes everything, unless told otherwise."""

    def __init__(self) -> None:
        self.checks: list[tuple[ClientPath, Via, bool]] = []
        self.packets: list[tuple[ClientPath, Via, bytes]] = []
        self.outcome = CheckOutcome.FRESH
        self.refuse: RemoteError | Exception | None = None
        self.quiet = False
        self.forgotten: list[ClientPath] = []
        self.failed: Exception | None = None
        self.ends = False
        self.has_ended = False

    def on_check(
        self, now: float, request: stun.StunMessage, address: ClientPath, via: Via, *, usable: bool
    ) -> CheckOutcome:
        self.checks.append((address, via, usable))
        return self.outcome if usable else CheckOutcome.FOREIGN

    def on_packet(self, now: float, address: ClientPath, via: Via, packet: bytes) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.has_ended = self.ends
        self.packets.append((address, via, packet))

    def is_quiet_at(self, now: float, address: ClientPath) -> bool:
        return self.quiet

    def forget(self, address: ClientPath) -> None:
        self.forgotten.append(address)

    def fail(self, error: Exception) -> None:
        self.failed = error


class World:
    def __init__(self, folder: Path) -> None:
        self.hop_key = secrets.token_bytes(16)
        write_files(folder, self.hop_key)
        keys = TransceiverKeys(folder / "transceiver.json", ROUTE, lambda: WALL)
        self.sent: list[tuple[hop.HopDatagram, SocketAddress]] = []
        self.now = 100.0
        self.mux = Mux(ROUTE, keys, self._send, lambda: WALL)

    def _send(self, datagram: bytes, to: SocketAddress) -> None:
        self.sent.append((hop.parse(datagram), to))

    def encode(self, *records: Record, kind: HopType = HopType.DATA, key: bytes | None = None, **outer: Any) -> bytes:
        facts: dict[str, Any] = {
            "to_client": False,
            "cluster": 1,
            "pod": POD,
            "worker": 0,
            "key_id": HOP_KEY_ID,
            "time_ms": int(WALL * 1000),
        }
        return hop.encode(Outer(kind, **(facts | outer)), records, key or self.hop_key)

    def come(self, at: ClientPath, payload: bytes, flags: int = 0, **options: Any) -> None:
        self.mux.on_datagram(self.now, self.encode(Record(at, payload, flags), **options), RELAY)

    def session(self, number: int = 0) -> FakeSession:
        made = FakeSession()
        self.mux.add_ufrag(generation(number).ufrag, made)
        return made

    @property
    def drops(self) -> dict[str, int]:
        return dict(self.mux.drops)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_check_goes_to_the_session_of_its_ufrag_and_binds_the_path(world: World) -> None:
    first, second = world.session(0), world.session(1)
    world.come(P1, check_bytes(generation(1)), return_slot=77)
    assert first.checks == []
    assert second.checks == [(P1, Via(RELAY, 77), True)]
    world.come(P1, DTLS)
    assert [packet for _, _, packet in second.packets] == [DTLS]


@pytest.mark.parametrize(
    "outcome", [CheckOutcome.REPLAYED, CheckOutcome.WRONG_PASSWORD, CheckOutcome.REPEATED, CheckOutcome.ROLE_CONFLICT]
)
def test_a_check_that_is_not_fresh_binds_nothing(world: World, outcome: CheckOutcome) -> None:
    session = world.session()
    session.outcome = outcome
    world.come(P1, check_bytes(generation()))
    assert world.mux.checks == {outcome: 1}
    world.come(P1, DTLS)
    assert session.packets == []
    assert world.drops == {"unknown_client": 1}


def test_several_records_of_one_datagram_are_all_handled_also_after_a_bad_one(world: World) -> None:
    session = world.session()
    records = [Record(P1, check_bytes(generation())), Record(P2, b"\0\1junk"), Record(P1, DTLS)]
    world.mux.on_datagram(world.now, world.encode(*records), RELAY)
    assert len(session.packets) == 1
    assert world.drops == {"stun_length": 1}


@pytest.mark.parametrize(
    "options,reason",
    [
        ({"to_client": True}, "hop_direction"),
        ({"cluster": 2}, "hop_not_our_route"),
        ({"pod": POD + 1}, "hop_not_our_route"),
        ({"worker": 1}, "hop_not_our_route"),
        ({"key": bytes(16)}, "hop_mac"),
        ({"key_id": 99}, "hop_mac"),
        ({"time_ms": int(WALL * 1000) - 60_001}, "hop_time"),
        ({"time_ms": int(WALL * 1000) + 60_001}, "hop_time"),
        ({"kind": HopType.UNKNOWN_FLOW}, "hop_type"),
        ({"kind": HopType.HERE}, "hop_type"),
    ],
)
def test_what_is_not_for_us_or_not_authentic_is_dropped_and_counted(
    world: World, options: dict[str, Any], reason: str
) -> None:
    session = world.session()
    world.come(P1, check_bytes(generation()), **options)
    assert session.checks == []
    assert world.drops == {reason: 1}
    assert world.sent == []


def test_a_changed_byte_breaks_the_mac(world: World) -> None:
    session = world.session()
    datagram = world.encode(Record(P1, check_bytes(generation())))
    for index in (2, 5, 10, 20, 30, 45, 55):
        changed = bytearray(datagram)
        changed[index] ^= 1
        world.mux.on_datagram(world.now, bytes(changed), RELAY)
    assert session.checks == []
    assert sum(world.drops.values()) == 7


def test_halves_are_joined_before_anything_looks_at_them(world: World) -> None:
    session = world.session()
    world.come(P1, check_bytes(generation()))
    payload = b"\x16" + bytes(1407)
    for part, flags in ((payload[704:], RecordFlag.SPLIT | RecordFlag.LAST_PART), (payload[:704], RecordFlag.SPLIT)):
        world.mux.on_datagram(world.now, world.encode(Record(P1, part, flags, 9)), RELAY)
    assert session.packets == [(P1, Via(RELAY), payload)]


# Addresses that are somebody's


def test_another_sessions_check_from_a_live_clients_address_does_not_take_it(world: World) -> None:
    victim, attacker = world.session(0), world.session(1)
    world.come(P1, check_bytes(generation(0)))
    world.come(P1, check_bytes(generation(1)))
    assert attacker.checks == [(P1, Via(RELAY), False)]
    world.come(P1, DTLS)
    assert len(victim.packets) == 1
    assert attacker.packets == []
    assert victim.forgotten == []


def test_a_quiet_address_goes_to_the_session_that_checks_from_it(world: World) -> None:
    old, new = world.session(0), world.session(1)
    world.come(P1, check_bytes(generation(0)))
    old.quiet = True
    world.come(P1, check_bytes(generation(1)))
    assert new.checks == [(P1, Via(RELAY), True)]
    assert old.forgotten == [P1]
    world.come(P1, DTLS)
    assert len(new.packets) == 1


def test_an_ended_sessions_address_is_free(world: World) -> None:
    old, new = world.session(0), world.session(1)
    world.come(P1, check_bytes(generation(0)))
    world.mux.remove(old, (generation(0).ufrag,), (P1,), set())
    world.come(P1, check_bytes(generation(1)))
    world.come(P1, DTLS)
    assert len(new.packets) == 1


# Unknown addresses


def test_rtp_from_an_unknown_address_is_tried_by_ssrc_and_binds_when_it_authenticates(world: World) -> None:
    wrong, right = world.session(0), world.session(1)
    wrong.refuse = RemoteError("srtp_authentication", "")
    world.mux.add_source(5, wrong)
    world.mux.add_source(5, right)
    world.come(P1, rtp(5), RecordFlag.TENTATIVE)
    assert len(right.packets) == 1
    world.come(P1, DTLS)
    assert len(right.packets) == 2


def test_rtp_that_authenticates_nowhere_binds_nothing(world: World) -> None:
    session = world.session()
    session.refuse = RemoteError("srtp_authentication", "")
    world.mux.add_source(5, session)
    world.come(P1, rtp(5), RecordFlag.TENTATIVE)
    assert world.mux.paths == 0
    assert world.drops == {"srtp_authentication": 1, "unknown_client": 1}


def test_rtp_of_a_known_ssrc_from_another_live_clients_address_takes_nothing(world: World) -> None:
    victim, attacker = world.session(0), world.session(1)
    world.come(P1, check_bytes(generation(0)))
    victim.refuse = RemoteError("srtp_authentication", "")
    world.mux.add_source(5, attacker)
    world.come(P1, rtp(5))
    assert attacker.packets == []
    victim.quiet = True
    world.come(P1, rtp(5))
    assert len(attacker.packets) == 1


def test_an_unknown_client_is_reported_to_its_relay_by_the_way_it_came(world: World) -> None:
    world.come(P1, DTLS, return_slot=9)
    ((report, to),) = world.sent
    assert to == RELAY
    assert report.outer.type is HopType.UNKNOWN_FLOW
    assert report.outer.to_client
    assert report.outer.return_slot == 9
    assert report.records == (Record(P1, b""),)
    assert hop.verify(report, world.hop_key)


def test_a_check_for_an_ended_session_is_reported_unless_the_address_is_another_sessions(world: World) -> None:
    world.come(P1, check_bytes(generation(5)))
    assert [sent.outer.type for sent, _ in world.sent] == [HopType.UNKNOWN_FLOW]
    world.session(0)
    world.come(P1, check_bytes(generation(0)))
    world.come(P1, check_bytes(generation(5)))
    assert len(world.sent) == 1
    assert world.drops == {"ice_ufrag": 2}


def test_reports_are_bounded(world: World) -> None:
    for port in range(1, 2000):
        world.come(path(port), DTLS)
    assert len(world.sent) == UNKNOWN_FLOW_RATE
    world.now += 1
    world.come(P1, DTLS)
    assert len(world.sent) == UNKNOWN_FLOW_RATE + 1


def test_a_path_that_is_given_up_is_free_and_its_relay_is_told_by_the_way_it_came(world: World) -> None:
    session = world.session()
    world.come(P1, check_bytes(generation()))
    world.mux.give_up_path(world.now, ClientWay(P1, Via(("10.0.0.2", 7), 9)), session)
    ((report, to),) = world.sent
    assert (report.outer.type, report.outer.to_client, report.outer.return_slot) == (HopType.UNKNOWN_FLOW, True, 9)
    assert report.records == (Record(P1, b""),)
    assert to == ("10.0.0.2", 7)
    assert world.mux.paths == 0
    assert world.mux.reports == {"path_given_up": 1}


def test_paths_that_are_given_up_in_masses_do_not_silence_other_reports(world: World) -> None:
    session = world.session()
    for port in range(1, 2 * int(GIVEN_UP_RATE)):
        world.mux.give_up_path(world.now, ClientWay(path(port), Via(RELAY)), session)
    assert world.mux.reports == {"path_given_up": GIVEN_UP_RATE}
    world.come(P1, DTLS)
    assert world.mux.reports == {"path_given_up": GIVEN_UP_RATE, "unknown_flow": 1}


@pytest.mark.parametrize(
    "asked,ssrc,answer",
    [
        (P1, 0, 0),
        (P1, 5, 0),  # the address is ours: that says more
        (P1, 6, 0),
        (P2, 5, 5),
        (P2, 6, None),
        (P2, 0, None),
    ],
)
def test_who_has_is_answered_here_or_not_at_all(world: World, asked: ClientPath, ssrc: int, answer: int | None) -> None:
    session = world.session()
    world.come(P1, check_bytes(generation()))
    for source in (5, 0):
        world.mux.add_source(source, session)
    world.come(asked, ssrc.to_bytes(4), kind=HopType.WHO_HAS, return_slot=4)
    assert [(sent.outer.type, sent.outer.return_slot, sent.records) for sent, _ in world.sent] == (
        [] if answer is None else [(HopType.HERE, 4, (Record(asked, answer.to_bytes(4)),))]
    )


def test_a_question_of_another_length_is_not_answered(world: World) -> None:
    world.session()
    world.come(P1, check_bytes(generation()))
    world.come(P1, b"", kind=HopType.WHO_HAS)
    assert world.sent == []
    assert world.mux.drops["hop_who_has"] == 1


def test_questions_are_answered_at_a_bounded_rate_and_those_beyond_it_counted(world: World) -> None:
    world.session()
    world.come(P1, check_bytes(generation()))
    world.sent.clear()
    for _ in range(int(WHO_HAS_RATE) + 5):
        world.come(P1, bytes(4), kind=HopType.WHO_HAS)
    assert len(world.sent) == WHO_HAS_RATE
    assert world.drops == {"hop_who_has_rate": 5}


def test_who_has_for_an_unknown_address_is_not_answered(world: World) -> None:
    world.come(P2, bytes(4), kind=HopType.WHO_HAS)
    assert world.sent == []


# PROBE


def test_the_probe_of_a_relay_is_answered_with_what_it_reads_as_a_round_trip(world: World) -> None:
    keys = KeyFile(version=1, hop=(HopKey(id=HOP_KEY_ID, key=world.hop_key),))
    trips = RoundTrips(keys, seed=1)
    trips.set_addresses({ROUTE: RELAY}, 0.0)
    ((probe, _),) = trips.due(5.0, WALL)
    world.mux.on_datagram(world.now, probe, ("10.0.0.9", 5))
    assert world.drops == {}
    ((answer, to),) = world.sent
    assert to == ("10.0.0.9", 5)
    assert len(answer.records[0].payload) <= len(hop.parse(probe).records[0].payload), "nobody's amplifier"
    trips.on_reply(hop.encode(answer.outer, answer.records, world.hop_key), RELAY, 5.002, WALL)
    assert trips.milliseconds(str(ROUTE)) == pytest.approx(2.0)


def test_probes_are_answered_at_a_bounded_rate_and_short_ones_never(world: World) -> None:
    for _ in range(3 * int(PROBE_RATE)):
        world.come(P1, bytes(18), kind=HopType.PROBE)
    assert len(world.sent) == PROBE_RATE
    assert world.drops == {"hop_probe_rate": 2 * PROBE_RATE}
    world.now += 1
    world.come(P1, bytes(17), kind=HopType.PROBE)
    assert len(world.sent) == PROBE_RATE
    assert world.drops == {"hop_probe_rate": 2 * PROBE_RATE, "hop_probe": 1}


# Faults


@pytest.mark.parametrize("payload", [rtp(5), b"\x80\xc9\x00\x01" + bytes(24)])
def test_media_that_waited_too_long_is_dropped_and_counted(world: World, payload: bytes) -> None:
    session = world.session()
    world.come(P1, check_bytes(generation()))
    world.mux.on_datagram(world.now, world.encode(Record(P1, payload)), RELAY, late=True)
    assert session.packets == []
    assert world.drops == {"late": 1}
    world.mux.on_datagram(world.now, world.encode(Record(P1, payload)), RELAY, late=False)
    assert len(session.packets) == 1


def test_what_keeps_a_call_alive_is_handled_however_late_it_is(world: World) -> None:
    session = world.session()
    records = Record(P1, check_bytes(generation())), Record(P1, DTLS), Record(P1, rtp(5))
    world.mux.on_datagram(world.now, world.encode(*records), RELAY, late=True)
    assert len(session.checks) == 1
    assert [packet for _, _, packet in session.packets] == [DTLS]


def test_a_session_that_raises_is_ended_and_the_next_packet_is_handled(world: World) -> None:
    broken, healthy = world.session(0), world.session(1)
    world.come(P1, check_bytes(generation(0)))
    world.come(P2, check_bytes(generation(1)))
    broken.refuse = ZeroDivisionError()
    records = [Record(P1, DTLS), Record(P2, DTLS)]
    world.mux.on_datagram(world.now, world.encode(*records), RELAY)
    assert isinstance(broken.failed, ZeroDivisionError)
    assert len(healthy.packets) == 1


def test_an_answer_carries_route_path_slot_and_whether_the_client_is_alive(world: World) -> None:
    world.mux.send_to_client(P1, Via(RELAY, 12), b"payload", True)
    world.mux.send_to_client(P1, Via(RELAY, 12), b"payload", False)
    (first, to), (second, _) = world.sent
    assert to == RELAY
    outer = first.outer
    assert (outer.cluster, outer.pod, outer.worker, outer.return_slot, outer.to_client) == (1, POD, 0, 12, True)
    assert first.records == (Record(P1, b"payload", RecordFlag.ALIVE),)
    assert second.records == (Record(P1, b"payload", 0),)


@pytest.mark.no_cover
def test_a_datagram_costs_little_more_than_its_authentication_however_many_sessions_there_are(world: World) -> None:
    """Ratios, each of the best rounds, so that a slow or busy machine changes nothing."""
    world.session()
    world.come(P1, check_bytes(generation()))
    datagram = world.encode(Record(P1, DTLS))

    def handle() -> None:
        world.mux.on_datagram(world.now, datagram, RELAY)

    def authenticate() -> None:
        assert hop.verify(hop.parse(datagram), world.hop_key)

    alone, authenticated = best_times(handle, authenticate)
    assert alone < 4 * authenticated

    for number in range(1, 500):
        world.session(number)
        world.come(path(2000 + number), check_bytes(generation(number)))
    among_many, authenticated = best_times(handle, authenticate)
    assert among_many < 4 * authenticated


def best_times(*calls: Callable[[], None]) -> list[float]:
    """Seconds of 100 calls of each, the least of 50 rounds in turn."""
    return [
        min(times)
        for times in zip(*([timeit.timeit(call, number=100) for call in calls] for _ in range(50)), strict=True)
    ]


@pytest.mark.parametrize("how", ["a fault of ours", "the packet ends it"])
def test_a_session_that_ends_on_a_packet_gets_no_path(world: World, how: str) -> None:
    session = world.session()
    world.mux.add_source(0x0A0B0C0D, session)
    session.refuse = RuntimeError("a fault") if how == "a fault of ours" else None
    session.ends = True
    world.come(path(1), rtp(0x0A0B0C0D))
    assert world.mux.paths == 0


@pytest.mark.parametrize("ahead", [-120_000, 120_000])
def test_a_clock_that_is_too_wrong_to_be_heard_is_seen_all_the_same(world: World, ahead: int) -> None:
    world.come(path(1), rtp(1), time_ms=int(WALL * 1000) + ahead)
    assert world.drops == {"hop_time": 1}
    assert world.mux.time_offset_ms == ahead


def test_nobody_without_a_key_can_set_the_clock_offset(world: World) -> None:
    world.come(path(1), rtp(1), time_ms=int(WALL * 1000) + 120_000, key=bytes(16))
    assert world.mux.time_offset_ms == 0
