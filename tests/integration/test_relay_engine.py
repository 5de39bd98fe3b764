"""What every engine does, on real sockets of the loopback interface."""

import functools
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

import pytest
import structlog

from tests.relay_network import BOTH_ENGINES, Client, FakeTransceiver, MakeEngine, Network, RunningEngine, udp, until
from tests.relay_rig import DTLS, POD_A, POD_B, Session, key_file, rtp, session
from usher_core import hop
from usher_core.errors import LocalError
from usher_core.hop import RecordFlag
from usher_relay.counters import Drop
from usher_relay.engine.interface import EngineConfig
from usher_relay.engine.python_engine import BATCH
from usher_relay.listeners import parse_listener
from usher_relay.state import Limits

Run: TypeAlias = Callable[..., RunningEngine]


@pytest.fixture(params=BOTH_ENGINES)
def make(request: pytest.FixtureRequest) -> MakeEngine:
    engine: MakeEngine = request.param
    return engine


@pytest.fixture
def run(make: MakeEngine) -> Run:
    return functools.partial(RunningEngine, make=make)


def talk(client: Client, pod: FakeTransceiver, at: Session) -> None:
    """Check, answer, packet, answer."""
    client.send(at.check())
    arrived = pod.receive()
    assert arrived.record.payload == at.check()
    assert f"{arrived.record.path}".partition(" ")[0] == client.address
    pod.answer(arrived, b"success")
    assert client.receive() == (b"success", f"{client.relay[0]}:{client.relay[1]}".replace("::1", "[::1]"))
    client.send(rtp(7))
    arrived = pod.receive()
    assert arrived.record.payload == rtp(7)
    pod.answer(arrived, rtp(8), flags=0)
    assert client.receive()[0] == rtp(8)


