"""A Realtime server that floods its WebSocket holds up no other call and fills no memory."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.utils import accept_key

from tests.integration.test_realtime_connection import make_certificate, port_of
from tests.transceiver_rig import until
from usher_transceiver.backends.realtime import budget, paced
from usher_transceiver.backends.realtime.budget import Share
from usher_transceiver.backends.realtime.counters import RealtimeCounters
from usher_transceiver.backends.realtime.paced import MAX_AT_ONCE, MAX_UNSENT, PacedConnection

EMPTY_PING = b"\x89\x00"
LARGE_PING = b"\x89\x7d" + bytes(125)
SMALL_EVENT = b'\x81\x0c{"type":"a"}'


@asynccontextmanager
async def flood(frames: bytes) -> AsyncIterator[int]:
    """Serve WebSockets that send these bytes for ever and take no answer; yield the port."""

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        key = next(line.split(": ")[1] for line in head if line.lower().startswith("sec-websocket-key"))
        answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(f"{answer}Sec-WebSocket-Accept: {accept_key(key)}\r\n\r\n".encode())
        try:
            while True:
                writer.write(frames)
                await writer.drain()
        except OSError:
            writer.transport.abort()

    async with await asyncio.start_server(on_client, "127.0.0.1", 0) as server:
        yield port_of(server)


def dial(
    port: int,
    tls: ssl.SSLContext | None = None,
    counters: RealtimeCounters | None = None,
    waiting_bytes: Callable[[], int] = lambda: 0,
) -> connect:
    scheme = "ws" if tls is None else "wss"
    uri = f"{scheme}://127.0.0.1:{port}"
    share = Share(counters or RealtimeCounters())
    paced: Any = partial(PacedConnection, share=share, waiting_bytes=waiting_bytes)
    return connect(uri, ssl=tls, max_queue=4, max_size=4 << 20, compression=None, create_connection=paced)


@pytest.mark.parametrize("frame", [EMPTY_PING, SMALL_EVENT], ids=["pings", "events"])
async def test_only_so_much_is_read_between_two_turns_of_the_loop(
    frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, turn, read = asyncio.get_running_loop(), 0, dict[int, int]()
    library = ClientConnection.data_received

    def count(self: ClientConnection, data: bytes) -> None:
        read[turn] = read.get(turn, 0) + len(data)
        library(self, data)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    monkeypatch.setattr(ClientConnection, "data_received", count)
    loop.call_soon(next_turn)
    async with flood(frame * 20_000) as port, asyncio.timeout(20), dial(port) as socket:
        reading = asyncio.create_task(drain(socket))
        await until(lambda: sum(read.values()) >= 50 * MAX_AT_ONCE, "read for some turns")
        socket.transport.abort()
        await reading
    assert max(read.values()) <= MAX_AT_ONCE


async def test_a_server_that_pings_and_takes_no_answer_is_cut_off_before_they_fill_the_memory() -> None:
    async with flood(LARGE_PING * 2_000) as port, asyncio.timeout(60), dial(port) as socket:
        most = 0
        while not socket.transport.is_closing():
            most = max(most, socket.transport.get_write_buffer_size())
            await asyncio.sleep(0)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    assert most <= MAX_UNSENT


@pytest.mark.parametrize("over_tls", [False, True])
async def test_all_that_a_server_said_before_it_closed_arrives_in_order(
    over_tls: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server_tls = client_tls = None
    if over_tls:
        folder = tmp_path_factory.mktemp("tls")
        server_tls = make_certificate(folder)
        client_tls = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    sent = [f"{number}:" + "x" * (number * 97 % 30_000) for number in range(300)]

    async def speak(socket: ServerConnection) -> None:
        for text in sent:
            await socket.send(text)

    async with (
        serve(speak, "127.0.0.1", 0, ssl=server_tls) as server,
        asyncio.timeout(20),
        dial(port_of(server), client_tls) as socket,
    ):
        heard = []
        async for text in socket:
            heard.append(text)
            if len(heard) % 50 == 0:
                await asyncio.sleep(0.02)  # the library holds up the socket meanwhile
    assert heard == sent
    assert socket.close_code == CloseCode.NORMAL_CLOSURE


def half_a_message(size: int) -> bytes:
    """Return the beginning of a text frame of 4 MiB."""
    return b"\x81\x7f" + (4 << 20).to_bytes(8, "big") + b"x" * size


async def test_what_is_read_and_not_taken_is_known_and_nothing_of_it_is_left_in_the_end() -> None:
    counters = RealtimeCounters()

    async def speak(socket: ServerConnection) -> None:
        for text in ("é" * 50_000, b"bytes", "x" * 300_000):
            await socket.send(text)
            _ = await socket.ping()
        await socket.wait_closed()

    async with serve(speak, "127.0.0.1", 0) as server, asyncio.timeout(20):
        async with dial(port_of(server), counters=counters) as socket:
            assert isinstance(socket, PacedConnection)
            await until(lambda: counters.held_bytes >= 400_005, "all is read")
            for left in (300_005, 300_000, 0):
                await socket.take()
                assert left <= counters.held_bytes <= left + MAX_AT_ONCE
        socket.forget()
    assert counters.held_bytes == 0


async def test_a_call_that_holds_much_gets_no_more_while_all_hold_too_much_and_is_cut_off_if_that_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "MAX_BYTES", 600_000)
    monkeypatch.setattr(budget, "OWN_BYTES", 200_000)
    monkeypatch.setattr(paced, "ROOM_LOOK_S", 0.01)
    counters = RealtimeCounters()
    others, more = Share(counters), asyncio.Event()

    async def halves(socket: ServerConnection) -> None:
        socket.transport.write(half_a_message(3 << 20))
        async with asyncio.timeout(10):
            await more.wait()
        socket.transport.write(b"x")
        await socket.wait_closed()

    async with (
        serve(halves, "127.0.0.1", 0, close_timeout=0.1) as server,
        asyncio.timeout(20),
        dial(port_of(server), counters=counters) as socket,
    ):
        await until(lambda: counters.held_back == 1, "as much as there is room for is read")
        # What one read of the socket brought beyond, and no more.
        assert counters.held_bytes <= 600_000 + (256 << 10) + MAX_AT_ONCE
        monkeypatch.setattr(budget, "MAX_BYTES", 4 << 20)
        await until(lambda: counters.held_bytes >= (3 << 20) - MAX_AT_ONCE, "with room the rest is read")
        others.set(4 << 20)
        monkeypatch.setattr(paced, "ROOM_LIMIT_S", 0.1)
        more.set()
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert isinstance(socket, PacedConnection)
        socket.forget()
    assert counters.held_bytes == 4 << 20


async def test_a_server_for_which_there_is_no_room_is_not_cut_off_while_what_it_said_before_is_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "MAX_BYTES", 0)
    monkeypatch.setattr(budget, "OWN_BYTES", 300_000)
    # Each look comes later than a limit after the one before it.
    monkeypatch.setattr(paced, "ROOM_LIMIT_S", 0.01)
    monkeypatch.setattr(paced, "ROOM_LOOK_S", 0.02)
    looks, to_play = 0, 20

    def waiting_bytes() -> int:
        nonlocal looks
        looks += 1
        return 100 * max(0, to_play - looks)

    async def half(socket: ServerConnection) -> None:
        socket.transport.write(half_a_message(1 << 20))
        await socket.wait_closed()

    async with (
        serve(half, "127.0.0.1", 0, close_timeout=0.1) as server,
        asyncio.timeout(20),
        dial(port_of(server), waiting_bytes=waiting_bytes) as socket,
    ):
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    assert looks == to_play + 1, "nothing more was played at the last look"


async def drain(socket: ClientConnection) -> None:
    try:
        while True:
            await socket.recv()
    except ConnectionClosed:
        return
