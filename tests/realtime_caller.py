"""A caller of usher with a voice under the test's control: stock aiortc, and notes of everything that came, with times.

Audio is noted as the client's receiver gets it, in front of aiortc's jitter buffer, and decoded when asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import av
import httpx
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from tests.realtime_connection import WAIT_S, Noted, wait_until
from tests.realtime_response import Event
from usher_cli.call import source
from usher_cli.call.client import EVENTS_LABEL, _tap
from usher_cli.call.opus import FRAME_S, FRAME_SAMPLES, RATE
from usher_cli.call.reception import HeardFrame, RtpArrival, receive
from usher_cli.call.steady_checks import use_steady_checks

VOICE_HZ = 300.0
VOICE_PEAK = 32768 * 10 ** (source.TONE_LEVEL_DBFS / 20) * 2**0.5
LARGEST_MESSAGE = 262_144
"""What the offer says that we take: as browsers do. aiortc takes any length, and says 65536."""
BLOCK_SAMPLES = 120
"""2.5 ms."""
LOUD_DBFS = -30.0
"""The server's tones have -15; what Opus makes of their edges is quieter."""
TONE_WIDTH_HZ = 60.0
"""A frame of 20 ms tells frequencies apart to 50 Hz."""


class Microphone(MediaStreamTrack):
    """Ready Opus packets, one each 20 ms by the clock: a voice while `talks`, else silence."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.talks = False
        self.late_s = 0.0
        """How late a packet left at most, since a test last set it to 0: a busy machine shows here."""
        self._voice = source.tone(VOICE_HZ)
        self._index = 0
        self._began = 0.0

    async def recv(self) -> av.Packet[Any]:
        if self.readyState != "live":
            raise MediaStreamError
        self._began = self._began or time.monotonic()
        due = self._began + self._index * FRAME_S
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        self.late_s = max(self.late_s, time.monotonic() - due)
        packet = av.Packet(self._voice.payload(self._index) if self.talks else self._voice.silence)
        packet.pts = self._index * FRAME_SAMPLES
        packet.time_base = fractions.Fraction(1, RATE)
        self._index += 1
        return packet


class Caller:
    """One call. Made by `calling`; without `channel` it has audio only, as a WHIP client."""

    def __init__(self, base_url: str, api_key: str, *, channel: bool = True) -> None:
        self.microphone = Microphone()
        self.events: list[Noted] = []
        self.texts: list[str] = []
        """The same as they were written."""
        self.arrivals: list[RtpArrival] = []
        self.call_id = ""
        self.opened = False
        """Whether the data channel has ever been open."""
        self.connected_at: float | None = None
        self.ended_at: float | None = None
        self._http = httpx.AsyncClient(base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}, timeout=10)
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._peer.on("connectionstatechange", self._on_state)
        self._channel = self._peer.createDataChannel(EVENTS_LABEL) if channel else None
        if self._channel is not None:
            self._channel.on("open", self._on_open)
            self._channel.on("message", self._on_message)
            self._channel.on("close", self._on_end)
        self._peer.addTrack(self.microphone)
        receiver = self._peer.getTransceivers()[0].receiver
        _tap(receiver, self.arrivals)
        self._drain = asyncio.create_task(_drain(receiver.track))

    async def place(self, session: Event | None = None) -> None:
        """Call, and wait until one can talk, and events can be sent."""
        await self._peer.setLocalDescription(await self._peer.createOffer())
        sdp = self._peer.localDescription.sdp.replace(
            "a=max-message-size:65536", f"a=max-message-size:{LARGEST_MESSAGE}"
        )
        parts = {"sdp": (None, sdp, "application/sdp")}
        if session is not None:
            parts["session"] = (None, json.dumps(session), "application/json")
        answer = await self._http.post("/v1/realtime/calls", files=parts)
        assert answer.status_code == 201, answer.text
        self.call_id = answer.headers["Location"].rpartition("/")[2]
        await self._peer.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
        await wait_until(lambda: self.connected_at is not None, "the call is connected")
        # It may be over a moment after it was open.
        await wait_until(lambda: self._channel is None or self.opened, "the data channel was open")

    # What it does

    def send(self, event: Event | str) -> None:
        assert self._channel is not None
        self._channel.send(event if isinstance(event, str) else json.dumps(event))

    async def say(self, seconds: float = 0.4) -> None:
        """Talk for a while."""
        self.microphone.talks = True
        await asyncio.sleep(seconds)
        self.microphone.talks = False

    async def hang_up(self) -> None:
        """Close the connection, as a page that goes away."""
        await self._peer.close()

    async def close(self) -> None:
        self._drain.cancel()
        await self._peer.close()
        await self._http.aclose()

    # What came

    def types(self) -> list[str]:
        return [noted.event["type"] for noted in self.events]

    def of(self, *types: str) -> list[Noted]:
        return [noted for noted in self.events if noted.event["type"] in types]

    async def wait_for(self, event_type: str, count: int = 1, seconds: float = WAIT_S) -> Noted:
        """Wait until so many of these have come; return the last of them."""
        await self.wait_until(lambda: len(self.of(event_type)) >= count, f"{count} × {event_type}", seconds)
        return self.of(event_type)[count - 1]

    async def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
        try:
            await wait_until(condition, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; events: {self.types()}") from None

    async def wait_until_ended(self, seconds: float = WAIT_S) -> float:
        """Wait until the server ends the call; return when that was noticed."""
        await self.wait_until(lambda: self.ended_at is not None, "the call has ended", seconds)
        assert self.ended_at is not None
        return self.ended_at

    async def end_reason(self) -> str:
        """Why the call has ended, as the server tells."""
        async with asyncio.timeout(WAIT_S):
            while True:
                told = (await self._http.get(f"/v1/realtime/calls/{self.call_id}")).json()
                if told["state"] == "ended":
                    return str(told["end_reason"])
                await asyncio.sleep(0.02)

    def heard(self, hertz: float, since: float = 0.0) -> list[HeardFrame]:
        """The frames of 20 ms that hold this tone, by their place on the sender's clock."""
        frames = receive(self.arrivals).frames
        return [frame for frame in frames if frame.at >= since and abs(_pitch(frame) - hertz) < TONE_WIDTH_HZ]

    def heard_ms(self, hertz: float) -> float:
        """How long this tone sounded: a frame that holds its beginning or end counts in part."""
        return sum(_sounding_ms(frame) for frame in self.heard(hertz))

    def longest_gap_ms(self, since: float, until: float) -> float:
        """Between arrivals, less the 20 ms that a packet lasts."""
        times = [since, *(arrival.at for arrival in self.arrivals if since <= arrival.at <= until), until]
        return max(after - before for before, after in itertools.pairwise(times)) * 1000 - 20

    def _on_open(self) -> None:
        self.opened = True

    def _on_message(self, message: str) -> None:
        self.texts.append(message)
        self.events.append(Noted(time.monotonic(), json.loads(message)))

    def _on_state(self) -> None:
        if self._peer.connectionState == "connected":
            self.connected_at = self.connected_at or time.monotonic()
        elif self._peer.connectionState in ("failed", "closed"):
            self._on_end()

    def _on_end(self) -> None:
        self.ended_at = self.ended_at or time.monotonic()


