"""The election: one leader at most, whatever the network, the clocks and the scheduler do.

Times are the weak spot that random courses miss: that a term counts from the sending of a write, and silence from the
receipt of a lease, `test_the_time_counts_...` guards in the election and `test_an_elector_takes_the_time_...` in the
elector.
"""

import asyncio
import contextlib
import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usher_operator.actions import Manifest, Reference
from usher_operator.election import Election, Elector, Timing
from usher_operator.kube import ConflictError, UnavailableError

LEASE = Reference("coordination.k8s.io/v1", "Lease", "usher", "usher-operator")
TIMING = Timing()


class LeaseServer:
    """The Lease on an API server: compare-and-swap by resourceVersion."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self._version = 0

    def read(self) -> dict[str, Any] | None:
        return copy.deepcopy(self.lease)

    def write(self, wish: Manifest) -> dict[str, Any]:
        version = wish["metadata"].get("resourceVersion")
        if version != (self.lease["metadata"]["resourceVersion"] if self.lease else None):
            raise ConflictError("changed meanwhile")
        self._version += 1
        lease = copy.deepcopy(dict(wish))
        lease["metadata"] |= {"resourceVersion": str(self._version), "uid": "u"}
        self.lease = lease
        return copy.deepcopy(lease)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec


def candidate(identity: str) -> Election:
    return Election(LEASE, identity, TIMING)


def take_turn(election: Election, server: LeaseServer, now: float) -> None:
    election.saw(server.read(), now)
    if wish := election.wish(now, now):
        election.wrote(server.write(wish), now, now)


def test_the_first_one_leads_and_the_other_waits_until_it_is_silent_for_the_lease_time():
    server, a, b = LeaseServer(), candidate("a"), candidate("b")
    take_turn(a, server, 100)
    take_turn(b, server, 101)
    assert (a.leads(109.9), a.leads(110), b.leads(101)) == (True, False, False)
    take_turn(b, server, 115.9)
    assert not b.leads(115.9)
    take_turn(b, server, 116)
    assert b.leads(116)
    assert (server.spec["holderIdentity"], server.spec["leaseTransitions"]) == ("b", 1)


def test_a_leader_that_renews_is_never_followed():
    server, a, b = LeaseServer(), candidate("a"), candidate("b")
    for now in range(0, 200, 2):
        take_turn(a, server, now)
        take_turn(b, server, now + 1)
        assert a.leads(now + 1)
        assert not b.leads(now + 1)
    assert server.spec["leaseTransitions"] == 0


def test_a_leader_that_resigns_is_followed_at_once_and_leads_no_more():
    server, a, b = LeaseServer(), candidate("a"), candidate("b")
    take_turn(a, server, 0)
    lease = a.resign(1)
    assert lease is not None
    assert not a.leads(1)
    server.write(lease)
    take_turn(b, server, 1.5)
    take_turn(a, server, 2)
    assert b.leads(2)
    assert not a.leads(2)


def test_one_that_does_not_lead_has_nothing_to_give_back():
    server, a, b = LeaseServer(), candidate("a"), candidate("b")
    take_turn(a, server, 0)
    take_turn(b, server, 0)
    assert b.resign(1) is None


def test_the_time_counts_from_the_sending_of_the_write_not_from_its_answer():
    server, a = LeaseServer(), candidate("a")
    a.saw(None, 0)
    wish = a.wish(0, 0)
    assert wish is not None
    a.wrote(server.write(wish), 0, 9)
    assert a.leads(9.9)
    assert not a.leads(10)


@pytest.mark.parametrize("duration", [15, 60])
def test_others_respect_a_longer_promise_of_the_leader(duration):
    server, b = LeaseServer(), candidate("b")
    take_turn(Election(LEASE, "a", Timing(duration=duration)), server, 0)
    b.saw(server.read(), 0)
    b.saw(server.read(), duration - 1)
    assert b.wish(duration - 1, 0) is None
    assert b.wish(duration, 0) is not None


def test_a_lease_that_a_person_or_chart_made_empty_is_taken_at_once():
    server, a = LeaseServer(), candidate("a")
    server.write({"apiVersion": LEASE.api_version, "kind": "Lease", "metadata": {"name": LEASE.name}})
    take_turn(a, server, 0)
    assert a.leads(0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(0, 1, id="none"),
        pytest.param(41, 42, id="some"),
        pytest.param(2**31 - 2, 2**31 - 1, id="the last but one that the field holds"),
        pytest.param(2**31 - 1, 0, id="the last one that the field holds"),
        pytest.param(2**31, 1, id="more than it holds"),
        pytest.param(-1, 1, id="less than nothing"),
        pytest.param(None, 1, id="null"),
        pytest.param("7", 1, id="text"),
        pytest.param(1.5, 1, id="a fraction"),
        pytest.param(float("inf"), 1, id="endless"),
        pytest.param(True, 1, id="a truth"),
        pytest.param([], 1, id="a list"),
    ],
)
def test_a_lease_is_taken_whatever_it_counts_and_its_count_stays_a_number_that_the_field_holds(
    before: Any, after: int
) -> None:
    server, a = LeaseServer(), candidate("a")
    spec = {"holderIdentity": "", "leaseTransitions": before}
    server.write({"apiVersion": LEASE.api_version, "kind": "Lease", "metadata": {"name": LEASE.name}, "spec": spec})
    take_turn(a, server, 0)
    assert a.leads(0)
    assert (type(server.spec["leaseTransitions"]), server.spec["leaseTransitions"]) == (int, after)


@dataclass
class Replica:
    """A process: its clock, and what it waits for."""

    election: Election
    rate: float
    offset: float
    answer: tuple[str, Any] | None = None
    """What the API server has answered but the process has not seen yet."""
    wish: Manifest | None = None
    sent_at: float = 0
    lost: list[Manifest] = field(default_factory=list)
    """Writes given up by the sender that may still reach the server."""

    def now(self, time: float) -> float:
        return time * self.rate + self.offset


class Network:
    """Replicas whose requests and answers are delayed, lost and late, whose clocks differ, and that are paused.

    A pause needs no step of its own: a process that is not asked to do anything while the time goes on is paused. What
    it believes is looked at after each step.
    """

    def __init__(self, clocks: list[tuple[float, float]]) -> None:
        self.time = 0.0
        self.server = LeaseServer()
        self.starts = itertools.count(1)
        self.replicas = [Replica(self._new(), rate, offset) for rate, offset in clocks]

    def _new(self) -> Election:
        return candidate(f"start-{next(self.starts)}")

    def round_goes_well(self, replica: Replica) -> None:
        if replica.answer is None and replica.wish is None:
            take_turn(replica.election, self.server, replica.now(self.time))

    def read_reaches_server(self, replica: Replica) -> None:
        if replica.answer is None and replica.wish is None:
            replica.answer = ("read", self.server.read())

    def read_is_answered_and_wish_sent(self, replica: Replica) -> None:
        if replica.answer is not None and replica.answer[0] == "read":
            now = replica.now(self.time)
            replica.election.saw(replica.answer[1], now)
            replica.answer = None
            replica.wish = replica.election.wish(now, self.time)
            replica.sent_at = now

    def write_reaches_server(self, replica: Replica) -> None:
        if replica.wish is not None and replica.answer is None:
            try:
                replica.answer = ("written", self.server.write(replica.wish))
            except ConflictError:
                replica.answer = ("refused", None)

    def write_is_answered(self, replica: Replica) -> None:
        if replica.wish is not None and replica.answer is not None:
            if replica.answer[0] == "written":
                replica.election.wrote(replica.answer[1], replica.sent_at, replica.now(self.time))
            replica.answer = replica.wish = None

    def request_is_given_up(self, replica: Replica) -> None:
        if replica.wish is not None and replica.answer is None:
            replica.lost.append(replica.wish)
        replica.answer = replica.wish = None

    def lost_write_reaches_server_after_all(self, replica: Replica) -> None:
        if replica.lost:
            with contextlib.suppress(ConflictError):
                self.server.write(replica.lost.pop(0))

    def ends_cleanly_and_starts_anew(self, replica: Replica) -> None:
        if lease := replica.election.resign(self.time):
            replica.lost.append(lease)
        assert not replica.election.leads(replica.now(self.time))
        replica.answer = replica.wish = None
        replica.election = self._new()

    def leaders(self) -> int:
        return sum(replica.election.leads(replica.now(self.time)) for replica in self.replicas)


STEPS = [
    Network.round_goes_well,
    Network.round_goes_well,
    Network.read_reaches_server,
    Network.read_is_answered_and_wish_sent,
    Network.write_reaches_server,
    Network.write_is_answered,
    Network.request_is_given_up,
    Network.lost_write_reaches_server_after_all,
    Network.ends_cleanly_and_starts_anew,
]


@given(
    clocks=st.lists(st.tuples(st.sampled_from([0.85, 1.0, 1.15]), st.floats(-1e6, 1e6)), min_size=2, max_size=3),
    steps=st.lists(
        st.tuples(st.sampled_from([0, 0, 0, 1, 4, 9.5, 11.5, 13.1, 18]), st.sampled_from(STEPS), st.integers(0, 2)),
        min_size=30,
        max_size=120,
    ),
)
def test_two_never_lead_at_once(clocks: list[tuple[float, float]], steps: list[tuple[float, Any, int]]) -> None:
    network = Network(clocks)
    for seconds, step, index in steps:
        network.time += seconds
        assert network.leaders() <= 1
        step(network, network.replicas[index % len(network.replicas)])
        assert network.leaders() <= 1


RATES = (0.85, 1.0, 1.15)


@pytest.mark.parametrize("rates", list(itertools.product(RATES, RATES)))
def test_two_never_lead_at_once_whenever_each_has_its_turn(rates: tuple[float, float]) -> None:
    """All short courses of two replicas whose rounds take no time."""
    turns = list(itertools.product((0, 4, 9.5, 11.5, 13.1), (0, 1)))
    for course in itertools.product(turns, repeat=3):
        network = Network([(rates[0], 5.0), (rates[1], -5.0)])
        network.round_goes_well(network.replicas[0])
        for seconds, index in course:
            network.time += seconds
            network.round_goes_well(network.replicas[index])
            assert network.leaders() <= 1, course


class SlowApi:
    """A KubeApi of one Lease, whose answers can be held back."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.hangs = False
        self.fails = False
        self.asked = 0

    async def _wait(self) -> None:
        self.asked += 1
        if self.fails:
            raise UnavailableError("away")
        if self.hangs:
            await asyncio.Event().wait()

    async def get(self, _target: Reference) -> dict[str, Any] | None:
        await self._wait()
        return self.server.read()

    async def create(self, wish: Manifest) -> dict[str, Any]:
        await self._wait()
        return self.server.write(wish)

    replace = create


