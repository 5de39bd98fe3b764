"""A caller with valid credentials against a small relay: others' calls begin and go on (docs/wire.md section 4)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.ice_checks import check_bytes
from tests.raw_client import RawClient
from tests.transceiver_rig import POD, Rig, rig, until
from usher_core.keys import parse_key_file
from usher_core.routes import RouteTable, Transceiver
from usher_relay.counters import FlowEvent
from usher_relay.engine.interface import EngineConfig
from usher_relay.engine.python_engine import PythonEngine
from usher_relay.listeners import parse_listener
from usher_relay.state import Limits
from usher_transceiver.paths import MAX_PATHS

pytestmark = pytest.mark.programs

MAX_FLOWS = 40
PORTS = 400


@contextlib.asynccontextmanager
async def behind_real_relay(folder: Path) -> AsyncIterator[tuple[Rig, PythonEngine]]:
    """A transceiver that clients reach through a relay's engine with room for few flows."""
    async with rig(folder) as running:
        keys = parse_key_file((folder / "transceiver.json").read_text())
        listeners = (parse_listener("1=127.0.0.1:0"),)
        config = EngineConfig(listeners, "127.0.0.1", Limits(max_flows=MAX_FLOWS), 0, 1 << 20, 1 << 20)
        engine = PythonEngine(config, keys)
        engine.start()
        try:
            engine.set_routes(RouteTable((Transceiver(cluster=1, pod=POD, udp=running.transceiver.udp),)))
            running.relay.port = int(engine.listening[1].rpartition(":")[2])
            yield running, engine
        finally:
            engine.stop()


class Attacker(RawClient):
    """Sends to the real relay from as many sockets as he likes; hears only on the first."""

    def __init__(self, running: Rig, count: int) -> None:
        super().__init__(running, 1)
        self.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
        for each in self.sockets:
            each.bind(("127.0.0.1", 0))
            each.setblocking(False)
        self.at = self.sockets[0]
        asyncio.get_running_loop().add_reader(self.at, self._on_readable)

    def send(self, payload: bytes, at: Any = None, flags: int = 0) -> None:
        self.at.sendto(payload, ("127.0.0.1", self.rig.relay.port))

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._on_datagram(self.sockets[0].recv(65_535))

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.sockets[0])
        for each in self.sockets:
            each.close()

    async def check_from_everywhere(self) -> None:
        """Fresh checks, each valid and each from the next port: about 1,000 a second."""
        for number, each in enumerate(itertools.cycle(self.sockets)):
            self.at = each
            self.send(check_bytes(self.generation, nominate=number % 2 == 0))
            await asyncio.sleep(0.001)

    async def speak_from_everywhere(self) -> None:
        """Fresh speech, each packet from the next port."""
        for each in itertools.cycle(self.sockets):
            self.at = each
            # Long enough that three times as much has room for an answer: so it comes with the word "alive".
            self.speak(payload=b"\xf8" + bytes(150))
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("way", ["checks", "speech"])
async def test_one_callers_many_addresses_neither_keep_out_a_new_call_nor_touch_a_running_one(
    tmp_path: Path, way: str
) -> None:
    async with behind_real_relay(tmp_path) as (running, engine):
        victim = running.client()
        await victim.call()
        await until(victim.hears_tone, "the victim hears the tone")
        attacker = Attacker(running, PORTS)
        session = await attacker.create()
        await attacker.connect()
        if way == "speech":
            # The relay learns whose SSRC this is from an address that it knows.
            attacker.speak()
            await until(lambda: session.sources, "the attacker is heard")

        def flows_made() -> int:
            return engine.snapshot().counters.flow_events[FlowEvent.CREATED]

        attack = asyncio.create_task(
            attacker.check_from_everywhere() if way == "checks" else attacker.speak_from_everywhere()
        )
        try:
            given_up = running.transceiver.mux.reports
            await until(lambda: given_up["path_given_up"] > PORTS, "he used more ports than his session has room for")
            await until(lambda: flows_made() > MAX_FLOWS, "he used more ports than the relay has room for")
            assert len(session.participant.agent.addresses) <= MAX_PATHS
            began = len(victim.frames)
            newcomer = running.client()
            await newcomer.call()
            await until(newcomer.hears_tone, "the new call hears the tone")
            assert victim.hears_tone(), "the running call goes on"
            assert len(victim.frames) > began
        finally:
            attack.cancel()
            attacker.close()
        assert engine.snapshot().counters.flow_events[FlowEvent.REFUSED] == 0
        live = {flow.client for flow in engine.flows(1_000) if flow.state == "live"}
        for call in (victim, newcomer):
            assert f"{call.remote_path.host}:{call.remote_path.port}" in live
