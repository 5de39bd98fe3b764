"""`usher wan`: what its links do with packets, and which settings it takes."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from usher_cli.wan import link
from usher_cli.wan.duration import seconds
from usher_cli.wan.link import UdpLink, Weather
from usher_cli.wan.main import ways_of
from usher_cli.wan.metrics import LinksCollector
from usher_cli.wan.settings import WanSettings
from usher_core.errors import LocalError


def udp() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with closing(udp()) as sock:
        yield sock


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with closing(udp()) as sock:
        yield sock


async def receive(sock: socket.socket) -> tuple[bytes, tuple[str, int]]:
    async with asyncio.timeout(5):
        return await asyncio.get_running_loop().sock_recvfrom(sock, 2000)


async def test_packets_wait_each_way_and_answers_find_their_way_back(
    client: socket.socket, target: socket.socket
) -> None:
    loop = asyncio.get_running_loop()
    async with UdpLink(target.getsockname(), Weather(delay_s=0.05)) as way:
        began = loop.time()
        client.sendto(b"there", way.address)
        packet, outer = await receive(target)
        assert packet == b"there"
        assert loop.time() - began >= 0.05
        target.sendto(b"back", outer)
        packet, sender = await receive(client)
        assert (packet, sender) == (b"back", way.address)
        assert loop.time() - began >= 0.1
        assert (way.forwarded, way.lost, way.dropped, way.waiting) == (2, 0, 0, 0)


async def test_each_of_two_links_to_one_place_is_announced(target: socket.socket) -> None:
    async with UdpLink(target.getsockname(), Weather()) as one, UdpLink(target.getsockname(), Weather()) as other:
        there = f"127.0.0.1:{target.getsockname()[1]}"
        assert ways_of([one, other]) == {f"127.0.0.1:{link.address[1]}": there for link in (one, other)}
        assert one.address != other.address


async def test_two_clients_have_two_ways_back(client: socket.socket, target: socket.socket) -> None:
    async with UdpLink(target.getsockname()) as way:
        with closing(udp()) as other:
            for sock, text in ((client, b"one"), (other, b"two")):
                sock.sendto(text, way.address)
                packet, outer = await receive(target)
                target.sendto(packet, outer)
            assert (await receive(client))[0] == b"one"
            assert (await receive(other))[0] == b"two"


async def test_packets_stay_in_order_without_jitter(client: socket.socket, target: socket.socket) -> None:
    async with UdpLink(target.getsockname(), Weather(delay_s=0.01)) as way:
        for number in range(50):
            client.sendto(b"%d" % number, way.address)
        assert [int((await receive(target))[0]) for _ in range(50)] == list(range(50))


async def test_loss_is_the_share_that_was_asked_for_and_the_same_each_time(
    client: socket.socket, target: socket.socket
) -> None:
    lost = []
    for _ in range(2):
        async with UdpLink(target.getsockname(), Weather(loss=0.2)) as way:
            for _ in range(300):
                way.to_client(b"x", client.getsockname())
            lost.append(way.lost)
            assert way.forwarded + way.lost == 300
    assert lost[0] == lost[1]
    assert 40 <= lost[0] <= 80


async def test_what_has_no_room_is_dropped_and_counted(
    client: socket.socket, target: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_WAITING", 3)
    async with UdpLink(target.getsockname(), Weather(delay_s=60)) as way:
        for _ in range(5):
            way.from_client(b"x", client.getsockname())
        assert (way.waiting, way.dropped) == (3, 2)
        samples = {
            (sample.name, sample.labels.get("fate")): sample.value
            for metric in LinksCollector([way]).collect()
            for sample in metric.samples
        }
    assert samples["usher_wan_packets_total", "dropped"] == 2
    assert samples["usher_wan_waiting", None] == 3


async def test_large_packets_are_bounded_by_their_bytes(
    client: socket.socket, target: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_WAITING_BYTES", 1000)
    async with UdpLink(target.getsockname(), Weather(delay_s=0.05)) as way:
        for length in (600, 401, 400, 1):
            way.from_client(bytes(length), client.getsockname())
            way.to_client(b"", client.getsockname())
        assert (way.waiting_bytes, way.dropped) == (1000, 2)
        (held,) = [metric for metric in LinksCollector([way]).collect() if metric.name == "usher_wan_waiting_bytes"]
        assert [sample.value for sample in held.samples] == [1000]
        async with asyncio.timeout(5):
            while way.waiting:  # noqa: ASYNC110  (a link tells nobody)
                await asyncio.sleep(0.005)
        assert way.waiting_bytes == 0
        way.from_client(bytes(1000), client.getsockname())
        assert (way.waiting_bytes, way.dropped) == (1000, 2), "there is room again"


async def test_without_a_descriptor_for_a_new_client_its_packet_is_dropped_and_others_go_on(
    client: socket.socket, target: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def none_left(_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    async with UdpLink(target.getsockname()) as way:
        client.sendto(b"known", way.address)
        await receive(target)
        with closing(udp()) as other, monkeypatch.context() as patched:
            patched.setattr(link, "_bound_socket", none_left)
            other.sendto(b"new", way.address)
            client.sendto(b"known still", way.address)
            assert (await receive(target))[0] == b"known still"
            assert way.dropped == 1
        with closing(udp()) as later:
            later.sendto(b"later", way.address)
            assert (await receive(target))[0] == b"later"
    assert complaints == []


async def test_the_quietest_client_makes_room_for_a_new_one(
    client: socket.socket, target: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_SOURCES", 1)
    async with UdpLink(target.getsockname()) as way:
        client.sendto(b"first", way.address)
        _, outer = await receive(target)
        with closing(udp()) as other:
            other.sendto(b"second", way.address)
            _, its = await receive(target)
            assert its != outer
            target.sendto(b"for the first", outer)
            target.sendto(b"for the second", its)
            assert (await receive(other))[0] == b"for the second"
        with pytest.raises(BlockingIOError):
            client.recv(100)


async def test_a_target_that_is_not_there_breaks_nothing_and_is_no_success(
    client: socket.socket, target: socket.socket
) -> None:
    address = target.getsockname()
    target.close()
    async with UdpLink(address) as way:
        for number in range(1, 4):
            client.sendto(b"x", way.address)
            async with asyncio.timeout(5):
                while way.forwarded + way.unreachable < number:  # noqa: ASYNC110  (a link tells nobody)
                    await asyncio.sleep(0.005)
        before = way.forwarded
        way.from_client(b"x", ("127.0.0.1", 9))
        assert (way.forwarded, way.unreachable) == (before, 4 - before), "a source that has made room has no way"


@pytest.mark.parametrize(("text", "value"), [("40ms", 0.04), ("0.5s", 0.5), ("12.5ms", 0.0125), ("0ms", 0.0)])
def test_times_are_read_as_people_write_them(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "40", "ms", "-1ms", "1e3ms", "1m", "4\u0660ms", "11s", "nan s"])
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(ValueError, match=r"no time such as|at most 10s"):
        seconds(text)


def test_a_round_trip_is_half_each_way() -> None:
    flags = ["--link", "127.0.0.1:0=127.0.0.1:9", "--rtt", "40ms", "--jitter", "5ms", "--loss", "0.05"]
    settings = WanSettings.from_command_line(flags)
    assert settings.weather == Weather(loss=0.05, delay_s=0.02, jitter_s=0.005)
    assert [(ends.here, ends.there) for ends in settings.links] == [(("127.0.0.1", 0), ("127.0.0.1", 9))]


@pytest.mark.parametrize(
    "flags", ["", "--link x", "--link 127.0.0.1:0=127.0.0.1:0", "--link a:1=b:2", "--link 127.0.0.1:1=127.0.0.1"]
)
def test_a_link_without_two_ends_is_refused(flags: str) -> None:
    with pytest.raises(LocalError, match="--link"):
        WanSettings.from_command_line(flags.split())
