"""A client's datagram that is longer than the hop takes: through the real relay to the real transceiver and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.raw_client import RawClient
from tests.transceiver_rig import POD, TOKEN, Rig, until, write_files
from usher_core.ids import ClientPath, join_host_port, split_host_port
from usher_core.keys import parse_key_file
from usher_core.routes import RouteTable
from usher_core.routes import Transceiver as Entry
from usher_relay.engine.interface import EngineConfig
from usher_relay.engine.python_engine import PythonEngine
from usher_relay.listeners import parse_listener
from usher_relay.state import Limits
from usher_transceiver.main import Transceiver
from usher_transceiver.session import EndReason
from usher_transceiver.settings import TransceiverSettings

FIREFOX_DATAGRAM = 1408
HOP_MTU = 1400


class Wire(asyncio.DatagramProtocol):
    """A client's socket towards a relay, in the form that `RawClient` knows."""

    def __init__(self) -> None:
        self.sinks: dict[ClientPath, Callable[[bytes], None]] = {}
        self.sizes: list[int] = []
        self.port = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        for sink in self.sinks.values():
            sink(data)

    def forward(self, _path: ClientPath, payload: bytes, _flags: int = 0) -> None:
        self.sizes.append(len(payload))
        self._transport.sendto(payload)


@pytest.mark.parametrize("padding,mtu", [(1250, FIREFOX_DATAGRAM), (2500, FIREFOX_DATAGRAM)])
async def test_a_client_hello_longer_than_the_hop_is_answered(tmp_path: Path, padding: int, mtu: int) -> None:
    write_files(tmp_path, bytes(range(16)))
    transceiver = Transceiver(
        TransceiverSettings(
            udp="127.0.0.1:0",
            http="127.0.0.1:0",
            keys_file=tmp_path / "transceiver.json",
            token_file=tmp_path / "token",
            pod=POD,
            socket_buffer=212_992,
        )
    )
    await transceiver.start()
    config = EngineConfig((parse_listener("1=127.0.0.1:0"),), "127.0.0.1", Limits(), HOP_MTU, 1 << 20, 1 << 20)
    engine = PythonEngine(config, parse_key_file((tmp_path / "transceiver.json").read_text()))
    engine.start()
    wire = Wire()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(engine.stop)
        stack.push_async_callback(transceiver.stop, EndReason.SHUTDOWN)
        engine.set_routes(RouteTable((Entry(cluster=1, pod=POD, udp=transceiver.udp),)))
        relay = split_host_port(engine.listening[1])
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: wire, remote_addr=relay)
        stack.callback(transport.close)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=transceiver.http, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)
        )
        await until(lambda: engine.routes(1), "the relay knows the transceiver")
        rig = Rig(transceiver, SimpleNamespace(port=relay[1], **_duck(wire)), http)  # type: ignore[arg-type]
        client = RawClient(rig, 2000, mtu=mtu, padding=padding)
        await client.create()
        await client.connect()
        counters = engine.snapshot().counters

    assert max(wire.sizes) > HOP_MTU, join_host_port(*relay)
    assert counters.split >= 1
    assert transceiver.mux.joiner.joined == counters.split
    # The server's flight came back, each datagram whole.
    assert client.dtls_in
    assert max(map(len, client.dtls_in)) <= 1200


def _duck(wire: Wire) -> dict[str, Any]:
    return {"sinks": wire.sinks, "forward": wire.forward}
