"""Starts the whole system the way a person does: `usher up`."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Page

READY_WITHIN_S = 30
STOPPED_WITHIN_S = 10


@dataclass(frozen=True, slots=True)
class Stack:
    url: str  # of signaling, without a slash at the end
    key: str  # the API key, empty where none is asked for
    state: dict[str, Any]  # what `usher up --state-file` wrote

    @property
    def calls_url(self) -> str:
        return f"{self.url}/v1/realtime/calls"

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@contextmanager
def usher_up(folder: Path, *flags: str, key: str = "", modules: Path | None = None) -> Iterator[Stack]:
    """Runs `usher up` with its log in `folder`; raises AssertionError with that log when it does not get ready.

    `modules`: a folder of further distributions.
    """
    state_file, log_file = folder / "state.json", folder / "usher-up.log"
    command = [str(Path(sys.executable).with_name("usher")), "up", "--http", "127.0.0.1:0", "--udp", "127.0.0.1:0"]
    command += ["--state-file", str(state_file), *flags, *(["--api-key", key] if key else [])]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("USHER_")}
    clean |= {"PYTHONPATH": str(modules)} if modules else {}
    with log_file.open("wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=clean) as up:
        try:
            url = _ready_url(up, log_file)
            yield Stack(url.rstrip("/"), key, json.loads(state_file.read_text()))
        finally:
            up.send_signal(signal.SIGINT)
            try:
                up.wait(STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                up.kill()
                raise


async def ephemeral_key(page: Page, usher: Stack, model: str = "echo", **more: Any) -> str:
    """What a product's own server asks for before it hands the page to a person."""
    response = await page.request.post(
        f"{usher.url}/v1/realtime/client_secrets",
        headers=usher.authorization,
        data={"session": {"type": "realtime", "model": model}, **more},
    )
    assert response.status == 200, await response.text()
    key: str = (await response.json())["value"]
    assert key.startswith("ek_")
    return key


async def end_on_server(page: Page, call_url: str, headers: dict[str, str] | None = None) -> str:
    """Waits until the server says that the call has ended; returns the reason it gives."""
    async with asyncio.timeout(5):
        while True:
            told = await (await page.request.get(call_url, headers=headers)).json()
            if told["state"] == "ended":
                return str(told["end_reason"])
            await asyncio.sleep(0.02)


def _ready_url(up: subprocess.Popen[bytes], log_file: Path) -> str:
    assert up.stdout is not None
    deadline = time.monotonic() + READY_WITHIN_S
    while select.select([up.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        line = up.stdout.readline().decode()
        if line.startswith("ready "):
            return line.split()[1]
        if not line:
            break
    raise AssertionError(f"`usher up` did not say `ready URL` within {READY_WITHIN_S} s:\n{log_file.read_text()}")
