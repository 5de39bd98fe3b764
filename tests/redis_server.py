"""A real Redis for tests: on a free port of loopback, without files."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests import tools
from tests.signaling_fakes import until


@dataclass
class RedisServer:
    """`start` and `kill` may follow each other; the port stays."""

    port: int
    password: str = ""
    flags: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def url(self, password: str | None = None) -> str:
        word = self.password if password is None else password
        return f"redis://:{word}@127.0.0.1:{self.port}/0" if word else f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        self._spawn()
        await until(self._listens)

    def _spawn(self) -> None:
        program = tools.find("redis-server")
        assert program
        flags = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        flags += ["--rdb-del-sync-files", "yes"]  # else the next one in this directory begins with what a replica got
        if self.password:
            flags += ["--requirepass", self.password]
        self.process = subprocess.Popen([program, *flags, *self.flags], stdout=subprocess.DEVNULL)

    async def _listens(self) -> bool:
        """Whether it answers, and not somebody else's server that took the port first."""
        assert self.process is not None
        assert self.process.poll() is None, "redis-server ended"
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(f"AUTH {self.password}\r\n".encode() if self.password else b"")
            writer.write(b"INFO server\r\n")
            async with asyncio.timeout(5):
                answer = await reader.readuntil(b"tcp_port:")
            return f"process_id:{self.process.pid}\r\n".encode() in answer
        except (OSError, TimeoutError, EOFError):
            return False
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def hang(self) -> None:
        """Stop it: connections are taken, nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def redis_server(password: str = "") -> AsyncIterator[RedisServer]:
    server = RedisServer(free_port(), password)
    async with running(server):
        yield server


@contextlib.asynccontextmanager
async def running(*servers: RedisServer) -> AsyncIterator[None]:
    try:
        for server in servers:
            await server.start()
        yield
    finally:
        for server in servers:
            server.kill()


@contextlib.asynccontextmanager
async def sentinel(folder: Path, master: int) -> AsyncIterator[int]:
    """A Sentinel that watches the Redis on port `master` as `calls`; its port."""
    port, config = free_port(), folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor calls 127.0.0.1 {master} 1\n"
        "sentinel down-after-milliseconds calls 500\nsentinel failover-timeout calls 3000\n"
    )
    program = tools.find("redis-server")
    assert program
    process = await asyncio.create_subprocess_exec(
        program, str(config), "--sentinel", stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield port
    finally:
        process.kill()
        await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
