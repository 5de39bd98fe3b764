"""Attacks on a relay over real sockets: what is not forwarded, what moves nothing, what fills nothing."""

import time
from collections.abc import Iterator

import pytest

from tests.relay_network import Client, FakeTransceiver, Network, RunningEngine
from tests.relay_rig import DTLS, POD_A, POD_B, rtp, session
from usher_core import hop
from usher_core.hop import HopType, Outer, Record, RecordFlag
from usher_core.ids import ClientPath, pack_address
from usher_relay.counters import Drop, FlowEvent
from usher_relay.flows import PROBATION_PER_UFRAG
from usher_relay.state import Limits


@pytest.fixture
def relay(pod: FakeTransceiver) -> Iterator[RunningEngine]:
    with RunningEngine("1=127.0.0.1:0", limits=Limits(max_flows=200)) as running:
        running.set_routes(pod)
        yield running


@pytest.fixture
def victim(net: Network, relay: RunningEngine, pod: FakeTransceiver) -> Client:
    """A client with a live call."""
    client = net.client(relay.at(1))
    client.send(session(POD_A).check())
    pod.answer(pod.receive(), b"success")
    assert client.receive()[0] == b"success"
    client.send(rtp(7))
    assert pod.receive().record.payload == rtp(7)
    return client


def is_unharmed(victim: Client, pod: FakeTransceiver) -> bool:
    """Whether the victim's call goes on both ways."""
    victim.send(rtp(7, 200))
    arrived = pod.receive()
    pod.answer(arrived, rtp(8, 210))
    return (arrived.record.payload, arrived.record.flags, victim.receive()[0]) == (rtp(7, 200), 0, rtp(8, 210))


def test_what_no_answer_of_ours_produced_reaches_nobody(
    net: Network, relay: RunningEngine, pod: FakeTransceiver, victim: Client
) -> None:
    at = session(POD_A)
    mistyped = at.ufrag[:9] + ("A" if at.ufrag[9] != "A" else "B") + at.ufrag[10:]
    # The last character carries two bits of the block; the four below them are spare.
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other_spelling = at.ufrag[:-1] + alphabet[alphabet.index(at.ufrag[-1]) | 5]
    stranger = net.client(relay.at(1))
    for sender in (stranger, victim):
        sender.send(at.check(ufrag="x" + "A" * 22))
        sender.send(at.check(ufrag=mistyped))
        sender.send(at.check(ufrag=other_spelling))
        sender.send(at.check(ufrag=at.ufrag[:12]))
        sender.send(at.check(password="wrong" * 5))
        sender.send(at.check()[:-7])
        sender.send(b"\x00")
    relay.wait_for_drops({Drop.UFRAG_UNKNOWN: 4, Drop.UFRAG_SHAPE: 4, Drop.INTEGRITY: 2, Drop.STUN_MALFORMED: 4})
    assert pod.hears_nothing()
    assert stranger.hears_nothing()
    assert len(relay.engine.flows(10)) == 1
    assert is_unharmed(victim, pod)


def test_strangers_get_no_answer_and_reach_nobody_with_anything_else(
    net: Network, relay: RunningEngine, pod: FakeTransceiver, victim: Client
) -> None:
    stranger = net.client(relay.at(1))
    for datagram in (DTLS, rtp(1234), b"\x40channel", b"\xc0quic", b"GET / HTTP/1.1"):
        stranger.send(datagram)
    relay.wait_for_drops({Drop.NOT_FOUND: 2, Drop.PROTOCOL: 3})
    for asked_for in (0, 1234):
        question = pod.receive()
        assert (question.outer.type, question.record.payload) == (HopType.WHO_HAS, asked_for.to_bytes(4))
    assert pod.hears_nothing()
    assert stranger.hears_nothing()


def test_a_recorded_check_replayed_from_many_addresses_fills_nothing(
    net: Network, relay: RunningEngine, pod: FakeTransceiver, victim: Client
) -> None:
    recorded = session(POD_A).check()
    strangers = [net.client(relay.at(1)) for _ in range(100)]
    for stranger in strangers:
        stranger.send(recorded)
        assert pod.receive().record.payload == recorded, "it may reach its owner, who knows it"
    snapshot = relay.engine.snapshot()
    assert snapshot.flows_on_probation == PROBATION_PER_UFRAG
    assert snapshot.flows_confirmed == 1
    assert is_unharmed(victim, pod)
    assert all(stranger.hears_nothing() for stranger in strangers[:1])


