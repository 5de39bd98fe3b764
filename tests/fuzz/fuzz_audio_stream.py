"""Invariant: parse or raise RemoteError, nothing else. Here it is counted instead: a stream takes any packets in any
order, and gives its backend one frame per tick all the same.
"""

import struct
from random import Random

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_transceiver.media.choose_codec import load_codec
    from usher_transceiver.media.frame import FRAME_BYTES, AudioFrame
    from usher_transceiver.media.rtcp import Report, ReportBlock, build_bye, build_report
    from usher_transceiver.media.rtp import RtpPacket, build_rtp
    from usher_transceiver.media.stream import AudioStream, StreamParameters

CODEC = load_codec()
STEP = struct.Struct("!BhiB")  # what to do, sequence and timestamp relative to the stream's, length of what follows
MAX_STEPS = 100
SSRC, PAYLOAD_TYPE, RED_PAYLOAD_TYPE = 7, 111, 63


def one_input(data: bytes) -> None:
    play(data, "pcm")
    play(data, "opus")


def play(data: bytes, kind: str) -> None:
    frames: list[AudioFrame] = []
    parameters = StreamParameters(
        ssrc=1,
        cname="fuzz",
        payload_type=PAYLOAD_TYPE,
        red_payload_type=RED_PAYLOAD_TYPE,
        kind=kind,  # type: ignore[arg-type]
        answers_nack=True,
    )
    stream = AudioStream(parameters, CODEC, frames.append, now=0.0, random=Random(0))
    now, position = 0.0, 0
    for _ in range(MAX_STEPS):
        if position + STEP.size > len(data):
            break
        what, sequence, timestamp, length = STEP.unpack_from(data, position)
        position += STEP.size
        body = data[position : position + length]
        position += length
        match what & 3:
            case 0:
                frames.clear()
                now += 0.02 * (1 + (what >> 4))
                stream.tick(now)
                assert kind == "opus" or len(frames) <= 1
                assert all(len(frame.data) == FRAME_BYTES for frame in frames if kind == "pcm")
            case 1:
                ssrc = SSRC + (what >> 6)
                payload_type = RED_PAYLOAD_TYPE if what & 4 else PAYLOAD_TYPE
                packet = RtpPacket(payload_type, (1000 + sequence) & 0xFFFF, timestamp & 0xFFFFFFFF, ssrc, body)
                stream.on_rtp(now, build_rtp(packet))
            case 2:
                stream.on_rtp(now, body)
            case 3:
                stream.on_rtcp(now, body)
    assert stream.stats(now).delay_ms < 60_000


def _talk(*payloads: bytes) -> bytes:
    steps = b"".join(STEP.pack(1, n, 960 * n, len(p)) + p + STEP.pack(0, 0, 0, 0) for n, p in enumerate(payloads))
    report = build_report(Report(SSRC, (ReportBlock(1, 9, 1, 1, 1, 1, 1),), ntp=1 << 33)) + build_bye([SSRC])
    return steps + STEP.pack(3, 0, 0, len(report)) + report + STEP.pack(0, 0, 0, 0)


SPEECH = b"\xf8" + bytes(range(40))
COPIED = bytes((0x80 | PAYLOAD_TYPE, 960 >> 6, (960 & 0x3F) << 2, len(SPEECH), PAYLOAD_TYPE)) + SPEECH * 2
RED_TALK = b"".join(STEP.pack(5, 2 * n, 1920 * n, len(COPIED)) + COPIED + STEP.pack(0x10, 0, 0, 0) for n in range(4))
SEEDS = [RED_TALK, _talk(*[SPEECH] * 6), _talk(SPEECH, b"\xf8", b"\xfb\x03" + bytes(30), b"", SPEECH)]

if __name__ == "__main__":
    main(one_input, SEEDS)
