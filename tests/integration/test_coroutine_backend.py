"""What a stock client gets of a backend that is one coroutine: the last word, and an error event however early."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.media_tone import tone
from tests.transceiver_rig import Client, Rig, rig, until
from usher_transceiver.backends.coroutine import Call, CoroutineBackend, Run
from usher_transceiver.session import EndReason

pytestmark = pytest.mark.programs


async def calling(running: Rig, run: Run) -> Client:
    sessions = running.transceiver.sessions
    sessions._backends["mine"] = partial(CoroutineBackend, run, "mine", sessions.backend_watch)
    client = running.client()
    await client.call(backend="mine")
    return client


async def fails_at_once(_call: Call) -> None:
    raise ConnectionError("no model at 10.0.0.7")


async def fails_at_the_first_word(call: Call) -> None:
    async for _ in call.audio:
        raise ConnectionError("no model at 10.0.0.7")


@pytest.mark.parametrize("run", [fails_at_once, fails_at_the_first_word])
async def test_a_failure_reaches_the_client_as_one_event_and_then_the_call_ends(tmp_path: Path, run: Run) -> None:
    async with rig(tmp_path) as running:
        client = await calling(running, run)
        session = client.session
        await until(lambda: client.of_type("error"), "the error event came")
        await until(lambda: client.pc.connectionState == "closed", "the connection is closed")
        (event,) = client.of_type("error")
        assert event["error"]["code"] == "backend_failed"
        assert "10.0.0.7" not in str(client.events)
        assert session.end_reason is EndReason.BACKEND_FAILED


async def test_a_client_hears_the_last_word_before_the_call_ends(tmp_path: Path) -> None:
    async def run(call: Call) -> None:
        await call.play(tone(600, seconds=1))
        call.send_event({"type": "farewell"})

    async with rig(tmp_path) as running:
        client = await calling(running, run)
        await until(lambda: client.pc.connectionState == "closed", "the connection is closed")
        assert client.of_type("farewell")
        heard = np.concatenate([frame[0, ::2] for _, frame in client.frames]).astype(float)
        loud = np.abs(heard[: len(heard) // 480 * 480].reshape(-1, 480)).max(axis=1) > 2000
        assert loud.sum() * 10 == pytest.approx(1000, abs=40)
