"""Calls of stock aiortc through a minimal relay: audio both ways, events, hang-up."""

from __future__ import annotations

from pathlib import Path

from tests.transceiver_rig import rig, until


async def test_a_tone_comes_back_and_the_data_channel_greets(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = running.client()
        session = await client.call()
        await until(client.hears_tone, "the tone is heard")
        await until(lambda: client.events, "an event came")
        assert client.events[0]["type"] == "session.created"
        assert client.events[0]["session"]["id"] == f"sess_{session.facts.session_id}"
