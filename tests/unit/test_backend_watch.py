"""A backend that holds up the loop is found out, in virtual time, where only what should take time does."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.direct_rig import DirectRig, FakeBackend
from tests.raw_client import RawClient
from tests.virtual_loop import VirtualLoop, run_virtual
from usher_transceiver.backends.coroutine import Call, CoroutineBackend
from usher_transceiver.backends.watch import LOG_EVERY_S, SLOW_S, BackendWatch, WatchedCoroutine
from usher_transceiver.session import EndReason
from usher_transceiver.watched_tasks import watch_tasks

Scenario = Callable[[DirectRig, RawClient], Awaitable[None]]


def stall(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.stall(seconds)


def play(folder: Path, prepare: Callable[[DirectRig], None], scenario: Scenario) -> None:
    async def main() -> None:
        rig = DirectRig(folder)
        prepare(rig)
        client = RawClient(rig, 2000)  # type: ignore[arg-type]
        await client.create()
        await client.connect()
        await scenario(rig, client)
        await rig.sessions.end_all(EndReason.SHUTDOWN)
        rig.close()

    run_virtual(main())


class Slow(FakeBackend):
    def on_audio(self, frame: Any) -> None:
        stall(0.08)

    def on_event(self, event: Any) -> bool:
        stall(event["takes"])
        if event["type"] == "fail":
            raise ValueError("as it was asked to")
        return True


class SlowForwarding(Slow):
    forwards_events = True

    def on_client_event(self, event: Any, text: str) -> None:
        self.on_event(event)


async def slow_steps(call: Call) -> None:
    async for event in call.events:
        await asyncio.sleep(1)
        stall(event["takes"])
        if event["type"] == "fail":
            raise ValueError("as it was asked to")


async def slow_tasks(call: Call) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(0)).cancel()  # before its first step
        working = tasks.create_task(slow_steps(call))
        assert "slow_steps" in repr(working)


def with_tasks(rig: DirectRig) -> None:
    watch_tasks(asyncio.get_running_loop())
    rig.sessions._backends["fake"] = partial(CoroutineBackend, slow_tasks, "fake", rig.sessions.backend_watch)


def with_callbacks(rig: DirectRig) -> None:
    rig.sessions._backends["fake"] = lambda _config: Slow()


def with_a_server(rig: DirectRig) -> None:
    rig.sessions._backends["fake"] = lambda _config: SlowForwarding()


def with_coroutine(rig: DirectRig) -> None:
    rig.sessions._backends["fake"] = partial(CoroutineBackend, slow_steps, "fake", rig.sessions.backend_watch)


@pytest.mark.parametrize(
    ("prepare", "callback"),
    [
        (with_callbacks, "on_event"),
        (with_a_server, "on_client_event"),
        (with_coroutine, "run"),
        (with_tasks, "run"),
    ],
)
@pytest.mark.parametrize("kind", ["work", "fail"])
def test_what_holds_up_the_loop_is_counted_and_its_call_is_named(
    tmp_path: Path, prepare: Callable[[DirectRig], None], callback: str, kind: str
) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        with capture_logs() as entries:
            client.session.on_message(json.dumps({"type": "work", "takes": SLOW_S - 0.001}))
            await asyncio.sleep(2)
            assert rig.sessions.backend_watch.slow[callback] == 0
            client.session.on_message(json.dumps({"type": kind, "takes": 0.08}))
            await asyncio.sleep(2)
        assert rig.sessions.backend_watch.slow[callback] == 1
        (entry,) = (entry for entry in entries if entry["event"] == "a backend held up all calls")
        assert (entry["log_level"], entry["backend"], entry["callback"]) == ("warning", "fake", callback)
        assert entry["session"] == client.session.facts.session_id
        assert entry["ms"] == 80

    play(tmp_path, prepare, scenario)


def test_slow_audio_is_logged_once_in_a_while_with_how_often_it_was_not(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        client.speak()
        with capture_logs() as entries:
            await asyncio.sleep(2 * LOG_EVERY_S)
        lines = [entry for entry in entries if entry["event"] == "a backend held up all calls"]
        slow = rig.sessions.backend_watch.slow["on_audio"]
        assert slow >= 100
        assert [line["callback"] for line in lines] == ["on_audio"] * len(lines)
        assert 2 <= len(lines) <= 3
        assert lines[0]["unlogged"] == 0
        assert lines[1]["unlogged"] == pytest.approx(LOG_EVERY_S / 0.08, abs=5)

    play(tmp_path, with_callbacks, scenario)


async def test_a_watched_coroutine_behaves_as_one_that_is_not() -> None:
    steps: list[str] = []

    async def works(value: int) -> int:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            steps.append("timeout")
        try:
            await asyncio.sleep(0 if value else 60)
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise
        finally:
            steps.append("finally")
        return value

    watch = BackendWatch(asyncio.get_running_loop().time)
    assert await WatchedCoroutine(works(7), watch, "call", "mine") == 7
    assert steps == ["timeout", "finally"]

    async def awaits() -> int:
        return await WatchedCoroutine(works(0), watch, "call", "mine")

    task = asyncio.create_task(awaits())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps[2:] == ["timeout", "cancelled", "finally"]

    dropped = awaits()
    dropped.send(None)
    dropped.close()
    assert sum(watch.slow.values()) == 0
