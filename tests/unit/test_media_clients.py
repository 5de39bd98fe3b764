"""Clients of all habits, with the real codec: packets of 10 to 60 ms, stereo, pauses, first words, drifting clocks."""

from fractions import Fraction
from itertools import pairwise
from random import Random

import av
import numpy as np
import pytest
from av.audio.codeccontext import AudioCodecContext

from tests.media_network import OURS, THEIRS, Arrival, Ear, network, run
from tests.media_tone import frames_of, frequency, level, tone
from usher_core.rtp import is_rtcp
from usher_transceiver.media.codec import Codec, EncoderSettings
from usher_transceiver.media.frame import FRAME_BYTES, SAMPLE_RATE, Origin
from usher_transceiver.media.opus import LibOpus
from usher_transceiver.media.opus_packet import dtx_packet, has_redundancy
from usher_transceiver.media.opus_pyav import PyAvOpus
from usher_transceiver.media.rtp import RtpPacket, build_rtp, parse_rtp
from usher_transceiver.media.stream import AudioStream

both = pytest.mark.parametrize(
    "make",
    [pytest.param(LibOpus, id="libopus", marks=pytest.mark.needs("libopus")), pytest.param(PyAvOpus, id="pyav")],
)
SECOND = 2 * SAMPLE_RATE


def client_packets(pcm: bytes, *, frame_ms: int = 20, channels: int = 1, ssrc: int = THEIRS) -> list[Arrival]:
    encoder = AudioCodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.format, encoder.bit_rate = SAMPLE_RATE, "s16", 32_000 * channels
    encoder.layout = "stereo" if channels == 2 else "mono"
    encoder.options = {"application": "voip", "frame_duration": str(frame_ms)}
    samples = np.repeat(np.frombuffer(pcm, np.int16), channels).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(samples, "s16", "stereo" if channels == 2 else "mono")
    frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, 0, Fraction(1, SAMPLE_RATE)
    payloads = [bytes(packet) for packet in (*encoder.encode(frame), *encoder.encode(None))]
    step = 48 * frame_ms
    return [
        Arrival(
            n * frame_ms / 1000,
            build_rtp(RtpPacket(111, 65_530 + n & 0xFFFF, (1 << 32) - 9600 + n * step & 0xFFFFFFFF, ssrc, payload)),
        )
        for n, payload in enumerate(payloads)
    ]


def listen(codec: Codec, arrivals: list[Arrival], seconds: float) -> tuple[Ear, AudioStream]:
    ear = Ear()
    stream = AudioStream(OURS, codec, ear, 0.0, Random(1))
    run(stream, ear, arrivals, seconds)
    return ear, stream


def pcm(ear: Ear) -> bytes:
    return b"".join(frame.data for _, frame in ear.frames)


