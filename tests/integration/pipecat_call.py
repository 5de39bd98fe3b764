"""Run by test_example_backends.py where Pipecat is installed: a pipeline that talks, is interrupted, and ends the call.

Prints one line of JSON: what its call saw.
"""

import asyncio
import json
import time
from typing import Any

import pipecat_bridge
from loguru import logger
from pipecat.frames.frames import EndWorkerFrame, InputTransportMessageFrame, TTSAudioRawFrame, TTSStoppedFrame
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from usher_transceiver.backends.coroutine import CoroutineBackend
from usher_transceiver.backends.watch import BackendWatch


class Talker(FrameProcessor):  # type: ignore[misc]  # of a package that is not in this environment
    """Does what the client's events say."""

    async def process_frame(self, frame: Any, direction: Any) -> None:
        await super().process_frame(frame, direction)
        match frame.message["type"] if isinstance(frame, InputTransportMessageFrame) else None:
            case "talk":
                pcm = b"\1\1" * 24_000 * frame.message["seconds"]
                await self.push_frame(TTSAudioRawFrame(audio=pcm, sample_rate=24_000, num_channels=1))
                await self.push_frame(TTSStoppedFrame())
            case "interrupt":
                await self.broadcast_interruption()
            case "end":
                await self.push_frame(EndWorkerFrame(), FrameDirection.UPSTREAM)
            case _:
                await self.push_frame(frame, direction)


class PlayingCall:
    """Plays at the right pace what is queued."""

    id = "call-1"

    def __init__(self) -> None:
        self.accepted_ms = 0
        self.played = 0.0
        self.at = time.monotonic()
        self.cleared: list[int] = []
        self.speaks = asyncio.Event()
        self.is_cleared = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def played_ms(self) -> int:
        now = time.monotonic()
        self.played = min(self.accepted_ms, self.played + (now - self.at) * 1000)
        self.at = now
        return round(self.played)

    @property
    def queued_ms(self) -> int:
        return self.accepted_ms - self.played_ms

    def play(self, pcm: bytes) -> int:
        assert self.queued_ms >= 0
        self.accepted_ms += len(pcm) // 48
        self.speaks.set()
        return len(pcm) // 48

    def clear(self) -> int:
        self.cleared.append(self.queued_ms)
        self.accepted_ms = self.played_ms
        self.is_cleared.set()
        return self.cleared[-1]

    def send_event(self, event: Any) -> None: ...

    def end_when_told(self, reason: str) -> None:
        self.ended.set()


async def main() -> None:
    logger.remove()
    pipecat_bridge.Echo = Talker
    call: Any = PlayingCall()
    backend = CoroutineBackend(pipecat_bridge.run, "pipecat", BackendWatch(time.monotonic), {})
    await backend.start(call)
    backend.on_event({"type": "talk", "seconds": 60})
    await asyncio.wait_for(call.speaks.wait(), 30)
    await asyncio.sleep(1)
    backend.on_event({"type": "interrupt"})
    await asyncio.wait_for(call.is_cleared.wait(), 30)
    await asyncio.sleep(0.5)
    interrupted_at = call.played_ms
    call.speaks.clear()
    backend.on_event({"type": "talk", "seconds": 2})
    await asyncio.wait_for(call.speaks.wait(), 30)
    backend.on_event({"type": "end"})
    await asyncio.wait_for(call.ended.wait(), 30)
    print(json.dumps({"cleared": call.cleared, "interrupted_at": interrupted_at, "played": call.played_ms}))
    await backend.close("backend_ended")


asyncio.run(main())
