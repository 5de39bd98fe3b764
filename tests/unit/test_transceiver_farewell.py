"""A backend that hangs up once its client knows why: how long that waits, and what reasons it may give."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.direct_rig import DirectRig
from tests.raw_client import RawClient
from tests.virtual_loop import run_virtual
from usher_transceiver.session import FAREWELL_LIMIT_S, EndReason, Session


class DataClient(RawClient):
    """Offers a data channel, and never opens it."""

    def offer(self) -> str:
        audio = super().offer().replace("BUNDLE audio", "BUNDLE audio data")
        _, _, transport = audio.partition(f"{self.codec}\r\n")
        return (
            f"{audio}m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:data\r\na=sctp-port:5000\r\n{transport}"
        )


def play(folder: Path, kind: type[RawClient], scenario: Callable[[RawClient, Any], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = DirectRig(folder)
        client: Any = kind(rig, 2000)  # type: ignore[arg-type]
        await client.create()
        await client.connect()
        await scenario(client, rig.backends[0].call)
        await rig.sessions.end_all(EndReason.SHUTDOWN)
        rig.close()

    run_virtual(main())


async def lasts(session: Session) -> float:
    """Return the seconds until a session has ended."""
    for hundredths in range(1000):
        if session.state == "ended":
            return hundredths / 100
        await asyncio.sleep(0.01)
    raise AssertionError("it goes on")


def test_a_client_that_has_offered_a_channel_gets_two_seconds_to_open_it(tmp_path: Path) -> None:
    async def scenario(client: RawClient, call: Any) -> None:
        call.send_event({"type": "error"})
        call.end_when_told("upstream_failed")
        assert FAREWELL_LIMIT_S <= await lasts(client.session) <= FAREWELL_LIMIT_S + 0.05
        assert client.session.end_reason is EndReason.UPSTREAM_FAILED

    play(tmp_path, DataClient, scenario)


def test_a_client_that_can_not_be_told_is_not_kept(tmp_path: Path) -> None:
    async def scenario(client: RawClient, call: Any) -> None:
        call.send_event({"type": "error"})
        call.end_when_told("upstream_closed")
        assert await lasts(client.session) <= 0.05
        assert client.session.end_reason is EndReason.UPSTREAM_CLOSED

    play(tmp_path, RawClient, scenario)


@pytest.mark.parametrize("word", ["", "nonsense", "hangup", "abuse", "x" * 1000])
def test_any_other_word_of_a_backend_is_backend_ended(tmp_path: Path, word: str) -> None:
    async def scenario(client: RawClient, call: Any) -> None:
        call.end_when_told(word)
        await lasts(client.session)
        assert client.session.end_reason is EndReason.BACKEND_ENDED

    play(tmp_path, RawClient, scenario)
