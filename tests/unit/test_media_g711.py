"""Telephone audio: the tables, the filters, and a stream that speaks it."""

from itertools import pairwise
from random import Random
from typing import get_args

import av
import numpy as np
import pytest
from av.audio.codeccontext import AudioCodecContext

from tests.media_network import THEIRS, Arrival, Ear, NumberCodec, network, run
from tests.media_tone import frames_of, frequency, level, tone
from usher_core.errors import LocalError, RemoteError
from usher_core.rtp import is_rtcp
from usher_transceiver.media.codec import EncoderSettings
from usher_transceiver.media.conceal import Concealer
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_SAMPLES, SILENCE, AudioFrame, Origin
from usher_transceiver.media.g711 import G711, Law
from usher_transceiver.media.resample import Decimator, Interpolator, low_pass
from usher_transceiver.media.rtp import RtpPacket, build_rtp, parse_rtp
from usher_transceiver.media.stream import AudioStream, StreamParameters

laws = pytest.mark.parametrize("law", get_args(Law))
PAYLOAD_TYPE: dict[Law, int] = {"pcmu": 0, "pcma": 8}
ALL_CODES = bytes(range(256))


def ffmpeg_values(law: Law) -> np.ndarray:
    """The sample of each code, by another's tables."""
    context = AudioCodecContext.create("pcm_mulaw" if law == "pcmu" else "pcm_alaw", "r")
    context.sample_rate, context.layout, context.format = 8000, "mono", "s16"
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in context.decode(av.Packet(ALL_CODES))])


@laws
def test_every_code_means_what_ffmpeg_says_and_every_sample_gets_the_nearest_code(law: Law) -> None:
    values = ffmpeg_values(law).astype(int)
    # A constant tone of one code, filtered up and down again, is that code: so the tables show through the filters.
    for code in ALL_CODES:
        heard = G711(law).decoder().decode(bytes((code,)) * 160)
        assert np.frombuffer(heard, np.int16)[-1] == pytest.approx(values[code], abs=max(2, abs(values[code]) * 2e-3))
    samples = np.arange(-32000, 32000, 37).astype(np.int16)
    for sample in samples:
        sent = G711(law).encoder(EncoderSettings()).encode(bytes(np.full(FRAME_SAMPLES, sample)))[-1]
        assert abs(values[sent] - sample) <= np.abs(values - sample).min() + 40


@laws
@pytest.mark.parametrize("hertz", [300, 1000, 3000, 3400])
def test_a_tone_comes_back_with_its_frequency_and_level(law: Law, hertz: int) -> None:
    encoder, decoder = G711(law).encoder(EncoderSettings()), G711(law).decoder()
    sent = tone(hertz, seconds=1)
    heard = b"".join(decoder.decode(encoder.encode(frame)) for frame in frames_of(sent))[5 * FRAME_BYTES :]
    assert len(heard) == len(sent) - 5 * FRAME_BYTES
    assert frequency(heard) == pytest.approx(hertz, abs=2)
    assert level(heard) == pytest.approx(level(sent), abs=0.3)


@laws
@pytest.mark.parametrize("hertz", [4600, 7000, 11_000])
def test_what_a_telephone_cannot_carry_does_not_come_back_as_another_tone(law: Law, hertz: int) -> None:
    encoder, decoder = G711(law).encoder(EncoderSettings()), G711(law).decoder()
    heard = b"".join(decoder.decode(encoder.encode(frame)) for frame in frames_of(tone(hertz, seconds=0.5)))
    assert level(heard[5 * FRAME_BYTES :]) < -60


def test_a_voice_of_8_khz_has_no_images_above_4_khz() -> None:
    up = Interpolator(low_pass(144, 3_700, 24_000), 3)
    voice = 8000 * np.sin(2 * np.pi * 3000 * np.arange(8000) / 8000).astype(np.float32)
    spectrum = np.abs(np.fft.rfft(up(voice)[480:] * np.hanning(24_000 - 480)))
    hertz = np.linspace(0, 12_000, len(spectrum))
    assert spectrum[hertz > 4000].max() < spectrum.max() / 1000


