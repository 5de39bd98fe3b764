"""The shared UDP socket: it never blocks, takes turns, and counts what the kernel refuses."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog

from tests.transceiver_rig import until
from usher_core.errors import LocalError
from usher_transceiver.hop_socket import HEARTBEAT, LATE_S, MAX_PER_WAKE_UP, MAX_TURN_S, HopSocket

BUFFER = 212_992


class Collector:
    def __init__(self) -> None:
        self.datagrams: list[bytes] = []
        self.relays: set[Any] = set()
        self.turns: set[float] = set()
        self.late: list[bytes] = []

    def __call__(self, now: float, datagram: bytes, relay: Any, *, late: bool) -> None:
        if late:
            self.late.append(datagram)
        self.datagrams.append(datagram)
        self.relays.add(relay)
        self.turns.add(now)


def sender() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


async def test_a_burst_is_read_in_turns_so_that_the_loop_goes_on() -> None:
    shared = HopSocket("127.0.0.1", 0, BUFFER, time.monotonic)
    collector = Collector()
    with sender() as relay:
        for number in range(3 * MAX_PER_WAKE_UP):
            relay.sendto(b"x%d" % number, shared.address)
        shared.start(collector)
        await until(lambda: len(collector.datagrams) == 3 * MAX_PER_WAKE_UP, "all read")
        assert collector.relays == {relay.getsockname()}
    assert len(collector.turns) >= 3
    shared.close()


async def test_datagrams_that_take_long_are_read_in_short_turns() -> None:
    time_is = 100.0

    class Slow(Collector):
        def __call__(self, now: float, datagram: bytes, relay: Any, *, late: bool) -> None:
            nonlocal time_is
            super().__call__(now, datagram, relay, late=late)
            time_is += 0.6 * MAX_TURN_S

    shared = HopSocket("127.0.0.1", 0, BUFFER, lambda: time_is)
    collector = Slow()
    with sender() as relay:
        for number in range(10):
            relay.sendto(b"x%d" % number, shared.address)
        shared.start(collector)
        await until(lambda: len(collector.datagrams) == 10, "all read")
    assert len(collector.turns) == 5
    shared.close()


async def test_what_one_wake_up_reads_is_one_batch() -> None:
    shared = HopSocket("127.0.0.1", 0, BUFFER, lambda: 5.0)
    collector = Collector()
    batches: list[int] = []

    @contextmanager
    def batch() -> Iterator[None]:
        before = len(collector.datagrams)
        yield
        batches.append(len(collector.datagrams) - before)

    with sender() as relay:
        for number in range(MAX_PER_WAKE_UP + 3):
            relay.sendto(b"x%d" % number, shared.address)
        shared.start(collector, batch)
        await until(lambda: len(collector.datagrams) == MAX_PER_WAKE_UP + 3, "all read")
    assert batches[:2] == [MAX_PER_WAKE_UP, 3]
    shared.close()


@pytest.mark.programs
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a datagram came")
async def test_what_waited_too_long_is_late_and_what_came_just_now_is_not() -> None:
    shared = HopSocket("127.0.0.1", 0, BUFFER, time.monotonic)
    collector = Collector()
    with sender() as relay:
        relay.sendto(b"old", shared.address)
        await asyncio.sleep(LATE_S + 0.05)  # nobody reads yet
        relay.sendto(b"new", shared.address)
        shared.start(collector)
        await until(lambda: len(collector.datagrams) == 2, "both read")
        relay.sendto(b"newer", shared.address)
        await until(lambda: len(collector.datagrams) == 3, "read at once")
    assert collector.late == [b"old"]
    shared.close()


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_a_step_of_the_wall_clock_makes_nothing_late_while_the_process_keeps_up(step: float) -> None:
    shared = HopSocket("127.0.0.1", 0, BUFFER, lambda: 5.0, lambda: time.time() + step)
    collector = Collector()
    shared.start(collector)
    with sender() as relay:
        relay.sendto(b"in time", shared.address)
        await until(lambda: collector.datagrams, "read")
    assert collector.late == []
    shared.close()


async def test_it_answers_from_the_address_it_is_bound_to() -> None:
    shared = HopSocket("127.0.0.1", 0, BUFFER, time.monotonic)
    with sender() as relay:
        shared.send(b"down", relay.getsockname())
        relay.settimeout(2)
        assert relay.recvfrom(100) == (b"down", shared.address)
    shared.close()


@pytest.mark.needs("ipv6")
async def test_it_works_over_ipv6() -> None:
    shared = HopSocket("::1", 0, BUFFER, time.monotonic)
    collector = Collector()
    shared.start(collector)
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as relay:
        relay.bind(("::1", 0))
        relay.sendto(b"up", shared.address)
        await until(lambda: collector.datagrams, "read")
        shared.send(b"down", collector.relays.pop())
        relay.settimeout(2)
        assert relay.recv(100) == b"down"
    shared.close()


@pytest.mark.parametrize(
    "error,name",
    [
        (BlockingIOError(errno.EAGAIN, "again"), "again"),
        (OSError(errno.ENOBUFS, "no buffers"), "no_buffers"),
        (OSError(errno.EMSGSIZE, "too long"), "too_long"),
        (OSError(errno.EIO, "something else"), "other"),
    ],
)
async def test_what_the_kernel_does_not_take_is_dropped_and_counted(error: OSError, name: str) -> None:
    shared = HopSocket("127.0.0.1", 0, BUFFER, time.monotonic)

    class Refusing:
        def sendto(self, *_: Any) -> None:
            raise error

    real, shared._socket = shared._socket, Refusing()  # type: ignore[assignment]
    shared.send(b"x", ("127.0.0.1", 9))
    assert shared.send_failures == {name: 1}
    real.close()


async def test_a_port_unreachable_does_not_stop_the_socket() -> None:
    shared = HopSocket("127.0.0.1", 0, BUFFER, time.monotonic)
    collector = Collector()
    shared.start(collector)
    with sender() as gone:
        address = gone.getsockname()
    shared.send(b"nobody", address)
    await asyncio.sleep(0)
    with sender() as relay:
        relay.sendto(b"up", shared.address)
        await until(lambda: collector.datagrams == [b"up"], "read")
    shared.close()


async def test_its_heartbeat_comes_back_and_reaches_nobody_else() -> None:
    now = 0.0
    shared = HopSocket("0.0.0.0", 0, BUFFER, lambda: now)
    collector = Collector()
    shared.start(collector)
    now = 5.0
    shared.beat()
    await until(lambda: shared.last_heartbeat == now, "the heartbeat arrived")
    assert collector.datagrams == []
    shared.close()


async def test_an_address_in_use_or_not_ours_is_our_own_mistake() -> None:
    shared = HopSocket("127.0.0.1", 0, BUFFER, time.monotonic)
    with pytest.raises(LocalError, match="can't be bound"):
        HopSocket("127.0.0.1", shared.address[1], BUFFER, time.monotonic)
    with pytest.raises(LocalError, match=r"192\.0\.2\.1"):
        HopSocket("192.0.2.1", 0, BUFFER, time.monotonic)
    with pytest.raises(LocalError, match="no address of this machine"):
        HopSocket("no such host", 0, BUFFER, time.monotonic)
    shared.close()


async def test_a_smaller_buffer_than_wanted_is_known_and_said() -> None:
    with structlog.testing.capture_logs() as lines:
        shared = HopSocket("127.0.0.1", 0, 1 << 29, time.monotonic)
    shared.close()
    assert 0 < shared.receive_buffer <= 1 << 29
    if shared.receive_buffer < 1 << 29:
        assert lines[0]["granted"] == shared.receive_buffer
        assert "sysctl" in lines[0]["fix"]


def test_a_heartbeat_is_no_hop_datagram() -> None:
    assert HEARTBEAT[0] == 0
