"""What only the native engine has: several data threads with sockets of their own, and datagrams that share a hop."""

import socket
from collections.abc import Iterator

import pytest

from tests.relay_network import Client, FakeTransceiver, Network, RunningEngine, make_native
from tests.relay_rig import DTLS, HOP_KEYS, POD_A, rtp, session
from usher_core import hop
from usher_core.hop import HopDatagram
from usher_relay.counters import FlowEvent

pytestmark = pytest.mark.needs("native engine")

CLIENTS = 60


@pytest.fixture
def relay(pod: FakeTransceiver) -> Iterator[RunningEngine]:
    with RunningEngine("1=0.0.0.0:0", workers=2, make=make_native) as running:
        running.set_routes(pod)
        yield running


@pytest.fixture
def clients(net: Network, pod: FakeTransceiver, relay: RunningEngine) -> list[Client]:
    """Clients with calls, each with an SSRC of its own."""
    port = relay.at(1).rpartition(":")[2]
    connected = []
    for number in range(CLIENTS):
        client = net.client(f"127.0.0.1:{port}")
        client.send(session(POD_A, number).check())
        pod.answer(pod.receive(), b"success")
        client.receive()
        client.send(rtp(1_000 + number))
        pod.receive()
        connected.append(client)
    return connected


def hop_datagrams(pod: FakeTransceiver, records: int) -> list[HopDatagram]:
    """The next datagrams at the transceiver until there are so many records, each with a MAC that holds."""
    found: list[HopDatagram] = []
    while sum(len(datagram.records) for datagram in found) < records:
        found.append(hop.parse(pod.socket.recvfrom(65_535)[0]))
        assert HOP_KEYS.verify(found[-1])
    assert pod.hears_nothing()
    return found


def test_every_thread_has_its_sockets_and_all_share_the_port(relay: RunningEngine) -> None:
    assert [status.name for status in relay.engine.sockets()] == ["1/0", "upstream/0", "1/1", "upstream/1"]
    assert len(relay.engine.listening) == 1


def test_the_kernel_spreads_clients_and_counts_are_sums(relay: RunningEngine, clients: list[Client]) -> None:
    snapshot = relay.engine.snapshot()
    assert snapshot.flows_confirmed == CLIENTS
    assert (snapshot.counters.uplink.forwarded, snapshot.counters.downlink.forwarded) == (2 * CLIENTS, CLIENTS)
    (route,) = relay.engine.routes(10)
    assert (route.uplink, route.downlink) == (2 * CLIENTS, CLIENTS)
    assert len({flow.client for flow in relay.engine.flows(1_000)}) == CLIENTS


def test_clients_that_the_kernel_gives_to_another_thread_go_on_at_once(
    pod: FakeTransceiver, relay: RunningEngine, clients: list[Client]
) -> None:
    created = relay.engine.snapshot().counters.flow_events[FlowEvent.CREATED]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as newcomer:
        # A third socket on the port: the kernel spreads all clients anew.
        newcomer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        newcomer.bind(("0.0.0.0", clients[0].relay[1]))
        newcomer.setblocking(False)
        for number, client in enumerate(clients):
            client.send(DTLS if number % 2 else rtp(1_000 + number))
        elsewhere = waiting(newcomer)
    assert 0 < elsewhere < CLIENTS
    datagrams = hop_datagrams(pod, CLIENTS - elsewhere)
    assert {record.flags for datagram in datagrams for record in datagram.records} == {0}
    assert relay.drops() == {}
    moved = relay.engine.snapshot().counters.flow_events[FlowEvent.CREATED] - created
    assert moved > 0, "some came to another thread than before"


def test_a_client_with_a_new_port_is_found_by_its_ssrc_at_whichever_thread(
    net: Network, pod: FakeTransceiver, relay: RunningEngine, clients: list[Client]
) -> None:
    for number, client in enumerate(clients):
        roamed = net.client(f"127.0.0.1:{client.relay[1]}")
        roamed.send(rtp(1_000 + number))
    datagrams = hop_datagrams(pod, CLIENTS)
    flags = [record.flags for datagram in datagrams for record in datagram.records]
    assert flags == [hop.RecordFlag.TENTATIVE] * CLIENTS
    assert relay.drops() == {}


def test_datagrams_that_come_together_share_a_hop_in_order(net: Network, pod: FakeTransceiver) -> None:
    with RunningEngine("1=127.0.0.1:0", make=make_native) as relay:
        client = net.client(relay.at(1))
        sent = [session(POD_A).check(), *(rtp(7, size) for size in range(100, 200))]
        for datagram in sent:
            client.send(datagram)
        # Until now all of them waited, so they come in as few batches as there can be.
        relay.set_routes(pod)
        datagrams = hop_datagrams(pod, len(sent))
        assert [record.payload for datagram in datagrams for record in datagram.records] == sent
        assert len(datagrams) <= 10
        assert relay.drops() == {}


def test_where_datagrams_may_wait_for_others_those_of_that_time_share_a_hop(net: Network, pod: FakeTransceiver) -> None:
    with RunningEngine("1=127.0.0.1:0", bundle_hold=0.5, make=make_native) as relay:
        relay.set_routes(pod)
        client = net.client(relay.at(1))
        sent = [session(POD_A).check(), rtp(7), rtp(8)]
        for datagram in sent:
            client.send(datagram)
            assert pod.hears_nothing()
        (shared,) = hop_datagrams(pod, len(sent))
        assert [record.payload for record in shared.records] == sent


def waiting(sock: socket.socket) -> int:
    count = 0
    while True:
        try:
            sock.recvfrom(65_535)
        except BlockingIOError:
            return count
        count += 1