def elector(identity: str, api: Any, clock: Any) -> Elector:
    timing = Timing(duration=0.6, renew_deadline=0.4, retry=0.02)
    return Elector(Election(LEASE, identity, timing), LEASE, api, timing, clock, lambda: 0.0)


class TimedApi(SlowApi):
    """Each answer takes its time by a clock that is set by hand."""

    def __init__(self, server: LeaseServer) -> None:
        super().__init__(server)
        self.now = 0.0
        self.read_s = self.write_s = 0.0

    async def get(self, _target: Reference) -> dict[str, Any] | None:
        lease = self.server.read()
        self.now += self.read_s
        return lease

    async def create(self, wish: Manifest) -> dict[str, Any]:
        lease = self.server.write(wish)
        self.now += self.write_s
        return lease

    replace = create

    def elector(self, identity: str) -> Elector:
        api: Any = self
        return Elector(Election(LEASE, identity, TIMING), LEASE, api, TIMING, lambda: self.now, lambda: 0.0)


async def test_an_elector_takes_the_time_before_it_sends_a_write() -> None:
    api = TimedApi(LeaseServer())
    api.write_s = 9.0
    leader = api.elector("a")
    await leader.until_elected()
    assert leader.leads()
    api.now = 10.0
    assert not leader.leads()


