"""Side-bands that signaling opens: a redirect leads nowhere."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.signaling_regions import REGION_TOKEN
from usher_core.event_policy import OPEN
from usher_signaling.metrics import Metrics
from usher_signaling.peer_regions.client import PeerClient, PeerError
from usher_signaling.peer_regions.origin import Origin, RegionTokens
from usher_signaling.transceiver_client import RefusedError, TransceiverClient


async def observe_peer(base: str) -> Any:
    client = PeerClient(lambda: RegionTokens((REGION_TOKEN,)), ssl.create_default_context())
    return await client.observe(base, "/v1/realtime?call_id=rtc_a", "Bearer key", Origin("us"))


async def observe_transceiver(base: str) -> Any:
    return await TransceiverClient(lambda: "token", Metrics()).observe(base, "00", OPEN)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize(("observe", "error"), [(observe_peer, PeerError), (observe_transceiver, RefusedError)])
async def test_tokens_go_to_nobody_that_a_redirect_names(
    observe: Callable[[str], Awaitable[Any]], error: type[Exception], status: int
) -> None:
    came: list[bytes] = []

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.readuntil(b"\r\n\r\n"))
        port = writer.get_extra_info("sockname")[1]
        answer = f"HTTP/1.1 {status} Moved\r\nLocation: ws://127.0.0.1:{port}/steal\r\nContent-Length: 0\r\n\r\n"
        writer.write(answer.encode())
        writer.close()

    server = await asyncio.start_server(redirect, "127.0.0.1", 0)
    async with server:
        with pytest.raises(error):
            await observe(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert len(came) == 1
    assert b"token" in came[0].lower()
