"""What only the Python engine can be asked: its parts can be made to fail, and its sockets looked at."""

import errno
import socket

import pytest
import structlog

from tests.relay_network import FakeTransceiver, Network, RunningEngine
from tests.relay_rig import POD_A, session
from usher_relay.counters import Drop
from usher_relay.engine.python_engine import PythonEngine
from usher_relay.engine.sockets import drop_reason


def python_engine(relay: RunningEngine) -> PythonEngine:
    assert isinstance(relay.engine, PythonEngine)
    return relay.engine


def test_upstream_datagrams_are_never_fragmented() -> None:
    with RunningEngine("1=127.0.0.1:0") as relay:
        sock = python_engine(relay)._upstream.socket
        assert sock.getsockopt(socket.IPPROTO_IP, 10) == 2  # IP_MTU_DISCOVER, IP_PMTUDISC_DO


def test_a_narrower_link_on_the_way_is_learnt_from_a_send_that_was_too_long(net: Network, pod: FakeTransceiver) -> None:
    with RunningEngine("1=127.0.0.1:0") as relay:
        relay.set_routes(pod)
        engine = python_engine(relay)
        address = pod.socket.getsockname()
        route = engine._routes_by_address[address]
        route.set_hop_size(9_000)
        too_long = OSError(errno.EMSGSIZE, "too long")
        engine._hop_send_failed(too_long, address, 10.0)
        assert route.hop_size > 60_000, "asked again"
        route.set_hop_size(9_000)
        engine._hop_send_failed(too_long, address, 10.5)
        assert route.hop_size == 9_000, "but not for every packet"
        assert relay.drops() == {Drop.SEND_TOO_LONG: 2}


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EAGAIN, Drop.SEND_AGAIN),
        (errno.ENOBUFS, Drop.SEND_NO_BUFFERS),
        (errno.EMSGSIZE, Drop.SEND_TOO_LONG),
        (errno.ENETUNREACH, Drop.SEND_REFUSED),
        (errno.EPERM, Drop.SEND_REFUSED),
    ],
)
def test_a_failed_send_is_counted_by_its_reason(number: int, reason: Drop) -> None:
    assert drop_reason(OSError(number, "no")) is reason


def test_a_fault_of_ours_costs_one_batch_and_is_counted(
    net: Network, pod: FakeTransceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = RunningEngine("1=127.0.0.1:0")
    whole = python_engine(relay)._forwarder.from_transceivers
    faults = iter([True])

    def faulty(*args: object) -> object:
        if next(faults, False):
            raise RuntimeError("a fault made by this test")
        return whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(python_engine(relay)._forwarder, "from_transceivers", faulty)
    with structlog.testing.capture_logs() as lines, relay:
        relay.set_routes(pod)
        client = net.client(relay.at(1))
        client.send(session(POD_A).check())
        arrived = pod.receive()
        pod.answer(arrived, b"lost")
        relay.wait_for_drops({Drop.INTERNAL: 1})
        pod.answer(arrived, b"arrives")
        assert client.receive()[0] == b"arrives"
    assert [line["log_level"] for line in lines if "fault of ours" in line["event"]] == ["error"]
