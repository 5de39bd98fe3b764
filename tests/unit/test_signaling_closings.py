"""Placements that no transceiver answered in time: they are closed, within a bound that is counted. In virtual time."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.virtual_loop import run_virtual
from usher_core.internal_api import AdvertisedAddress, CreateSession
from usher_signaling import transceiver_client
from usher_signaling.metrics import Metrics
from usher_signaling.transceiver_client import TimedOutError, TransceiverClient


def test_closings_beyond_the_bound_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transceiver_client, "MAX_CLOSING", 3)
    came: list[str] = []
    metrics = Metrics()

    async def hang(request: httpx.Request) -> httpx.Response:
        came.append(request.method)
        await asyncio.sleep(60)
        raise AssertionError

    async def run() -> None:
        client = TransceiverClient(lambda: "token", metrics, httpx.MockTransport(hang))

        async def create(number: int) -> None:
            where = AdvertisedAddress(listener=1, host="192.0.2.1", port=3478)
            asked = CreateSession(request_id=f"request-{number}", tenant="acme", offer="v=0", advertise=(where,))
            with pytest.raises(TimedOutError):
                _ = await client.create("http://transceiver.test", asked, 1.0)

        await asyncio.gather(*(create(number) for number in range(5)))
        await client.close()

    run_virtual(run())
    assert (came.count("POST"), came.count("DELETE")) == (5, 3)
    assert metrics.closings_left_out._value.get() == 2
