"""Probes the transceivers of the route table, by a socket of its own; the rules are in `round_trips`."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from usher_core.keys import KeyFile
from usher_core.routes import RouteTable
from usher_relay.endpoint import as_source
from usher_relay.probe_socket import ProbeSocket
from usher_relay.routes.round_trips import RoundTrips

LOOK_EVERY_S: Final = 0.05


class TransceiverProbes:
    """How far each transceiver is. `keys` are those of the relay."""

    def __init__(self, keys: KeyFile) -> None:
        self._round_trips = RoundTrips(keys)
        self.set_keys = self._round_trips.set_keys

    def set_routes(self, table: RouteTable) -> None:
        """Swap the route table."""
        addresses = {}
        for route, transceiver in table.items():
            host, port = transceiver.address
            addresses[route] = as_source(host, port)
        self._round_trips.set_addresses(addresses, time.monotonic())

    def milliseconds(self, route: str) -> float | None:
        """Return the round trip to the transceiver of `cluster/pod/worker`; None where unknown. From any thread."""
        return self._round_trips.milliseconds(route)

    async def run(self) -> None:
        """Probe until cancelled."""
        with ProbeSocket(self._on_reply) as sock:
            while True:
                for probe, address in self._round_trips.due(time.monotonic(), time.time()):
                    sock.send(probe, address)
                await asyncio.sleep(LOOK_EVERY_S)

    def _on_reply(self, datagram: bytes, source: tuple[str, int]) -> None:
        self._round_trips.on_reply(datagram, source, time.monotonic(), time.time())
