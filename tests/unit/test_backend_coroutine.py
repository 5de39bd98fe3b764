"""Backends that are one coroutine, in calls of real sessions and in virtual time."""

import asyncio
import gc
import json
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.direct_rig import DirectRig
from tests.media_tone import tone
from tests.raw_client import RawClient
from tests.virtual_loop import run_virtual
from usher_transceiver.backends import coroutine
from usher_transceiver.backends.coroutine import Call, CoroutineBackend, Run
from usher_transceiver.session import EndReason, Session

Scenario = Callable[[DirectRig, RawClient], Awaitable[None]]


class Onlooker:
    """Sees what goes to the client."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def offer(self, text: str) -> bool:
        self.events.append(json.loads(text))
        return True

    def dropped(self, reason: str) -> None:
        self.events.append({"type": "dropped", "reason": reason})

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event["error"] for event in self.events if event["type"] == "error"]


def backend(rig: DirectRig, run: Run, config: dict[str, Any] | None = None) -> None:
    """Make `run` the backend of the rig's calls from now on."""
    rig.sessions._backends["fake"] = partial(CoroutineBackend, run, "mine", rig.sessions.backend_watch)
    rig.sessions._settings = replace(rig.sessions._settings, backend_config=config or {})


def play(folder: Path, run: Run, scenario: Scenario, **create: Any) -> None:
    async def main() -> None:
        rig = DirectRig(folder)
        backend(rig, run, create.pop("config", None))
        client = RawClient(rig, 2000)  # type: ignore[arg-type]
        await client.create(**create)
        await scenario(rig, client)
        await rig.sessions.end_all(EndReason.SHUTDOWN)
        rig.close()

    run_virtual(main())


async def speak(client: RawClient, seconds: float) -> None:
    for _ in range(round(seconds / 0.02)):
        client.speak()
        await asyncio.sleep(0.02)


