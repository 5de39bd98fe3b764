"""Records what a relay sees of one real call: `python -m tests.record_call tests/vectors/recorded_call.json`.

The relay is the Python engine in this process; `usher up` makes keys, transceiver and signaling, and `usher call` sends
its media through the relay here. Keys and addresses of that moment are in the file; they protect nothing any more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.fleet import Fleet, environment, running_fleet
from usher_cli.key_files import RELAY_FILE
from usher_cli.up.child import usher_command
from usher_core.keys import parse_key_file
from usher_core.routes import parse_route_file
from usher_relay.engine.interface import EngineConfig
from usher_relay.engine.python_engine import PythonEngine
from usher_relay.forwarder import Answers, Forwarder
from usher_relay.listeners import parse_listener
from usher_relay.state import Limits

SECONDS = 0.5


@dataclass
class Recorder:
    """Stands before a forwarder and notes what comes: (seconds since the start, from whom, what)."""

    forwarder: Forwarder
    began: float = field(default_factory=time.monotonic)
    batches: list[tuple[float, str, list[Any]]] = field(default_factory=list)

    def from_clients(self, now: float, unix: float, packets: Iterable[tuple[bytes, object, bytes]]) -> Any:
        packets = list(packets)
        what = [[path_key.hex(), datagram.hex()] for path_key, _, datagram in packets]
        self.batches.append((round(now - self.began, 4), "clients", what))
        return self.forwarder.from_clients(now, unix, packets)

    def from_transceivers(self, now: float, unix: float, datagrams: Iterable[tuple[bytes, Any]]) -> Answers:
        datagrams = list(datagrams)
        what = [datagram.hex() for datagram, _ in datagrams]
        self.batches.append((round(now - self.began, 4), "transceivers", what))
        return self.forwarder.from_transceivers(now, unix, datagrams)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forwarder, name)


def record(fleet: Fleet) -> dict[str, Any]:
    """Make a call through a relay of this process."""
    made = Path(fleet.state()["keys"])
    keys_text = (made / RELAY_FILE).read_text()
    table = parse_route_file((made / "routes.json").read_text())
    config = EngineConfig((parse_listener("1=127.0.0.1:0"),), "127.0.0.1", Limits(), 0, 1 << 20, 1 << 20)
    engine = PythonEngine(config, parse_key_file(keys_text))
    unix = time.time()
    recorder = Recorder(engine._forwarder)
    engine._forwarder = recorder  # type: ignore[assignment]
    engine.start()
    try:
        engine.set_routes(table)
        call = ["call", fleet.url, f"--seconds={SECONDS}", "--via", engine.listening[1], "--json"]
        subprocess.run(usher_command(call), check=True, env=environment(), stdout=subprocess.DEVNULL)
    finally:
        engine.stop()
    ((route, transceiver),) = table.items()
    return {
        "keys": json.loads(keys_text),
        "route": [route.cluster, route.pod, route.worker],
        "transceiver": list(transceiver.address),
        "unix": unix,
        "batches": recorder.batches,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, running_fleet(Path(directory), "--transceivers=1") as fleet:
        found = record(fleet)
    batches = ",\n  ".join(json.dumps(batch) for batch in found.pop("batches"))
    head = json.dumps(found, indent=1).rstrip("}\n")
    Path(sys.argv[1]).write_text(f'{head},\n "batches": [\n  {batches}\n ]\n}}\n')


if __name__ == "__main__":
    main()
