"""The unmodified `openai` Python package on the side-band of a call that a stock client made to a real `usher up`."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from tests.integration.fleet import running_fleet
from tests.transceiver_rig import until

pytestmark = pytest.mark.timeout(120)


@contextlib.asynccontextmanager
async def call(client: openai.AsyncOpenAI) -> AsyncIterator[tuple[str, list[str]]]:
    """A call with a data channel: its id, and the events that its client gets."""
    events: list[str] = []
    pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    try:
        channel = pc.createDataChannel("oai-events")
        channel.on("message", events.append)
        pc.addTransceiver("audio", direction="recvonly")
        await pc.setLocalDescription(await pc.createOffer())
        placed = await client.realtime.calls.with_raw_response.create(sdp=pc.localDescription.sdp)
        answer = placed.parse().text
        await pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        await until(lambda: events, "greeted", 20)
        yield placed.headers["location"].rpartition("/")[2], events
    finally:
        await pc.close()


async def test_the_package_joins_a_call_steers_it_and_learns_of_its_end(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet:
        async with openai.AsyncOpenAI(api_key="none is asked for", base_url=f"{fleet.url}/v1") as client:
            async with call(client) as (call_id, events), client.realtime.connect(call_id=call_id) as connection:
                created = await connection.recv()
                assert created.type == "session.created"
                await connection.session.update(session={"type": "realtime", "instructions": "Answer in rhymes."})
                updated = await connection.recv()
                assert updated.type == "session.updated"
                assert updated.session.to_dict()["instructions"] == "Answer in rhymes."
                await until(lambda: any('"Answer in rhymes."' in event for event in events), "the client sees it too")
                async with contextlib.AsyncExitStack() as second:
                    query: dict[str, Any] = {"call_id": call_id}
                    other = await second.enter_async_context(client.realtime.connect(extra_query=query))
                    assert (await other.recv()).type == "session.created"
                await client.realtime.calls.hangup(call_id)
                left = [event async for event in connection]
                assert [event.type for event in left] == []
            with pytest.raises(Exception, match="404"):
                await client.realtime.connect(call_id=call_id).enter()
            with pytest.raises(openai.NotFoundError) as gone:
                await client.realtime.calls.hangup(call_id)
            assert gone.value.code == "call_not_found"
