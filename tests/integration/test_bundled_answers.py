"""Answers that a transceiver bundles: both relay engines take them apart, and each client gets its own."""

from __future__ import annotations

import time

import pytest

from tests.relay_network import BOTH_ENGINES, MakeEngine, Network, RunningEngine, until
from tests.relay_rig import HOP_KEY, POD_A, rtp, session
from usher_core.hop import Record, RecordFlag
from usher_relay.counters import FlowEvent
from usher_transceiver.bundler import MAX_BUNDLE, Bundler
from usher_transceiver.paths import SocketAddress, Via

CLIENTS = 12


class Keys:
    active = (3, HOP_KEY)


@pytest.mark.parametrize("make", BOTH_ENGINES)
def test_each_client_gets_its_packets_of_a_bundle_in_order_and_its_flow_lives(make: MakeEngine, net: Network) -> None:
    pod = net.pod(POD_A)
    sent: list[bytes] = []

    def send(datagram: bytes, to: SocketAddress) -> None:
        sent.append(datagram)
        pod.socket.sendto(datagram, to)

    bundler = Bundler(POD_A, Keys(), send, time.time)
    with RunningEngine("1=127.0.0.1:0", make=make) as relay:
        relay.set_routes(pod)
        clients = [net.client(relay.at(1)) for _ in range(CLIENTS)]
        with bundler.batch():
            for number, client in enumerate(clients):
                client.send(session(POD_A, number).check())
                arrived = pod.receive()
                via = Via(arrived.relay, arrived.outer.return_slot)
                # Speech of all usual lengths, a handshake that fills a datagram by itself, and an empty record.
                for payload in (b"success %d" % number, rtp(number, 70 + 20 * number), bytes(1200), b""):
                    bundler.send_data(Record(arrived.record.path, payload, RecordFlag.ALIVE), via)
        assert len(sent) < 4 * CLIENTS
        assert all(len(datagram) <= MAX_BUNDLE or len(datagram) == 1200 + 51 for datagram in sent)
        for number, client in enumerate(clients):
            assert client.receive()[0] == b"success %d" % number
            assert client.receive()[0] == rtp(number, 70 + 20 * number)
            assert client.receive()[0] == bytes(1200)
        until(lambda: relay.engine.snapshot().counters.downlink.forwarded == 3 * CLIENTS, "all forwarded")
        assert relay.drops() == {}
        # Each record's *alive* was seen: no flow is on probation.
        assert relay.engine.snapshot().counters.flow_events[FlowEvent.CONFIRMED] == CLIENTS