def test_replays_never_evict_live_calls_from_a_full_table(net: Network, pod: FakeTransceiver) -> None:
    with RunningEngine("1=127.0.0.1:0", limits=Limits(max_flows=20)) as relay:
        relay.set_routes(pod)
        callers = [net.client(relay.at(1)) for _ in range(15)]
        for number, caller in enumerate(callers):
            caller.send(session(POD_A, number).check())
            pod.answer(pod.receive(), b"success")
            assert caller.receive()[0] == b"success"
        for number in range(60):
            net.client(relay.at(1)).send(session(POD_A, 100 + number).check())
            pod.receive()
        assert relay.engine.snapshot().flows_confirmed == 15
        assert all(is_unharmed(caller, pod) for caller in callers)


def test_another_sessions_check_from_the_victims_address_is_forwarded_as_its_own_and_moves_nothing(
    net: Network, relay: RunningEngine, pod: FakeTransceiver, victim: Client
) -> None:
    other_pod = net.pod(POD_B)
    relay.set_routes(pod, other_pod)
    # The attacker has a session of its own and fakes the source; here it borrows the victim's socket.
    for owner, number in ((other_pod, 5), (pod, 6)):
        attack = session(owner.route, number).check()
        victim.send(attack)
        arrived = owner.receive()
        assert arrived.record.payload == attack
        owner.answer(arrived, b"answered as that session's own")
        assert victim.receive()[0] == b"answered as that session's own"
    (flow,) = relay.engine.flows(10)
    assert flow.route == str(POD_A)
    assert relay.engine.snapshot().counters.flow_events[FlowEvent.KEPT] >= 1
    assert is_unharmed(victim, pod)


def test_forged_and_replayed_hop_datagrams_reach_nobody(
    net: Network, relay: RunningEngine, pod: FakeTransceiver, victim: Client
) -> None:
    victim.send(rtp(7))
    arrived = pod.receive()
    upstream, path = arrived.relay, arrived.record.path
    stranger = net.pod(POD_A)  # has neither the key nor the address of the pod
    # With a random key, from a stranger and from the pod's own address.
    for sender in (stranger, pod):
        sender.socket.sendto(pod.hop(path, b"forged", key=bytes(16)), upstream)
    # A true one, replayed from elsewhere, and replayed after more than a minute.
    stranger.socket.sendto(pod.hop(path, b"replayed"), upstream)
    pod.socket.sendto(pod.hop(path, b"replayed", at=time.time() - 61), upstream)
    # What the relay sent itself, thrown back at it.
    outer = Outer(HopType.DATA, False, 1, 17, 0, 3, int(time.time() * 1000))
    pod.socket.sendto(hop.encode(outer, (Record(path, b"reflected"),), bytes(range(16))), upstream)
    # Of a pod that is not in the table.
    other = net.pod(POD_B)
    other.socket.sendto(other.hop(path, b"from nowhere"), upstream)
    # Garbage.
    stranger.socket.sendto(b"garbage" * 20, upstream)
    relay.wait_for_drops(
        {Drop.HOP_SOURCE: 2, Drop.HOP_MAC: 1, Drop.HOP_TIME: 1, Drop.HOP_DIRECTION: 1, Drop.HOP_ROUTE: 2}
    )
    assert victim.hears_nothing()
    assert is_unharmed(victim, pod)


def test_a_forged_hop_datagram_makes_no_flow_for_an_address_of_its_choice(
    net: Network, relay: RunningEngine, pod: FakeTransceiver, victim: Client
) -> None:
    victim.send(rtp(7))
    upstream = pod.receive().relay
    target = net.client(relay.at(1))
    path = ClientPath(pack_address("127.0.0.1"), target.socket.getsockname()[1], 1)
    pod.socket.sendto(pod.hop(path, b"reflected at you", key=bytes(16)), upstream)
    relay.wait_for_drops({Drop.HOP_MAC: 1})
    assert target.hears_nothing()
    assert len(relay.engine.flows(10)) == 1


def test_a_stranger_who_knows_the_victims_ssrc_takes_nothing(
    net: Network, relay: RunningEngine, pod: FakeTransceiver, victim: Client
) -> None:
    stranger = net.client(relay.at(1))
    stranger.send(rtp(7))
    assert pod.receive().record.flags == RecordFlag.TENTATIVE, "SRTP authentication will refuse it"
    assert len(relay.engine.flows(10)) == 1
    assert is_unharmed(victim, pod)
    assert stranger.hears_nothing()
