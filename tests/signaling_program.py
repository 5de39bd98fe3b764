"""`usher signaling` as a program on a real port, and pretended transceivers on real ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tests.signaling_fakes import API_KEY, FakeTransceiver
from usher_core.routes import RouteFile

HEADERS = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/sdp"}


@dataclass
class Program:
    process: asyncio.subprocess.Process
    url: str

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def program(folder: Path, *flags: str, descriptors: tuple[int, int] | None = None) -> AsyncIterator[Program]:
    """Run `usher signaling` on a free port until it is announced; kill it in the end if it still runs.

    Its log goes to the file `log` in `folder`. `descriptors` are its soft and hard limit.
    """

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)

    with (folder / "log").open("w") as log_file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "usher_cli", "signaling", "--http", "127.0.0.1:0"),
            *("--keys-file", str(folder / "keys.json"), "--token-file", str(folder / "token")),
            *("--routes-file", str(folder / "routes.json"), "--api-keys-file", str(folder / "api-keys")),
            *("--advertise", "1=127.0.0.1:3478", *flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=log_file,
            preexec_fn=limit,
        )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 40)
        announced = json.loads(line)
        assert announced == {"ready": True, "program": "signaling", "http": announced["http"]}
        yield Program(process, announced["http"])
    finally:
        if process.returncode is None:
            process.kill()
        # Reading to the end closes the pipe, which otherwise warns when it is collected.
        await process.communicate()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals stay with pytest


@contextlib.asynccontextmanager
async def serving(fake: FakeTransceiver) -> AsyncIterator[str]:
    """Serve a pretended transceiver on a real port."""
    async with serving_app(fake.app) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def serving_app(app: Any, **tls: Any) -> AsyncIterator[int]:
    """Serve an application on a real port; `tls` are uvicorn's settings of that."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(
        uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=0, **tls)
    )
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


def write_route(folder: Path, fakes: dict[str, FakeTransceiver]) -> None:
    """Write the route file; each transceiver stands under the address that `serving` gave."""
    entries = tuple(fake.entry.model_copy(update={"http": url}) for url, fake in fakes.items())
    (folder / "routes.json").write_text(RouteFile(version=1, transceivers=entries).model_dump_json())