def test_a_call_over_ipv4(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=127.0.0.1:0") as relay:
        relay.set_routes(pod)
        talk(net.client(relay.at(1)), pod, session(POD_A))
        assert relay.drops() == {}


@pytest.mark.needs("ipv6")
def test_a_call_over_ipv6(run: Run, net: Network) -> None:
    pod = net.pod(POD_A, "::1")
    with run("1=[::1]:0", upstream="::1") as relay:
        relay.set_routes(pod)
        talk(net.client(relay.at(1)), pod, session(POD_A))


@pytest.mark.needs("ipv6")
@pytest.mark.parametrize("pod_host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("listener", ["1=127.0.0.1:0", "1=[::1]:0"])
def test_an_ipv6_upstream_reaches_pods_of_both_families(run: Run, net: Network, listener: str, pod_host: str) -> None:
    pod = net.pod(POD_A, pod_host)
    with run(listener, upstream="::") as relay:
        relay.set_routes(pod)
        talk(net.client(relay.at(1)), pod, session(POD_A))


@pytest.mark.needs("ipv6")
def test_a_pod_of_a_family_without_socket_is_said_and_dropped(run: Run, net: Network, pod: FakeTransceiver) -> None:
    other = net.pod(POD_B, "::1")
    with run("1=127.0.0.1:0", upstream="0.0.0.0") as relay:
        with structlog.testing.capture_logs() as lines:
            relay.set_routes(pod, other)
        assert lines[0]["fix"] == "--upstream ::"
        assert relay.engine.snapshot().routes_unreachable == 1
        net.client(relay.at(1)).send(session(POD_B).check())
        relay.wait_for_drops({Drop.NO_ROUTE: 1})


@pytest.mark.needs("ipv6")
def test_several_listeners_keep_their_clients_apart(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=127.0.0.1:0", "7=127.0.0.1:0", "8=[::1]:0") as relay:
        relay.set_routes(pod)
        clients = [net.client(relay.at(number)) for number in (1, 7, 8)]
        for number, client in enumerate(clients):
            talk(client, pod, session(POD_A, number))
        listeners = {flow.listener for flow in relay.engine.flows(10)}
        assert listeners == {1, 7, 8}
        # The same client socket through another listener is another path.
        clients[0].relay = clients[1].relay
        clients[0].send(DTLS)
        relay.wait_for_drops({Drop.NOT_FOUND: 1})


def test_a_wildcard_listener_answers_from_the_address_that_was_asked(
    run: Run, net: Network, pod: FakeTransceiver
) -> None:
    with run("1=0.0.0.0:0") as relay:
        relay.set_routes(pod)
        port = relay.at(1).rpartition(":")[2]
        for number, host in enumerate(("127.0.0.1", "127.0.0.2", "127.0.0.3")):
            talk(net.client(f"{host}:{port}"), pod, session(POD_A, number))


@pytest.mark.needs("ipv6")
def test_a_wildcard_listener_of_ipv6_serves_ipv6_only(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=[::]:0") as relay:
        relay.set_routes(pod)
        port = relay.at(1).rpartition(":")[2]
        talk(net.client(f"[::1]:{port}"), pod, session(POD_A))
        v4 = net.client(f"127.0.0.1:{port}")
        v4.send(session(POD_A, 1).check())
        assert pod.hears_nothing()


def test_an_answer_without_flow_leaves_from_where_its_check_arrived(
    run: Run, net: Network, pod: FakeTransceiver
) -> None:
    other = net.pod(POD_B)
    with run("1=0.0.0.0:0") as relay:
        relay.set_routes(pod, other)
        port = relay.at(1).rpartition(":")[2]
        client = net.client(f"127.0.0.1:{port}")
        talk(client, pod, session(POD_A))
        client.relay = ("127.0.0.2", int(port))
        client.send(session(POD_B).check())
        other.answer(other.receive(), b"success of another session", flags=0)
        assert client.receive() == (b"success of another session", f"127.0.0.2:{port}")


def test_a_datagram_that_does_not_fit_the_hop_is_cut_in_two(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=127.0.0.1:0", hop_mtu=1400) as relay:
        relay.set_routes(pod)
        client = net.client(relay.at(1))
        talk(client, pod, session(POD_A))
        hello = b"\x16\xfe\xfd" + bytes(range(256)) * 5 + bytes(125)
        client.send(hello)
        first, second = pod.receive().record, pod.receive().record
        assert first.payload + second.payload == hello
        assert (first.flags, second.flags) == (RecordFlag.SPLIT, RecordFlag.SPLIT | RecordFlag.LAST_PART)


def test_the_kernel_is_asked_how_much_the_way_to_a_pod_carries(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=127.0.0.1:0") as relay:
        relay.set_routes(pod)
        (route,) = relay.engine.routes(1)
        assert route.hop_size > 60_000, "loopback carries 64 KiB"
        assert (route.route, route.udp) == ("1/17/0", pod.entry.udp)


def test_an_answer_that_the_kernel_refuses_is_counted_and_nothing_else_happens(
    run: Run, net: Network, pod: FakeTransceiver
) -> None:
    with run("1=127.0.0.1:0") as relay:
        relay.set_routes(pod)
        client = net.client(relay.at(1))
        client.send(session(POD_A).check())
        arrived = pod.receive()
        # Port 0 is no destination.
        nowhere = type(arrived.record.path)(arrived.record.path.address, 0, 1)
        pod.socket.sendto(pod.hop(nowhere, b"x", 0), arrived.relay)
        relay.wait_for_drops({Drop.SEND_REFUSED: 1})
        pod.answer(arrived, b"success")
        assert client.receive()[0] == b"success"


def test_a_client_of_another_family_than_its_listener_is_refused(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=127.0.0.1:0") as relay:
        relay.set_routes(pod)
        client = net.client(relay.at(1))
        client.send(session(POD_A).check())
        arrived = pod.receive()
        path = type(arrived.record.path)(bytes(15) + b"\x01", 5000, 1)
        pod.socket.sendto(pod.hop(path, b"x", 0), arrived.relay)
        relay.wait_for_drops({Drop.HOP_LISTENER: 1})


def test_datagrams_longer_than_any_client_sends_are_dropped(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=127.0.0.1:0", "2=0.0.0.0:0") as relay:
        relay.set_routes(pod)
        port = relay.at(2).rpartition(":")[2]
        for address in (relay.at(1), f"127.0.0.1:{port}"):
            net.client(address).send(rtp(1, 9_000))
            net.client(address).send(b"")
        relay.wait_for_drops({Drop.CLIENT_LENGTH: 4})


def test_a_client_that_changes_its_port_is_found_by_its_ssrc(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=0.0.0.0:0") as relay:
        relay.set_routes(pod)
        port = relay.at(1).rpartition(":")[2]
        old = net.client(f"127.0.0.2:{port}")
        talk(old, pod, session(POD_A))
        new = net.client(f"127.0.0.2:{port}")
        new.send(rtp(7))
        arrived = pod.receive()
        assert arrived.record.flags == RecordFlag.TENTATIVE
        pod.answer(arrived, rtp(8))
        assert new.receive() == (rtp(8), f"127.0.0.2:{port}")
        new.send(rtp(7))
        assert pod.receive().record.flags == 0


def test_no_socket_starves_another(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=127.0.0.1:0", "2=127.0.0.1:0", limits=Limits(who_has_limit=0)) as relay:
        relay.set_routes(pod)
        quiet = net.client(relay.at(2))
        talk(quiet, pod, session(POD_A))
        stop = threading.Event()
        flooder = threading.Thread(target=flood, args=(net.client(relay.at(1)), stop))
        flooder.start()
        try:
            until(lambda: relay.drops().get(Drop.UNKNOWN_ADDRESS, 0) > 10 * BATCH, "the flood arrives")
            for number in range(20):
                quiet.send(rtp(7, 100 + number))
                arrived = pod.receive()
                assert len(arrived.record.payload) == 100 + number
                pod.answer(arrived, b"answer")
                assert quiet.receive()[0] == b"answer"
        finally:
            stop.set()
            flooder.join()


def flood(stranger: Client, stop: threading.Event) -> None:
    while not stop.is_set():
        for _ in range(100):
            stranger.send(DTLS)
        time.sleep(0.001)


def test_what_comes_before_the_first_route_table_waits_for_it(run: Run, net: Network, pod: FakeTransceiver) -> None:
    with run("1=127.0.0.1:0") as relay:
        client = net.client(relay.at(1))
        client.send(session(POD_A).check())
        assert pod.hears_nothing()
        assert relay.engine.snapshot().heartbeat_age < 1
        relay.set_routes(pod)
        assert pod.receive().record.payload == session(POD_A).check()
        assert relay.drops() == {}


def test_flows_routes_and_counts_can_be_looked_at_while_packets_pass(
    run: Run, net: Network, pod: FakeTransceiver
) -> None:
    with run("1=127.0.0.1:0") as relay:
        relay.set_routes(pod)
        client = net.client(relay.at(1))
        talk(client, pod, session(POD_A))
        waiting = net.client(relay.at(1))
        waiting.send(session(POD_A, 1).check())
        pod.receive()
        live, probation = relay.engine.flows(10)
        assert (live.client, live.state, live.route, live.ssrc) == (client.address, "live", "1/17/0", "00000007")
        assert live.alive_age is not None
        assert (probation.state, probation.alive_age) == ("probation", None)
        (route,) = relay.engine.routes(10)
        assert (route.uplink, route.downlink) == (3, 2)
        snapshot = relay.engine.snapshot()
        assert (snapshot.flows_confirmed, snapshot.flows_on_probation, snapshot.routes) == (1, 1, 1)
        assert snapshot.heartbeat_age < 1
        assert snapshot.idle < 5
        uplink = snapshot.counters.uplink
        assert (uplink.received, uplink.forwarded) == (3, 3)


def test_an_idle_data_thread_still_beats(run: Run) -> None:
    with run("1=127.0.0.1:0") as relay:
        ages = []
        for _ in range(20):
            ages.append(relay.engine.snapshot().heartbeat_age)
            time.sleep(0.03)
        assert max(ages) < 1


def test_keys_change_while_packets_pass(run: Run, net: Network, pod: FakeTransceiver) -> None:
    new_key = bytes(range(50, 66))
    with run("1=127.0.0.1:0") as relay:
        relay.set_routes(pod)
        client = net.client(relay.at(1))
        client.send(session(POD_A).check())
        arrived = pod.receive()
        relay.engine.set_keys(key_file(hop_key=new_key))
        relay.engine.routes(1)
        pod.answer(arrived, b"under the old key")
        relay.wait_for_drops({Drop.HOP_MAC: 1})
        pod.socket.sendto(pod.hop(arrived.record.path, b"under the new key", key=new_key), arrived.relay)
        assert client.receive()[0] == b"under the new key"
        client.send(rtp(7))
        assert hop.verify(hop.parse(pod.socket.recvfrom(2_000)[0]), new_key)
        with pytest.raises(LocalError, match="at least one"):
            relay.engine.set_keys(key_file().model_copy(update={"hop": ()}))


def config(*listeners: str, receive: int = 1 << 16) -> EngineConfig:
    return EngineConfig(tuple(map(parse_listener, listeners)), "127.0.0.1", Limits(), 0, receive, 1 << 16, workers=1)


def test_a_port_that_another_program_has_is_a_local_error(make: MakeEngine) -> None:
    taken = udp("127.0.0.1")
    with pytest.raises(LocalError, match="in use"):
        make(config(f"1=127.0.0.1:{taken.getsockname()[1]}"), key_file())
    taken.close()


def test_an_address_that_is_not_of_this_host_is_a_local_error(make: MakeEngine) -> None:
    with pytest.raises(LocalError, match=r"cannot listen on UDP 192\.0\.2\.1:5000"):
        make(config("1=192.0.2.1:5000"), key_file())


def test_two_engines_bind_one_port(make: MakeEngine) -> None:
    first = make(config("1=127.0.0.1:0"), key_file())
    second = make(config(f"1={first.listening[1]}"), key_file())
    assert first.listening == second.listening
    first.stop()
    second.stop()


def test_a_buffer_that_the_kernel_does_not_grant_is_said_with_what_to_do(make: MakeEngine) -> None:
    with structlog.testing.capture_logs() as lines:
        engine = make(config("1=127.0.0.1:0", receive=1 << 30), key_file())
    warning = next(line for line in lines if line.get("socket") == "1")
    assert warning["fix"] == f"sysctl -w net.core.rmem_max={1 << 30}"
    assert warning["granted"] < warning["asked"]
    assert {status.name: status.receive_buffer for status in engine.sockets()}["1"] == warning["granted"]
    engine.stop()


def test_what_the_kernel_drops_is_told(make: MakeEngine, net: Network) -> None:
    engine = make(config("1=127.0.0.1:0", receive=4_096), key_file())  # never started, so nobody reads
    client = net.client(engine.listening[1])
    for _ in range(200):
        client.send(bytes(1_000))
    drops = {status.name: status.kernel_drops for status in engine.sockets()}
    assert drops["1"] is not None
    assert drops["1"] > 100
    assert drops["upstream"] == 0
    engine.stop()
