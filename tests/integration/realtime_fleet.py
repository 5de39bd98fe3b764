"""A whole fleet with the Realtime bridge for its backend, and the server of our tests behind it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.integration.fleet import Fleet, running_fleet
from tests.realtime_caller import Caller

USHER_KEY = "sk-of-the-product-0123456789"
UPSTREAM_KEY = "sk-upstream-9876543210"
HEADER = ("X-Tenant", "header-secret-4711")
MODEL = "gpt-realtime-of-settings"


@dataclass(frozen=True, slots=True)
class Bridge:
    """The fleet, and the port at which it expects its server."""

    fleet: Fleet
    port: int

    def assert_keeps_its_secrets(self, *callers: Caller) -> None:
        """Neither the log nor what clients got names the key, a header or the address of the server."""
        seen = self.fleet.log_text + "".join(text for caller in callers for text in caller.texts)
        assert seen
        for secret in (UPSTREAM_KEY, HEADER[1], f":{self.port}"):
            assert secret not in seen


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of loopback that nobody else is given; who binds it by name, as our server does, may listen there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextlib.contextmanager
def running_bridge(folder: Path, port: int, log_level: str = "info", **settings: str) -> Iterator[Bridge]:
    """Start `usher up --backend realtime`. `settings` are those of the bridge, as `truncate="upstream"`."""
    (folder / "key").write_text(UPSTREAM_KEY + "\n")
    (folder / "headers.json").write_text(json.dumps({HEADER[0]: HEADER[1]}))
    facts = {
        "url": f"ws://127.0.0.1:{port}/v1/realtime",
        "api_key_file": str(folder / "key"),
        "headers_file": str(folder / "headers.json"),
        "model": MODEL,
        **settings,
    }
    variables = {f"USHER_REALTIME_{name.upper()}": value for name, value in facts.items()}
    variables |= {"USHER_API_KEY": USHER_KEY, "USHER_LOG_LEVEL": log_level}
    with running_fleet(folder, "--backend=realtime", settings=variables) as fleet:
        yield Bridge(fleet, port)