async def test_an_elector_takes_the_time_after_a_lease_was_received() -> None:
    """A leader may have renewed while the answer of a look was under way: its silence begins behind it."""
    api = TimedApi(LeaseServer())
    take_turn(candidate("a"), api.server, 0.0)
    other = api.elector("b")
    api.read_s = 9.0
    await other._round()
    api.read_s, api.now = 0.0, 23.9
    await other._round()
    assert not other.leads()
    api.now = 24.0
    await other._round()
    assert other.leads()


@pytest.mark.parametrize("how", ["hangs", "fails"])
async def test_a_leader_cut_off_from_the_api_server_knows_in_time_and_another_one_follows(how):
    server, clock = LeaseServer(), asyncio.get_running_loop().time
    cut_off, good = SlowApi(server), SlowApi(server)
    first, second = elector("a", cut_off, clock), elector("b", good, clock)
    await first.until_elected()
    follower = asyncio.create_task(second.until_elected())
    lost = asyncio.create_task(first.until_lost())
    await asyncio.sleep(0)
    setattr(cut_off, how, True)
    async with asyncio.timeout(10):
        await lost
        assert not second.leads()
        await follower
    assert not first.leads()
    assert server.spec["leaseTransitions"] == 1


async def test_a_leader_goes_on_through_errors_that_end_before_its_deadline():
    api, now = SlowApi(LeaseServer()), 0.0
    leader = elector("a", api, lambda: now)

    async def asks_again() -> None:
        before = api.asked
        async with asyncio.timeout(10):
            while api.asked < before + 4:  # noqa: ASYNC110 - what counts calls has no event
                await asyncio.sleep(0.01)

    await leader.until_elected()
    lost = asyncio.create_task(leader.until_lost())
    api.fails = True
    await asks_again()
    now = 0.39
    api.fails = False
    await asks_again()
    now = 0.78
    assert leader.leads(), "it was renewed at 0.39"
    lost.cancel()


async def test_a_clean_end_gives_the_lease_back():
    server, clock = LeaseServer(), asyncio.get_running_loop().time
    first, second = elector("a", SlowApi(server), clock), elector("b", SlowApi(server), clock)
    await first.until_elected()
    await first.resign()
    assert not first.leads()
    async with asyncio.timeout(0.4):
        await second.until_elected()


async def test_a_clean_end_gives_back_a_lease_whose_last_renewal_was_cut_off():
    server, clock = LeaseServer(), asyncio.get_running_loop().time
    first = elector("a", SlowApi(server), clock)
    await first.until_elected()
    renewal = server.read()
    assert renewal is not None
    server.write(renewal)  # it arrived, its answer did not
    await first.resign()
    assert server.spec["holderIdentity"] == ""
