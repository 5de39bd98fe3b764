"""What the audio of a call costs: CPU milliseconds per second and session, and how many sessions that makes on a core.

Run it:  .venv/bin/python benches/media_capacity.py [--sessions 60] [--seconds 8]

Each session is what a real call has between its socket and its model: SRTP both ways, jitter buffer, decoder, speech
detection, the echo backend, play queue, encoder, RTP, RTCP. The audio is made up: voice-like harmonics and noise with
a pause of 1 s in 4 s. The clock is virtual, so nothing sleeps and only this process' CPU time counts. Not in it: the
socket, the hop header and the event loop.
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import _machine
import numpy as np
from pylibsrtp import Policy, Session

from usher_core.errors import LocalError
from usher_core.rtp import is_rtcp
from usher_transceiver.backends.echo import EchoBackend
from usher_transceiver.backends.protocol import AudioFrame, Event
from usher_transceiver.media.codec import Codec, EncoderSettings
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE
from usher_transceiver.media.opus import LibOpus
from usher_transceiver.media.opus_pyav import PyAvOpus
from usher_transceiver.media.rtp import RtpPacket, build_rtp
from usher_transceiver.media.stream import AudioStream, StreamParameters

KEY = bytes(range(30))


@dataclass(frozen=True)
class Work:
    """One line of the table."""

    name: str
    codec: Codec
    settings: EncoderSettings
    kind: Literal["pcm", "opus"] = "pcm"


class BenchCall:
    """The least that an echo needs of a call."""

    id = "bench"
    session: Mapping[str, Any] = {}
    metadata: Mapping[str, str] = {}
    queued_ms = played_ms = 0

    def __init__(self, stream: AudioStream) -> None:
        self.play = stream.play
        self.play_opus = stream.play_opus
        self.clear = stream.clear

    def send_event(self, event: Event) -> None: ...

    def end(self, reason: str) -> None: ...


def _srtp(direction: int) -> Session:
    return Session(policy=Policy(key=KEY, ssrc_type=direction))


class BenchSession:
    """One call between the wire and its backend."""

    def __init__(self, work: Work, ssrc: int, packets: list[bytes], count: int) -> None:
        self._work = work
        self._backend = EchoBackend({})
        parameters = StreamParameters(
            ssrc=ssrc,
            cname="bench",
            payload_type=111,
            mid="0",
            mid_extension_id=4,
            level_extension_id=1,
            kind=work.kind,
            encoder=work.settings,
        )
        self._stream = AudioStream(parameters, work.codec, self._hear, 0.0, Random(ssrc))
        self._backend._call = BenchCall(self._stream)  # noqa: SLF001 - start() is a coroutine and does only this

        self._inbound, self._outbound = _srtp(Policy.SSRC_ANY_INBOUND), _srtp(Policy.SSRC_ANY_OUTBOUND)
        client = _srtp(Policy.SSRC_ANY_OUTBOUND)
        payloads = (packets[(number + 7 * ssrc) % len(packets)] for number in range(count))
        self._wire = [
            client.protect(build_rtp(RtpPacket(111, number, number * 960, 9000 + ssrc, payload)))
            for number, payload in enumerate(payloads)
        ]

    def _hear(self, frame: AudioFrame) -> None:
        if self._work.kind == "pcm":
            self._backend.on_audio(frame)
        else:
            self._stream.play_opus(frame.data)

    def tick(self, number: int) -> int:
        """Receive one packet, send what is due; return how many."""
        now = number * FRAME_SECONDS
        self._stream.on_rtp(now, self._inbound.unprotect(self._wire[number]))
        packets = self._stream.tick(now + FRAME_SECONDS / 2)
        for packet in packets:
            (self._outbound.protect_rtcp if is_rtcp(packet) else self._outbound.protect)(packet)
        return len(packets)


def voice(seconds: int) -> bytes:
    """PCM that costs an encoder about what speech costs it."""
    t = np.arange(SAMPLE_RATE * seconds) / SAMPLE_RATE
    pitch = 2 * np.pi * np.cumsum(130 + 25 * np.sin(2 * np.pi * 0.6 * t)) / SAMPLE_RATE
    sound = sum(np.sin(k * pitch) / k for k in range(1, 24)) / 4
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * t) + 0.4, 0, 1) * (t % 4 < 3)
    noise = np.random.default_rng(1).normal(0, 0.003, len(t))
    return bytes((np.clip(sound * syllables + noise, -1, 1) * 20_000).astype(np.int16))


def measure(work: Work, sessions: int, seconds: int) -> float:
    """Return CPU milliseconds per second and session."""
    pcm = voice(8)
    encoder = work.codec.encoder(EncoderSettings())
    packets = [encoder.encode(pcm[at : at + FRAME_BYTES]) for at in range(0, len(pcm), FRAME_BYTES)]
    ticks = round(seconds / FRAME_SECONDS)
    running = [BenchSession(work, ssrc + 1, packets, ticks) for ssrc in range(sessions)]
    begin = time.process_time()
    sent = sum(session.tick(number) for number in range(ticks) for session in running)
    spent = time.process_time() - begin
    if sent < 0.95 * ticks * sessions:
        raise SystemExit(f"{work.name}: the echo did not come back")
    return spent * 1000 / seconds / sessions


def works() -> Iterator[Work]:
    """What is compared."""
    try:
        native = LibOpus()
    except LocalError as error:
        print(error)
    else:
        print(native.name)
        yield Work("as shipped: audio, complexity 5, 64 kbit/s", native, EncoderSettings())
        yield Work("audio, complexity 5, 32 kbit/s", native, EncoderSettings(bitrate=32_000))
        yield Work("audio, complexity 0", native, EncoderSettings(complexity=0))
        yield Work("audio, complexity 9", native, EncoderSettings(complexity=9))
        yield Work("voip, complexity 5", native, EncoderSettings(application="voip"))
        yield Work("packets passed through", native, EncoderSettings(), kind="opus")
    fallback = PyAvOpus()
    print(fallback.name)
    yield Work("as shipped", fallback, EncoderSettings())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=60)
    parser.add_argument("--seconds", type=int, default=8)
    options = parser.parse_args()
    print(_machine.line())
    print(f"{'':46}{'ms CPU per second and session':>30}{'sessions per core':>20}")
    for work in works():
        cost = measure(work, options.sessions, options.seconds)
        print(f"  {work.name:44}{cost:>30.2f}{1000 / cost:>20.0f}", flush=True)


if __name__ == "__main__":
    main()
