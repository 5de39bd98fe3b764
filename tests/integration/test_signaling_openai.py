"""The unmodified `openai` Python package on the side-band of a call that a stock client made to a real `usher up`."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription

from tests.integration.fleet import running_fleet
from tests.transceiver_rig import until

pytestmark = pytest.mark.timeout(120)


@contextlib.asynccontextmanager
async def call(client: openai.AsyncOpenAI) -> AsyncIterator[tuple[str, RTCDataChannel, list[str]]]:
    """A call with a data channel: its id, the channel, and the events that its client gets."""
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
        yield placed.headers["location"].rpartition("/")[2], channel, events
    finally:
        await pc.close()


async def test_a_page_with_the_policy_for_browsers_neither_changes_nor_sees_the_prompt_and_its_server_does_both(
    tmp_path: Path,
) -> None:
    with running_fleet(tmp_path) as fleet:
        base_url = f"{fleet.url}/v1"
        async with openai.AsyncOpenAI(api_key="none is asked for", base_url=base_url) as server:
            session: Any = {"type": "realtime", "instructions": "Answer in rhymes."}
            policy = {"event_policy": "browser"}
            secret = await server.realtime.client_secrets.create(session=session, extra_body=policy)
            page = openai.AsyncOpenAI(api_key=secret.value, base_url=base_url)
            async with page, call(page) as (call_id, channel, events):
                channel.send('{"type": "session.update", "event_id": "mine", "session": {"instructions": "Swear."}}')
                await until(lambda: any("event_not_allowed" in event for event in events), "refused")
                async with server.realtime.connect(call_id=call_id) as connection:
                    created: Any = (await connection.recv()).to_dict()
                    assert created["session"]["instructions"] == "Answer in rhymes."
                    await connection.session.update(session={"type": "realtime", "instructions": "Answer in verse."})
                    updated: Any = (await connection.recv()).to_dict()
                    assert updated["session"]["instructions"] == "Answer in verse."
                await until(lambda: any('"session.updated"' in event for event in events), "the page learns of it")
                with pytest.raises(Exception, match="403"):
                    await page.realtime.connect(call_id=call_id).enter()
            assert not any("instructions" in event for event in events)


async def test_the_package_joins_a_call_steers_it_and_learns_of_its_end(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet:
        async with openai.AsyncOpenAI(api_key="none is asked for", base_url=f"{fleet.url}/v1") as client:
            async with call(client) as (call_id, _, events), client.realtime.connect(call_id=call_id) as connection:
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
                # Not one of the package's own, and no trouble for it.
                assert [(event.type, event.to_dict()["reason"]) for event in left] == [("usher.call.ended", "hangup")]
            with pytest.raises(Exception, match="404"):
                await client.realtime.connect(call_id=call_id).enter()
            with pytest.raises(openai.NotFoundError) as gone:
                await client.realtime.calls.hangup(call_id)
            assert gone.value.code == "call_not_found"