def test_it_hears_speaks_and_sees_the_call(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    async def run(call: Call) -> None:
        seen.update(id=call.id, metadata=call.metadata, session=call.session["voice"], config=call.config)
        async for frame in call.audio:
            seen.setdefault("positions", []).append(frame.position_ms)
            assert await call.play(tone(440, seconds=0.02)) == 20

    async def scenario(_rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await speak(client, 1)
        assert seen["id"] == client.session.facts.session_id
        assert (seen["metadata"], seen["session"], seen["config"]) == ({"name": "Ada"}, "verse", {"model": "m"})
        positions = seen["positions"]
        assert positions == [20 * number for number in range(len(positions))]
        assert len(positions) >= 45
        assert client.session.stream.played_ms >= 900
        assert len(client.rtp) >= 45

    play(tmp_path, run, scenario, metadata={"name": "Ada"}, session={"voice": "verse"}, config={"model": "m"})


def test_events_come_in_order_and_are_answered(tmp_path: Path) -> None:
    async def run(call: Call) -> None:
        async for event in call.events:
            call.send_event({"type": "answer", "to": event["number"]})

    async def scenario(_rig: DirectRig, client: RawClient) -> None:
        onlooker = Onlooker()
        client.session.events.observe(onlooker, client_events=False)
        for number in range(3):  # the first ones come before `run` has begun
            client.session.on_message(json.dumps({"type": "question", "number": number}))
        await asyncio.sleep(0.1)
        client.session.on_message(json.dumps({"type": "question", "number": 3}))
        await asyncio.sleep(0.1)
        answers = [event["to"] for event in onlooker.events if event["type"] == "answer"]
        assert answers == [0, 1, 2, 3]
        assert onlooker.errors == []

    play(tmp_path, run, scenario)


def test_play_waits_while_the_queue_is_full_and_nothing_is_dropped(tmp_path: Path) -> None:
    times: list[float] = []

    async def run(call: Call) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            begun = loop.time()
            assert await call.play(tone(440, seconds=50)) == 50_000
            times.append(loop.time() - begun)
        await asyncio.Event().wait()

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await speak(client, 45)
        assert times[0] == 0
        assert 35 <= times[1] <= 45, "until no more than a minute is queued"
        assert client.session.stream.stats(rig.clock()).queue_dropped_ms == 0

    play(tmp_path, run, scenario)


def test_ahead_ms_keeps_little_in_the_queue_and_the_queue_never_empty(tmp_path: Path) -> None:
    queued: list[int] = []

    async def run(call: Call) -> None:
        await call.play(tone(440, seconds=3), ahead_ms=200)

    async def scenario(_rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        for _ in range(100):
            await speak(client, 0.02)
            queued.append(client.session.stream.queued_ms)
        assert min(queued[5:]) >= 100
        assert max(queued) <= 320

    play(tmp_path, run, scenario)


def test_clear_drops_what_is_queued_and_what_play_waits_with(tmp_path: Path) -> None:
    seen: list[int] = []

    async def run(call: Call) -> None:
        speaking = asyncio.create_task(call.play(tone(440, seconds=90)))
        async for _ in call.audio:
            if call.played_ms >= 1000 and not seen:
                seen.append(call.clear())
                seen.append(await speaking)
                seen.append(call.queued_ms)

    async def scenario(_rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await speak(client, 3)
        dropped, queued, left = seen
        assert 59_000 <= dropped <= 60_100
        assert 60_000 <= queued <= 61_200
        assert left == 0
        assert client.session.stream.played_ms < 1200

    play(tmp_path, run, scenario)


def test_hang_up_cancels_it_and_waits_until_it_has_cleaned_up(tmp_path: Path) -> None:
    steps: list[str] = []

    async def listen(call: Call) -> None:
        async for _ in call.audio:
            pass
        steps.append("a task of its own reads to the end")

    async def run(call: Call) -> None:
        listening = asyncio.create_task(listen(call))
        try:
            await call.play(tone(440, seconds=90))
        finally:
            steps.append("cancelled")
            await listening
            await asyncio.sleep(3)
            await call.play(tone(440, seconds=90))  # to nobody, so it waits for nothing
            await call.wait_played()
            steps.append("cleaned up")

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await speak(client, 1)
        with capture_logs() as entries:
            client.session.end(EndReason.HANGUP)
            assert client.session.finished is not None
            await client.session.finished
        assert sorted(steps[:2]) == ["a task of its own reads to the end", "cancelled"]
        assert steps[2:] == ["cleaned up"]
        assert {entry["log_level"] for entry in entries} == {"info"}

    play(tmp_path, run, scenario)


def test_one_that_will_not_be_cancelled_is_logged_and_holds_nobody_up(tmp_path: Path) -> None:
    async def run(call: Call) -> None:
        while True:
            try:
                await asyncio.sleep(60)
                return
            except asyncio.CancelledError:
                pass

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await asyncio.sleep(0.1)
        with capture_logs() as entries:
            client.session.end(EndReason.HANGUP)
            assert client.session.finished is not None
            await client.session.finished
        assert [entry["event"] for entry in entries if entry["log_level"] == "error"] == ["the backend did not close"]
        await asyncio.sleep(60)

    play(tmp_path, run, scenario)


async def raises_cancelled(call: Call) -> None:
    await anext(call.audio)
    asleep = asyncio.ensure_future(asyncio.sleep(10))
    asyncio.get_running_loop().call_later(0.1, asleep.cancel)
    await asleep


async def raises_exit(call: Call) -> None:
    await anext(call.audio)
    raise SystemExit("s3cret")


async def raises_key_error(call: Call) -> None:
    await anext(call.audio)
    raise KeyError("s3cret")


async def raises_within_a_group(call: Call) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises_key_error(call))


@pytest.mark.parametrize("run", [raises_cancelled, raises_exit, raises_key_error, raises_within_a_group])
def test_what_it_raises_is_one_error_event_without_internals_and_the_end_of_its_call_alone(
    tmp_path: Path, run: Run
) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        onlooker = Onlooker()
        client.session.events.observe(onlooker)
        backend(rig, only_listens)
        other = RawClient(rig, 3000)  # type: ignore[arg-type]
        await other.create()
        with capture_logs() as entries:
            await speak(client, 3)
        assert [error["code"] for error in onlooker.errors] == ["backend_failed"]
        assert "s3cret" not in json.dumps(onlooker.events)
        assert client.session.end_reason is EndReason.BACKEND_FAILED
        assert not other.session.has_ended
        (failure,) = (entry for entry in entries if entry["log_level"] == "error")
        assert (failure["event"], failure["backend"]) == ("the backend failed", "mine")
        assert failure["session"] == client.session.facts.session_id

    play(tmp_path, run, scenario)


async def only_listens(call: Call) -> None:
    async for _ in call.audio:
        pass


def test_when_it_returns_the_call_ends_after_the_last_word(tmp_path: Path) -> None:
    async def run(call: Call) -> None:
        await call.play(tone(440, seconds=2))

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        begun = rig.clock()
        onlooker = Onlooker()
        client.session.events.observe(onlooker)
        while not client.session.has_ended:
            await speak(client, 0.02)
            client.session.on_message('{"type": "to.nobody"}')
        assert client.session.end_reason is EndReason.BACKEND_ENDED
        assert client.session.stream.played_ms == 2000
        assert rig.clock() - begun == pytest.approx(2 + coroutine.LINGER_S, abs=0.1)
        assert onlooker.errors == []

    play(tmp_path, run, scenario)


@pytest.mark.parametrize("ending", ["hang-up", "return", "raise"])
def test_no_call_is_left_when_it_has_ended(tmp_path: Path, ending: str) -> None:
    calls: list[weakref.ref[Call]] = []
    sessions: list[weakref.ref[Session]] = []

    async def run(call: Call) -> None:
        calls.append(weakref.ref(call))
        async for _ in call.audio:
            if ending == "raise":
                raise ValueError("as it was asked to")
            if ending == "return":
                return

    async def scenario(_rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        with capture_logs():  # who prints a traceback with its variables keeps them
            await speak(client, 0.1)
            if ending == "hang-up":
                client.session.end(EndReason.HANGUP)
            await asyncio.sleep(1)
        assert client.session.has_ended
        sessions.append(weakref.ref(client.session))
        del client.session
        assert calls[0]() is None, "without a garbage collection"

    play(tmp_path, run, scenario)
    gc.collect()
    assert sessions[0]() is None


def test_it_may_hang_up(tmp_path: Path) -> None:
    steps: list[str] = []

    async def run(call: Call) -> None:
        call.end("enough")
        try:
            await asyncio.sleep(10)
        finally:
            steps.append("cancelled")

    async def scenario(_rig: DirectRig, client: RawClient) -> None:
        await asyncio.sleep(0.1)
        assert client.session.end_reason is EndReason.BACKEND_ENDED
        assert steps == ["cancelled"]

    play(tmp_path, run, scenario)


def test_audio_that_waits_is_bounded_and_the_oldest_makes_room(tmp_path: Path) -> None:
    positions: list[int] = []

    async def run(call: Call) -> None:
        async for frame in call.audio:
            positions.append(frame.position_ms)
            if len(positions) == 1:
                await asyncio.sleep(15)

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await speak(client, 16)
        lost = positions[1] - 20
        assert 4500 <= lost <= 5100
        assert rig.sessions.backend_watch.unheard_ms == lost
        assert positions[1:] == list(range(positions[1], positions[-1] + 20, 20))

    play(tmp_path, run, scenario)


def test_one_that_never_listens_misses_nothing(tmp_path: Path) -> None:
    async def run(_call: Call) -> None:
        await asyncio.Event().wait()

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await speak(client, 15)
        assert rig.sessions.backend_watch.unheard_ms == 0

    play(tmp_path, run, scenario)


def test_events_that_wait_are_bounded_and_further_ones_are_refused(tmp_path: Path) -> None:
    sizes: list[int] = []

    async def run(call: Call) -> None:
        await asyncio.sleep(1)
        async for event in call.events:
            sizes[len(sizes) :] = [len(event["text"])]

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await asyncio.sleep(0.1)
        onlooker = Onlooker()
        client.session.events.observe(onlooker, client_events=False)
        for number in range(12):
            client.session.on_message(json.dumps({"type": "long", "event_id": f"e{number}", "text": "x" * 100_000}))
        assert [(error["code"], error["event_id"]) for error in onlooker.errors] == [
            ("too_many_events", "e10"),
            ("too_many_events", "e11"),
        ]
        assert rig.sessions.backend_watch.refused_events == 2
        await asyncio.sleep(2)
        assert sizes == [100_000] * 10
        client.session.on_message('{"type": "short", "text": "x"}')
        await asyncio.sleep(0.1)
        assert sizes[10:] == [1]

    play(tmp_path, run, scenario)


def test_one_that_has_fallen_behind_lets_others_run_while_it_catches_up(tmp_path: Path) -> None:
    turns: list[str] = []

    async def run(call: Call) -> None:
        await asyncio.sleep(2)
        asyncio.get_running_loop().call_soon(turns.append, "another")
        for _ in range(3):
            await anext(call.audio)
            turns.append("frame")

    async def scenario(_rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await speak(client, 3)
        assert turns[:3] == ["another", "frame", "frame"]

    play(tmp_path, run, scenario)