@both
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("frame_ms", [10, 20, 40, 60])
def test_a_voice_in_packets_of_any_length_is_heard_through_loss_and_jitter(
    make: type[LibOpus | PyAvOpus], frame_ms: int, channels: int
) -> None:
    voice = tone(440, seconds=6)
    sent = client_packets(voice, frame_ms=frame_ms, channels=channels)
    ear, stream = listen(make(), network(sent, Random(5), loss=0.03, jitter=0.03), 6)
    heard = pcm(ear)[SECOND // 2 : -SECOND // 2]
    assert frequency(heard) == pytest.approx(440, abs=2)
    assert level(heard) == pytest.approx(level(voice), abs=1)
    assert len(ear.frames) >= 295
    assert ear.longest_stall() <= max(0.06, 2 * frame_ms / 1000)
    assert stream.stats(6).delay_ms < 60 + frame_ms
    assert stream.stats(6).dropped == {}


@pytest.mark.needs("libopus")
def test_a_client_that_sends_nothing_in_pauses_is_heard_from_its_first_sound_on() -> None:
    """DTX: in a pause a browser sends one byte every 400 ms, without a gap in its sequence numbers."""
    encoder = LibOpus().encoder(EncoderSettings())
    voice = (bytes(SECOND) + tone(440, seconds=0.5)) * 4 + bytes(SECOND // 2)
    sent: list[Arrival] = []
    silent = 0
    for n, frame in enumerate(frames_of(voice)):
        payload = encoder.encode(frame)
        silent = 0 if any(frame) else silent + 1
        if silent > 3:
            payload = dtx_packet(payload)
            if silent > 4 and silent % 20:
                continue
        sent.append(Arrival(n * 0.02, build_rtp(RtpPacket(111, len(sent), n * 960, THEIRS, payload))))
    assert len(sent) < 140  # of 325
    ear, stream = listen(LibOpus(), network(sent, Random(1), jitter=0.02), 6.5)
    loud = [level(frame.data) > -30 for _, frame in ear.frames]
    starts = [index for index, (before, now) in enumerate(pairwise(loud)) if now and not before]
    assert len(starts) == 4
    for start in starts:
        assert 24 <= sum(loud[start : start + 30]) <= 27
    assert stream.stats(6).concealed_ms <= 60


@pytest.mark.needs("libopus")
def test_the_first_word_to_a_client_is_not_clipped_and_keeps_its_level() -> None:
    codec, word = LibOpus(), tone(440, seconds=0.2)
    stream = AudioStream(OURS, codec, Ear(), 0.0, Random(1))
    for begin in (1.0, 3.0):
        packets = []
        for tick in range(100):
            if tick == 40:
                assert stream.play(word) == 200
            packets += stream.tick(begin + tick * 0.02)
        rtp = [parse_rtp(packet) for packet in packets if not is_rtcp(packet)]
        spoken = [packet for packet in rtp if len(packet.payload) > 3]
        assert spoken[0].marker
        decoder = codec.decoder()
        heard = b"".join(decoder.decode(packet.payload) for packet in spoken)
        # libopus holds 6.5 ms back; from there on it is the word, whole.
        whole = np.frombuffer(heard, np.int16)[156 : 156 + len(word) // 2]
        assert level(whole[:480].tobytes()) == pytest.approx(level(word), abs=1.5)
        assert level(whole[-480:].tobytes()) == pytest.approx(level(word), abs=1.5)
        assert level(whole.tobytes()) == pytest.approx(level(word), abs=0.5)


@pytest.mark.needs("libopus")
@pytest.mark.parametrize("parts_per_million", [-200, 200])
def test_minutes_of_a_clock_that_drifts_leave_the_delay_where_it_was(parts_per_million: int) -> None:
    encoder = LibOpus().encoder(EncoderSettings())
    second = [encoder.encode(frame) for frame in frames_of(tone(440, seconds=1))]
    sent = [
        Arrival(
            n * 0.02 * (1 + parts_per_million / 1e6),
            build_rtp(RtpPacket(111, n & 0xFFFF, n * 960, THEIRS, second[n % 50])),
        )
        for n in range(9000)
    ]
    ear, stream = listen(LibOpus(), network(sent, Random(1), jitter=0.01), 179.5)
    stats = stream.stats(179.5)
    assert stats.delay_ms < 50
    # 200 ppm of three minutes are 36 ms: two frames too many or too few, and nothing else is made up or left out.
    assert stats.skipped <= 4
    assert stats.concealed_ms <= 60
    assert sum(frame.origin is Origin.RECEIVED for _, frame in ear.frames) >= 8960
    assert len(pcm(ear)) == len(ear.frames) * FRAME_BYTES


@pytest.mark.needs("libopus")
def test_another_source_in_the_middle_of_speech_is_heard_at_once() -> None:
    first = client_packets(tone(440, seconds=2))
    second = [
        Arrival(arrival.at + 2, arrival.packet) for arrival in client_packets(tone(880, seconds=2), ssrc=THEIRS + 1)
    ]
    ear, _ = listen(LibOpus(), network(first + second, Random(1), jitter=0.02), 4)
    assert frequency(pcm(ear)[SECOND // 2 : SECOND * 2 - SECOND // 4]) == pytest.approx(440, abs=2)
    assert frequency(pcm(ear)[SECOND * 2 + SECOND // 4 : -SECOND // 4]) == pytest.approx(880, abs=2)
    assert ear.longest_stall() <= 0.06


@pytest.mark.needs("libopus")
def test_what_carries_the_packet_before_is_told_from_the_outside_of_an_opus_packet() -> None:
    plain, redundant = (LibOpus().encoder(EncoderSettings()) for _ in range(2))
    redundant.expect_loss(20)
    sweep = b"".join(tone(hertz, seconds=0.2) for hertz in range(300, 1300, 100))
    assert not any(has_redundancy(plain.encode(frame)) for frame in frames_of(sweep))
    assert sum(has_redundancy(redundant.encode(frame)) for frame in frames_of(sweep)) > 50  # of 100
    # Two frames of 20 ms in one of 40, speech in both: the third bit says it.
    assert has_redundancy(bytes((2 << 3, 0b1110_0000)))
    assert not has_redundancy(bytes((2 << 3, 0b1101_1111)))
    assert not has_redundancy(bytes((1 << 3,)))


@pytest.mark.needs("libopus")
def test_a_loss_that_the_next_packet_repairs_is_waited_for() -> None:
    """Without jitter the least delay would be one at which in-band FEC always comes too late."""
    encoder = LibOpus().encoder(EncoderSettings())
    encoder.expect_loss(20)
    payloads = [encoder.encode(frame) for frame in frames_of(tone(440, seconds=1))] * 30
    sent = [
        Arrival(n * 0.02, build_rtp(RtpPacket(111, n & 0xFFFF, n * 960, THEIRS, payload)))
        for n, payload in enumerate(payloads)
    ]
    for phase in (0.005, 0.011, 0.015):
        ear = Ear()
        stream = AudioStream(OURS, LibOpus(), ear, 0.0, Random(1))
        run(stream, ear, network(sent, Random(3), loss=0.05), 29.9, phase=phase)
        stats = stream.stats(29.9)
        assert stats.lost > 50
        assert stats.recovered > 0.7 * stats.lost
        assert stats.delay_ms < 50