@pytest.mark.parametrize("lengths", [[480], [240, 240], [3, 477]])
def test_filters_give_the_same_whatever_the_pieces(lengths: list[int]) -> None:
    kernel = low_pass(144, 3_700, 24_000)
    noise = np.random.default_rng(1).normal(0, 1000, sum(lengths)).astype(np.float32)
    pieces = np.split(noise, np.cumsum(lengths)[:-1])
    for whole, cut in (
        (Decimator(kernel, 3), Decimator(kernel, 3)),
        (Interpolator(kernel, 3), Interpolator(kernel, 3)),
    ):
        np.testing.assert_allclose(np.concatenate([cut(piece) for piece in pieces]), whole(noise), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("hertz", [90, 137, 220, 390])
def test_a_lost_packet_of_a_voice_is_made_up_without_a_click_and_fades_to_nothing(hertz: int) -> None:
    concealer = Concealer()
    t = np.arange(24_000) / 24_000
    voice = np.stack([3000 / k * np.sin(2 * np.pi * k * hertz * t) for k in range(1, 8)]).sum(axis=0).astype(np.float32)
    for at in range(0, 9600, 480):
        concealer.heard(voice[at : at + 480])
    made_up = concealer.make_up(480)
    after = concealer.heard(voice[9600 + 480 : 9600 + 960])
    line = np.concatenate((voice[9600 - 480 : 9600], made_up, after))
    assert np.abs(np.diff(line)).max() < 1.6 * np.abs(np.diff(voice)).max()
    likeness = np.corrcoef(made_up[:240], voice[9600 : 9600 + 240])[0, 1]
    assert likeness > 0.95
    np.testing.assert_allclose(after[120:], voice[9600 + 600 : 9600 + 960])
    concealer.make_up(1440)
    assert not concealer.make_up(480).any()


@pytest.mark.parametrize(("payload", "duration"), [(b"\xff" * 80, 480), (b"\xff" * 160, 960), (b"\xff" * 960, 5760)])
def test_the_length_of_a_packet_is_its_duration(payload: bytes, duration: int) -> None:
    assert G711("pcmu").format.duration(payload) == duration


@pytest.mark.parametrize("payload", [b"", b"\xff" * 961])
def test_what_cannot_be_g711_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        G711("pcmu").format.duration(payload)
    assert caught.value.reason == "g711_packet"


def stream(law: Law, sink: Ear) -> AudioStream:
    parameters = StreamParameters(ssrc=1, cname="usher", payload_type=PAYLOAD_TYPE[law], encoding=law, clock_rate=8000)
    return AudioStream(parameters, NumberCodec(), sink, 0.0, Random(1))


def telephone(law: Law, pcm: bytes, *, frame_bytes: int) -> list[Arrival]:
    """What a telephone sends, which puts 10 to 60 ms into a packet."""
    encoder = G711(law).encoder(EncoderSettings())
    codes = b"".join(encoder.encode(frame) for frame in frames_of(pcm))
    sent = []
    for number, at in enumerate(range(0, len(codes), frame_bytes)):
        packet = RtpPacket(PAYLOAD_TYPE[law], 65_530 + number & 0xFFFF, at, THEIRS, codes[at : at + frame_bytes])
        sent.append(Arrival(at / 8000, build_rtp(packet)))
    return sent


@laws
@pytest.mark.parametrize("frame_bytes", [80, 160, 320, 480])
def test_a_telephone_is_heard_through_loss_and_jitter(law: Law, frame_bytes: int) -> None:
    ear = Ear()
    voice = tone(440, seconds=8)
    sent = telephone(law, voice, frame_bytes=frame_bytes)
    run(stream(law, ear), ear, network(sent, Random(2), loss=0.05, jitter=0.03), 8)
    heard = b"".join(frame.data for _, frame in ear.frames)[25 * FRAME_BYTES : -10 * FRAME_BYTES]
    assert frequency(heard) == pytest.approx(440, abs=2)
    assert level(heard) == pytest.approx(level(voice), abs=1)
    assert ear.longest_stall() <= max(0.06, 3 * frame_bytes / 8000)


@laws
def test_a_telephone_hears_speech_then_silence_without_an_encoder_and_without_a_gap(law: Law) -> None:
    ear = Ear()
    far = stream(law, ear)
    far.play(tone(440, seconds=0.2))
    packets = [parse_rtp(packet) for _, packet in run(far, ear, [], 2) if not is_rtcp(packet)]
    assert {(packet.payload_type, len(packet.payload)) for packet in packets} == {(PAYLOAD_TYPE[law], 160)}
    assert len(packets) == 100
    assert [b.timestamp - a.timestamp & 0xFFFFFFFF for a, b in pairwise(packets)] == [160] * 99
    assert [packet.marker for packet in packets] == [True, *[False] * 99]
    silence = bytes(G711(law).encoder(EncoderSettings()).encode(SILENCE))
    assert {packet.payload for packet in packets[13:]} == {silence}


def test_what_is_played_within_the_sink_leaves_in_the_same_tick() -> None:
    ear = Ear()
    parameters = StreamParameters(ssrc=1, cname="usher", payload_type=0, encoding="pcmu", clock_rate=8000)

    def echo(frame: AudioFrame) -> None:
        ear(frame)
        if frame.origin is Origin.RECEIVED:
            far.play(frame.data)

    far = AudioStream(parameters, NumberCodec(), echo, 0.0, Random(1))
    sent = run(far, ear, telephone("pcmu", tone(440, seconds=1), frame_bytes=160), 1)
    assert sent[0][0] == next(at for at, frame in ear.frames if frame.origin is Origin.RECEIVED)


def test_a_backend_that_passes_opus_packets_on_cannot_have_telephone_audio() -> None:
    with pytest.raises(LocalError, match="cannot speak pcmu"):
        StreamParameters(ssrc=1, cname="usher", payload_type=0, encoding="pcmu", clock_rate=8000, kind="opus")
