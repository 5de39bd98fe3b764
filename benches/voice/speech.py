"""The voice of the bench, as PCM and as the packets that a browser makes of it."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext

from tests.media_network import THEIRS, Arrival
from usher_transceiver.media.frame import FRAME_SECONDS, SAMPLE_RATE
from usher_transceiver.media.rtp import RtpPacket, build_rtp

SPEECH = Path(__file__).parents[2] / "tests" / "vectors" / "speech.opus"
OPUS, RED = 111, 63
_STEP = round(48_000 * FRAME_SECONDS)


def speech() -> bytes:
    """Six sentences of six voices, 36 s; s16le mono at 24 kHz."""
    resampler = av.AudioResampler("s16", "mono", SAMPLE_RATE)
    with av.open(str(SPEECH)) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]).astype("<i2").tobytes()


def browser_packets(pcm: bytes, *, loss_percent: int, fec: bool, red: bool) -> list[Arrival]:
    """What Chromium sends of `pcm`, packet by packet: Opus at 32 kbit/s, `voip`, complexity 9.

    `fec`: the answer said useinbandfec=1, so libopus knows of the loss that our reports tell. `red`: it has RED.
    """
    payloads = _encode(pcm, loss_percent if fec else 0)
    return [
        Arrival(
            index * FRAME_SECONDS,
            build_rtp(
                RtpPacket(
                    RED if red else OPUS,
                    1000 + index,
                    7000 + index * _STEP,
                    THEIRS,
                    _with_copy(payload, payloads[index - 1] if index else b"") if red else payload,
                )
            ),
        )
        for index, payload in enumerate(payloads)
    ]


def _encode(pcm: bytes, loss_percent: int) -> list[bytes]:
    encoder = AudioCodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.layout, encoder.format, encoder.bit_rate = SAMPLE_RATE, "mono", "s16", 32_000
    encoder.options = {
        "application": "voip",
        "compression_level": "9",
        "frame_duration": "20",
        "fec": str(int(loss_percent > 0)),
        "packet_loss": str(loss_percent),
    }
    samples = np.frombuffer(pcm, "<i2")
    frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), "s16", "mono")
    frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, 0, Fraction(1, SAMPLE_RATE)
    return [bytes(packet) for packet in (*encoder.encode(frame), *encoder.encode(None))]


def _with_copy(payload: bytes, before: bytes) -> bytes:
    """RFC 2198, as libwebrtc writes it: one copy, of the packet before."""
    if not before:
        return bytes((OPUS,)) + payload
    header = 0x80 << 24 | OPUS << 24 | _STEP << 10 | len(before)
    return header.to_bytes(4) + bytes((OPUS,)) + before + payload
