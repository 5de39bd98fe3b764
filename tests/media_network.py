"""A talker and a bad network in virtual time, to see what an AudioStream makes of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from usher_transceiver.media.codec import EncoderSettings
from usher_transceiver.media.frame import FRAME_SAMPLES, FRAME_SECONDS, AudioFrame, Origin
from usher_transceiver.media.rtp import RtpPacket, build_rtp
from usher_transceiver.media.stream import AudioStream, StreamParameters

CONFIGURATION = 0xD8  # CELT, super wideband, 20 ms: the first byte of an Opus packet
LOST, RECOVERED = -1, -2
OURS = StreamParameters(ssrc=0x1111, cname="usher", payload_type=111)
THEIRS = 0x2222


class NumberCodec:
    """A codec whose packet is a number and whose audio is that number in every sample: what is heard is exact."""

    name = "numbers"

    def encoder(self, settings: EncoderSettings) -> "NumberCodec":
        return self

    def decoder(self) -> "NumberCodec":
        return self

    def encode(self, pcm: bytes) -> bytes:
        return number_packet(int.from_bytes(pcm[:2], "little", signed=True))

    def expect_loss(self, percent: int) -> None:
        pass

    def decode(self, packet: bytes) -> bytes:
        return packet[1:3] * FRAME_SAMPLES

    def recover(self, following: bytes, samples: int) -> bytes:
        return RECOVERED.to_bytes(2, "little", signed=True) * samples

    def conceal(self, samples: int) -> bytes:
        return LOST.to_bytes(2, "little", signed=True) * samples


def number_packet(number: int) -> bytes:
    return bytes((CONFIGURATION,)) + number.to_bytes(2, "little", signed=True)


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    at: float
    packet: bytes


def talk(
    payloads: Iterable[bytes], *, clock_rate: int = 48_000, sequence: int = 65_500, timestamp: int = (1 << 32) - 9600
) -> list[Arrival]:
    """One packet every 20 ms from time 0; sequence and time wrap soon after the start."""
    step = clock_rate // 50
    return [
        Arrival(
            index * FRAME_SECONDS,
            build_rtp(
                RtpPacket(111, sequence + index & 0xFFFF, timestamp + index * step & 0xFFFFFFFF, THEIRS, payload)
            ),
        )
        for index, payload in enumerate(payloads)
    ]


def network(
    sent: Sequence[Arrival], random: Random, *, loss: float = 0.0, jitter: float = 0.0, delay: float = 0.02
) -> list[Arrival]:
    """Lose packets and delay each by its own time, so that they also change places."""
    return sorted(
        Arrival(arrival.at + delay + random.uniform(0, jitter), arrival.packet)
        for arrival in sent
        if random.random() >= loss
    )


class Ear:
    """The sink of a stream in virtual time: keeps what it got, and when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.frames: list[tuple[float, AudioFrame]] = []

    def __call__(self, frame: AudioFrame) -> None:
        self.frames.append((self.now, frame))

    @property
    def numbers(self) -> list[int]:
        """What was heard, one number per frame; silence is left out."""
        return [_number(frame) for _, frame in self.frames if frame.origin is not Origin.SILENCE]

    def delays(self) -> list[float]:
        """Seconds from the sending of a packet of `talk` to its hearing, in order of hearing."""
        return [
            at - _number(frame) * FRAME_SECONDS
            for at, frame in self.frames
            if frame.origin is Origin.RECEIVED and _number(frame) >= 0
        ]

    def longest_stall(self) -> float:
        """Seconds of the longest run without received audio, from the first to the last received frame."""
        heard = [index for index, (_, frame) in enumerate(self.frames) if frame.origin is Origin.RECEIVED]
        return max((b - a - 1 for a, b in pairwise(heard)), default=0) * FRAME_SECONDS


def _number(frame: AudioFrame) -> int:
    # The last sample, since the first ones may be a cross-fade.
    return int.from_bytes(frame.data[-2:], "little", signed=True)


def run(
    stream: AudioStream, ear: Ear, arrivals: Iterable[Arrival], seconds: float, *, phase: float = 0.007
) -> list[tuple[float, bytes]]:
    """Deliver the arrivals and tick every 20 ms; return what the stream sent, and when."""
    waiting = sorted(arrivals)[::-1]
    sent = []
    for index in range(round(seconds / FRAME_SECONDS)):
        ear.now = phase + index * FRAME_SECONDS
        while waiting and waiting[-1].at <= ear.now:
            arrival = waiting.pop()
            stream.on_rtp(arrival.at, arrival.packet)
        sent += [(ear.now, packet) for packet in stream.tick(ear.now)]
    return sent