@contextlib.asynccontextmanager
async def calling(
    base_url: str, api_key: str, session: Event | None = None, *, channel: bool = True
) -> AsyncIterator[Caller]:
    """Place a call; hang up in the end."""
    use_steady_checks()
    caller = Caller(base_url, api_key, channel=channel)
    try:
        await caller.place(session)
        yield caller
    finally:
        await caller.close()


def _sounding_ms(frame: HeardFrame) -> float:
    blocks = frame.samples[: len(frame.samples) // BLOCK_SAMPLES * BLOCK_SAMPLES].reshape(-1, BLOCK_SAMPLES)
    return sum(source.level_dbfs(block) > LOUD_DBFS for block in blocks) * BLOCK_SAMPLES / RATE * 1000


def _pitch(frame: HeardFrame) -> float:
    """The strongest frequency, 0 for silence."""
    if source.level_dbfs(frame.samples) < source.SOUND_DBFS:
        return 0.0
    samples = frame.samples * np.hanning(len(frame.samples))
    return float(np.argmax(np.abs(np.fft.rfft(samples, 4096))) * RATE / 4096)


async def _drain(track: MediaStreamTrack) -> None:
    """Take decoded frames away: aiortc would pile them up without bound."""
    with contextlib.suppress(MediaStreamError):
        while True:
            await track.recv()
