"""Nothing raises, bounds hold, nothing unauthenticated is forwarded, and the fast bytes are those of the reference."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.relay_rig import (
    ADDRESSES,
    ALIVE,
    DTLS,
    HOP_KEY,
    INDICATION,
    POD_A,
    POD_B,
    POD_C,
    Rig,
    Session,
    client,
    path_of,
    rtcp,
    rtp,
    session,
)
from usher_core import hop
from usher_core.hop import HopType, Outer, Record
from usher_core.ids import ClientPath, Route
from usher_relay.counters import FlowEvent
from usher_relay.flows import (
    CONFIRMED_PER_UFRAG,
    ENDED_KEPT,
    IDLE_EXPIRY,
    ORDER_EVERY,
    PROBATION,
    PROBATION_PER_UFRAG,
    QUIET_AFTER,
)
from usher_relay.hop_codec import (
    encode_data,
    holds_one_record,
    hop_prefix,
    is_authentic,
    make_stamp,
    route_bytes,
    route_of,
)
from usher_relay.hop_codec import record_header as header
from usher_relay.limits import AddressLimit, Buckets, Rate
from usher_relay.state import Limits
from usher_transceiver.paths import MAX_PATHS, Path, PathTable, Via

routes = st.builds(Route, st.integers(1, 0xFFFF), st.integers(0, 0xFFFF_FFFF), st.integers(0, 0xFF))
paths = st.builds(ClientPath, st.binary(min_size=16, max_size=16), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
hop_keys = st.binary(min_size=16, max_size=16)


def key_of(path: ClientPath) -> bytes:
    return path.listener.to_bytes(2) + path.port.to_bytes(2) + path.address


@given(
    routes,
    paths,
    st.integers(0, 15),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFF),
    st.integers(0, 1 << 45),
    hop_keys,
    st.binary(max_size=1_500),
)
def test_the_fast_writer_makes_the_bytes_of_the_reference(
    route: Route, path: ClientPath, flags: int, split_id: int, key_id: int, time_ms: int, key: bytes, payload: bytes
) -> None:
    outer = Outer(HopType.DATA, False, route.cluster, route.pod, route.worker, key_id, time_ms)
    reference = hop.encode(outer, (Record(path, payload, flags, split_id),), key)
    stamp = make_stamp(key_id, key, time_ms)
    record = header(key_of(path), flags, split_id)
    assert encode_data(hop_prefix(HopType.DATA, route_bytes(route)), stamp, record, payload) == reference


@given(st.lists(st.one_of(st.binary(min_size=12, max_size=1_400), st.just(DTLS)), min_size=1, max_size=8))
def test_the_hot_loop_makes_the_bytes_of_the_reference(payloads: list[bytes]) -> None:
    # The loop spells `encode_data` out, so it is compared by itself.
    rig = Rig()
    path = client(5000)
    rig.connect(path, session(POD_A))
    media = [bytes([0x80 | payload[0] & 0x3F]) + payload[1:] for payload in payloads]
    sent = rig.forwarder.from_clients(rig.now, rig.unix, [(path, None, datagram) for datagram in media])
    outer = Outer(HopType.DATA, False, POD_A.cluster, POD_A.pod, POD_A.worker, 3, int(rig.unix * 1000))
    expected = [hop.encode(outer, (Record(path_of(path), datagram),), HOP_KEY) for datagram in media]
    assert [datagram for datagram, _ in sent] == expected


@given(routes, paths, st.integers(0, 255), st.binary(max_size=100), hop_keys, st.integers(0, 7), st.integers(0, 66))
def test_the_fast_reader_agrees_with_the_reference(
    route: Route, path: ClientPath, flags: int, payload: bytes, key: bytes, bit: int, place: int
) -> None:
    outer = Outer(HopType.DATA, True, route.cluster, route.pod, route.worker, 1, 2)
    datagram = hop.encode(outer, (Record(path, payload, flags),), key)
    assert holds_one_record(datagram)
    assert is_authentic(datagram, key)
    changed = bytearray(datagram)
    changed[place % len(changed)] ^= 1 << bit
    if holds_one_record(bytes(changed)):
        covered = place % len(changed) < hop.OVERHEAD + hop.MAC_PAYLOAD_LENGTH
        assert is_authentic(bytes(changed), key) is not covered


@given(routes)
def test_a_route_survives_its_seven_bytes(route: Route) -> None:
    assert route_of(route_bytes(route)) == route


CLIENTS = st.integers(0, 40).map(lambda number: client(1_000 + number % 7, f"192.0.2.{number // 7}"))
PODS = st.sampled_from([POD_A, POD_B, POD_C])
SESSIONS = st.builds(session, PODS, st.integers(0, 3))
MEDIA = st.one_of(
    st.just(DTLS), st.just(INDICATION), st.integers(0, 5).map(rtp), st.integers(0, 5).map(rtcp), st.binary(max_size=80)
)
MAX_FLOWS = 12


class RelayMachine(RuleBasedStateMachine):
    """Clients, transceivers and attackers do what they like with a small table."""

    @initialize()
    def start(self) -> None:
        self.rig = Rig(Limits(max_flows=MAX_FLOWS, probation_per_ufrag=3))
        self.live = {POD_A, POD_B, POD_C}
        self.uplink = self.downlink = 0

    @rule(path=CLIENTS, at=SESSIONS, number=st.integers(0, 100))
    def check(self, path: bytes, at: Session, number: int) -> None:
        check = at.check(number)
        sent = self.rig.send(path, check)
        assert [(to.route, to.record.payload) for to in sent] == ([(at.route, check)] if at.route in self.live else [])

    @rule(path=CLIENTS, at=SESSIONS, wrong=st.sampled_from(["password", "ufrag"]))
    def forged_check(self, path: bytes, at: Session, wrong: str) -> None:
        before = dict(self.rig.forwarder.state.flows.by_key)
        forged = at.check(password="x" * 32) if wrong == "password" else at.check(ufrag="u" + "A" * 22)
        assert self.rig.send(path, forged) == []
        assert self.rig.forwarder.state.flows.by_key == before

    @rule(path=CLIENTS, datagram=MEDIA)
    def media(self, path: bytes, datagram: bytes) -> None:
        before = dict(self.rig.forwarder.state.flows.by_key)
        known = self.rig.route_of(path)
        for to in self.rig.send(path, datagram):
            assert to.route in self.live
            assert to.route == known or to.record.flags == hop.RecordFlag.TENTATIVE
        assert self.rig.forwarder.state.flows.by_key == before, "no packet but a check changes the map"

    @rule(path=CLIENTS, pod=PODS, flags=st.sampled_from([0, int(ALIVE)]))
    def answer(self, path: bytes, pod: Route, flags: int) -> None:
        sent = self.rig.answer(pod, path, b"answer", flags)
        assert sent == ([(path, b"answer", None)] if pod in self.live else [])

    @rule(path=CLIENTS, pod=PODS, data=st.data())
    def forged_answer(self, path: bytes, pod: Route, data: st.DataObject) -> None:
        before = dict(self.rig.forwarder.state.flows.by_key)
        datagram = bytearray(self.rig.hop(pod, path, b"x" * 20, ALIVE))
        place = data.draw(st.integers(0, hop.OVERHEAD + 15))
        datagram[place] ^= data.draw(st.integers(1, 255))
        assert self.rig.receive(bytes(datagram), ADDRESSES[pod]) == []
        assert self.rig.forwarder.state.flows.by_key == before

    @rule(path=CLIENTS, pod=PODS)
    @precondition(lambda self: len(self.live) == 3)
    def unknown_flow(self, path: bytes, pod: Route) -> None:
        self.rig.unknown_flow(pod, path)

    @rule(garbage=st.binary(max_size=120), source=st.sampled_from(sorted(ADDRESSES.values())))
    def garbage_from_the_hop(self, garbage: bytes, source: tuple[str, int]) -> None:
        assert self.rig.receive(garbage, source) == []

    @rule(seconds=st.sampled_from([0.01, 1.0, PROBATION, QUIET_AFTER, IDLE_EXPIRY]))
    def wait(self, seconds: float) -> None:
        self.rig.advance(seconds)

    @rule(pods=st.sets(PODS))
    def change_routes(self, pods: set[Route]) -> None:
        self.live = pods
        self.rig.set_routes(*pods)

    @invariant()
    def bounds_hold(self) -> None:
        flows = self.rig.forwarder.state.flows
        assert len(flows) <= MAX_FLOWS
        assert flows.on_probation <= len(flows)
        assert all(len(siblings) <= 3 for siblings in flows._probation.by_ufrag.values())
        assert all(len(siblings) <= CONFIRMED_PER_UFRAG for siblings in flows._confirmed.by_ufrag.values())
        assert len(flows.ssrcs) <= 2 * len(flows)

    @invariant()
    def books_balance(self) -> None:
        flows = self.rig.forwarder.state.flows
        all_flows = set(flows.by_key.values())
        ended = {flow for flow in all_flows if flow.ended}
        probation = {flow for flow in all_flows if flow.probation_until}
        assert set(flows._ended.flows) == ended
        assert set(flows._probation.flows) == probation
        assert set(flows._confirmed.flows) == all_flows - ended - probation
        for line in (flows._ended, flows._probation, flows._confirmed):
            assert {flow for group in line.by_ufrag.values() for flow in group} == {f for f in line.flows if f.ufrag}
            assert all(line.by_ufrag.values())
        for line in (flows._ended, flows._confirmed):
            order = [flow.ordered_at for flow in line.flows]
            assert order == sorted(order)
        assert all(0 <= flow.heard_at - flow.ordered_at < ORDER_EVERY for flow in flows._confirmed.flows)
        events = self.rig.forwarder.counters.flow_events
        gone = [event for event in FlowEvent if event.startswith("evicted_")]
        gone += [FlowEvent.EXPIRED, FlowEvent.PROBATION_OVER, FlowEvent.MOVED, FlowEvent.RENEWED]
        assert events[FlowEvent.CREATED] - sum(events[event] for event in gone) == len(flows)

    @invariant()
    def nothing_lives_too_long(self) -> None:
        for flow in self.rig.forwarder.state.flows.by_key.values():
            assert self.rig.now - flow.heard_at <= IDLE_EXPIRY + 2 or flow.ended
            assert not flow.ended or self.rig.now - flow.ordered_at <= ENDED_KEPT + 2
            assert not flow.probation_until or flow.probation_until >= self.rig.now - 1


RelayMachine.TestCase.settings = settings(stateful_step_count=60, max_examples=60, deadline=None)
TestRelay = RelayMachine.TestCase


class OneSessionMachine(RuleBasedStateMachine):
    """Somebody with a session of his own checks, roams and restarts as he likes; others call meanwhile.

    His transceiver is the real table of paths: it answers each address that it keeps, and gives up the others.
    """

    VICTIM, SSRC = client(1), 77

    @initialize()
    def start(self) -> None:
        # His paths, the victim, and two calls that follow each other.
        self.rig = Rig(Limits(max_flows=MAX_PATHS + 3))
        self.paths = PathTable(self._give_up)
        self.own = session(POD_A, 1)
        self.restarts = self.calls = self.number = 0
        self.rig.connect(self.VICTIM, session(POD_A))
        self.keep_victim_alive()

    def _give_up(self, path: Path) -> None:
        self.rig.unknown_flow(POD_A, key_of(path.address))

    def _take(self, port: int, *, is_check: bool) -> None:
        """What his transceiver does with a check or an authenticated packet."""
        path = self.paths.add(path_of(client(port)), Via(ADDRESSES[POD_A]), ())
        if is_check:
            path.last_check = self.rig.now
        else:
            path.last_authenticated = self.rig.now
        self.rig.answer(POD_A, client(port))

    def keep_victim_alive(self) -> None:
        self.rig.answer(POD_A, self.VICTIM)

    @rule(first=st.integers(1_000, 1_040), count=st.integers(1, 40))
    def check(self, first: int, count: int) -> None:
        for port in range(first, first + count):
            self.number += 1
            if self.rig.send(client(port), self.own.check(self.number)):
                self._take(port, is_check=True)

    @rule(first=st.integers(1_000, 1_040), count=st.integers(1, 40))
    def roam(self, first: int, count: int) -> None:
        for port in range(first, first + count):
            if self.rig.send(client(port), rtp(self.SSRC)):
                self._take(port, is_check=False)

    @rule(first=st.integers(1_000, 1_040), count=st.integers(1, 40))
    def replay(self, first: int, count: int) -> None:
        for port in range(first, first + count):
            self.rig.send(client(port), self.own.check(0))

    @rule()
    def restart_ice(self) -> None:
        self.restarts += 1
        self.own = session(POD_A, 1 + self.restarts)

    @rule(seconds=st.sampled_from([0.01, 0.5, 3.0, 6.5]))
    def wait(self, seconds: float) -> None:
        self.rig.advance(seconds)
        self.keep_victim_alive()

    @rule()
    def somebody_else_calls(self) -> None:
        self.calls += 1
        path = client(60_000 + self.calls)
        self.rig.connect(path, session(POD_B, self.calls))
        self.rig.unknown_flow(POD_B, client(60_000 + self.calls - 1))

    @invariant()
    def nobody_is_refused_and_the_victims_flow_stays(self) -> None:
        assert self.rig.happened(FlowEvent.REFUSED) == 0
        flow = self.rig.flow(self.VICTIM)
        assert flow is not None
        assert not flow.ended

    @invariant()
    def what_he_holds_against_others_is_bounded(self) -> None:
        flows = self.rig.forwarder.state.flows
        held = [
            flow
            for flow in flows._confirmed.flows
            if 1_000 <= path_of(flow.key).port < 2_000 and not flows.is_quiet(flow, self.rig.now)
        ]
        assert len(held) <= MAX_PATHS


OneSessionMachine.TestCase.settings = settings(stateful_step_count=30, max_examples=40, deadline=None)
TestOneSession = OneSessionMachine.TestCase


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0.0, 0.1, 2.0])), max_size=120))
def test_fresh_checks_of_one_ufrag_hold_a_bounded_number_of_flows_even_if_no_path_is_ever_given_up(
    checks: list[tuple[int, float]],
) -> None:
    rig = Rig(Limits(max_flows=PROBATION_PER_UFRAG + CONFIRMED_PER_UFRAG + 2))
    for number, (port, pause) in enumerate(checks):
        rig.advance(pause)
        rig.count_sent(client(port), [session(POD_A).check(number)])
        rig.answer(POD_A, client(port))
    rig.connect(client(999), session(POD_B))
    assert rig.flows - 1 <= CONFIRMED_PER_UFRAG
    assert rig.happened(FlowEvent.REFUSED) == 0


@given(st.lists(st.tuples(CLIENTS, st.binary(max_size=200)), max_size=20))
def test_from_unknown_addresses_nothing_but_verified_requests_is_forwarded(packets: list[tuple[bytes, bytes]]) -> None:
    rig = Rig()
    rig.connect(client(9_999), session(POD_A))
    for path, datagram in packets:
        assert rig.send(path, datagram) == [], "but for questions"
    assert rig.flows == 1


@given(st.integers(0, 200), st.integers(1, 255))
def test_no_change_of_what_integrity_covers_is_forwarded(place: int, mask: int) -> None:
    rig = Rig()
    check = bytearray(session(POD_A).check())
    before_fingerprint = len(check) - 8
    check[place % before_fingerprint] ^= mask
    sent = rig.send(client(5000), bytes(check))
    assert sent == []
    assert rig.flows == 0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 0.5)), max_size=300),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 30),
)
def test_buckets_never_give_more_than_rate_and_burst_nor_remember_too_much(
    steps: list[tuple[int, float]], rate: int, burst: int, capacity: int
) -> None:
    buckets = Buckets(Rate(rate, burst), capacity)
    now = 0.0
    given_to_zero = 0
    for key, pause in steps:
        now += pause
        allowed = buckets.allow(bytes([key]), now)
        given_to_zero += allowed and key == 0
        assert len(buckets) <= capacity
    forgotten = len({key for key, _ in steps}) > capacity
    assert forgotten or given_to_zero <= burst + rate * now + 1


@given(st.lists(st.integers(0, 3), max_size=200), st.integers(1, 40))
def test_a_whole_address_gets_at_least_its_limit_and_at_most_twice_that(sends: list[int], limit: int) -> None:
    addresses = AddressLimit(limit, capacity=2)
    got = dict.fromkeys(range(4), 0)
    for address in sends:
        crowded = addresses.begin(5.0, 1)
        got[address] += not crowded or addresses.allow(bytes([address]))
    for address, count in got.items():
        assert count >= min(limit, sends.count(address))
    assert addresses.begin(6.0, 1) is (limit < 1)
