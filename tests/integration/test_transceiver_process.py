"""`usher transceiver` as a process: what it needs, what it announces, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from aiortc import RTCSessionDescription

from tests.transceiver_rig import POD, TOKEN, Client, MiniRelay, Rig, until, write_files
from usher_core.datagram import DatagramClass, classify
from usher_core.internal_api import BASE_PATH

HOP_KEY = bytes(range(16))


def command(folder: Path, *flags: str) -> list[str]:
    files = [f"--keys-file={folder / 'transceiver.json'}", f"--token-file={folder / 'token'}"]
    where = ["--udp=127.0.0.1:0", "--http=127.0.0.1:0", "--socket-buffer=212992"]
    return [sys.executable, "-m", "usher_cli", "transceiver", *files, *where, *flags]


def environment(**extra: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("USHER_")} | extra


class Process:
    """A running transceiver, with a relay and clients in front of it."""

    def __init__(self, process: asyncio.subprocess.Process, announced: dict[str, Any]) -> None:
        self.process = process
        self.announced = announced
        self.relay = MiniRelay(HOP_KEY)
        self.http = httpx.AsyncClient(
            base_url=announced["http"], headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False
        )
        self.rig = Rig(SimpleNamespace(), self.relay, self.http)  # type: ignore[arg-type]

    async def call(self) -> Client:
        client = self.rig.client()
        created = await self.rig.create(await client.offer())
        client.session_id = created["session_id"]
        await client.pc.setRemoteDescription(RTCSessionDescription(created["answer"], "answer"))
        await until(lambda: client.of_type("session.created"), "greeted")
        return client

    async def get(self, path: str) -> Any:
        return (await self.http.get(BASE_PATH + path)).json()


@contextlib.asynccontextmanager
async def transceiver(folder: Path, *flags: str) -> AsyncIterator[Process]:
    write_files(folder, HOP_KEY)
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command(folder, f"--pod={POD}", *flags),
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        running = Process(process, json.loads(line))
        await running.relay.start(running.announced["udp"])
        yield running
        await asyncio.gather(*(client.close() for client in running.rig.clients), return_exceptions=True)
        await running.http.aclose()
        running.relay.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert "Traceback" not in (folder / "log").read_text()


async def test_it_announces_where_it_is_and_ends_with_0_when_nobody_calls(tmp_path: Path) -> None:
    async with transceiver(tmp_path) as running:
        assert running.announced == {
            "ready": True,
            "program": "transceiver",
            "udp": running.announced["udp"],
            "http": running.announced["http"],
            "pod": POD,
        }
        assert (await running.http.get("/livez")).text == "ok\n"
        load = {"sessions": 0, "max_sessions": 100, "draining": False, "accepts": True, "created": 0, "tenants": {}}
        shown = await running.get("/load")
        assert {name: value for name, value in shown.items() if name not in ("cpu", "loop_lag_ms")} == load
        assert shown["cpu"] >= 0 <= shown["loop_lag_ms"]
        started = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.process.wait(), 5) == 0
        assert time.monotonic() - started < 2


async def test_the_first_signal_drains_and_it_ends_with_the_last_call(tmp_path: Path) -> None:
    async with transceiver(tmp_path) as running:
        client = await running.call()
        running.process.send_signal(signal.SIGTERM)
        await until_draining(running)
        refused = await running.rig.post("/sessions", running.rig.body("v=0"))
        assert refused.status_code == 503
        await until(client.hears_tone, "the call goes on")
        await client.pc.close()
        assert await asyncio.wait_for(running.process.wait(), 5) == 0


async def until_draining(running: Process) -> None:
    for _ in range(500):
        if (await running.get("/load"))["draining"]:
            return
        await asyncio.sleep(0.01)
    pytest.fail("it does not drain")


@pytest.mark.parametrize("how", ["second signal", "deadline"])
async def test_what_is_left_is_ended_with_close_notify(tmp_path: Path, how: str) -> None:
    deadline = "600" if how == "second signal" else "0.3"
    async with transceiver(tmp_path, f"--drain-deadline={deadline}") as running:
        clients = [await running.call() for _ in range(3)]
        running.process.send_signal(signal.SIGTERM)
        if how == "second signal":
            await until_draining(running)
            running.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.process.wait(), 5) == 0
        for client in clients:
            await until(lambda client=client: client.pc.connectionState == "closed", "told of the end")  # type: ignore[misc]


@pytest.mark.programs
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a datagram came")
async def test_speech_that_waited_while_the_process_stood_still_is_dropped_and_the_call_goes_on(tmp_path: Path) -> None:
    stood_still = 1.5

    async with transceiver(tmp_path) as running:
        client = await running.call()
        await until(client.hears_tone, "the tone comes back")

        async def late() -> float:
            text = (await running.http.get("/metrics")).text
            found = re.search(r'^usher_transceiver_drops_total\{reason="late"\} (\S+)', text, re.MULTILINE)
            return float(found[1]) if found else 0.0

        assert await late() == 0
        running.process.send_signal(signal.SIGSTOP)
        sent = len(running.relay.log.up)
        await asyncio.sleep(stood_still)
        running.process.send_signal(signal.SIGCONT)
        speech = sum(classify(payload) is DatagramClass.RTP for _, _, payload in running.relay.log.up[sent:])
        heard = len(client.frames)
        await until(lambda: len(client.frames) > heard + 25 and client.hears_tone(), "the tone goes on")
        dropped = await late()
        # All but the last 200 ms; a machine that is slow to wake the process up makes it more, never less.
        assert speech - 0.2 * 50 - 3 <= dropped <= speech + 10
        assert (await running.get(f"/sessions/{client.session_id}"))["state"] == "connected"
        before = await late()
        heard = len(client.frames)
        await until(lambda: len(client.frames) > heard + 50, "another second of it")
        assert await late() == before, "nothing is late once it keeps up"


async def test_without_a_pod_id_it_refuses_to_start(tmp_path: Path) -> None:
    write_files(tmp_path, HOP_KEY)
    assert "pod" in await failure(tmp_path)


async def test_the_pod_id_may_come_from_the_environment(tmp_path: Path) -> None:
    write_files(tmp_path, HOP_KEY)
    assert "backend 'no-such'" in await failure(tmp_path, "--backend=no-such", USHER_POD="12")


@pytest.mark.parametrize(
    "breaks,says",
    [
        ("transceiver.json", "key file"),
        ("token", "token"),
        ("--udp=192.0.2.1:1", "--udp 192.0.2.1:1"),
        ("--http=192.0.2.1:1", "HTTP on 192.0.2.1:1"),
        ("--cluster=9", "cluster 9"),
        ("--max-sessions=0", "--max-sessions"),
        ("--backend-config-file=/nonexistent", "/nonexistent"),
    ],
)
async def test_what_is_wrong_at_the_start_is_said_in_one_line(tmp_path: Path, breaks: str, says: str) -> None:
    write_files(tmp_path, HOP_KEY)
    flags = ["--pod=1"]
    if breaks.startswith("--"):
        flags.append(breaks)
    else:
        (tmp_path / breaks).write_text("{")
    assert says in await failure(tmp_path, *flags)


def times_read(log: Path) -> int:
    return sum("file read" in line and "key file" in line for line in log.read_text().splitlines())


async def failure(folder: Path, *flags: str, **extra: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command(folder, *flags),
        env=environment(**extra),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, log = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert out == b""
    assert b"Traceback" not in log
    return log.decode().splitlines()[-1]


async def test_changed_keys_are_used_without_a_restart_and_broken_ones_are_not(tmp_path: Path) -> None:
    async with transceiver(tmp_path) as running:
        client = await running.call()
        (tmp_path / "transceiver.json").write_text("{")
        await until(lambda: "file lost" in (tmp_path / "log").read_text(), "the broken file is said")
        await until(client.hears_tone, "the call goes on")
        new_key = secrets.token_bytes(16)
        write_files(tmp_path, new_key)
        await until(lambda: times_read(tmp_path / "log") >= 2, "read again")
        # The relay of this test knows one key, so from now on it has to be the new one.
        running.relay.hop_key = new_key
        before = len(client.frames)
        await until(lambda: len(client.frames) > before + 20, "the call goes on under the new key")
        await running.call()
