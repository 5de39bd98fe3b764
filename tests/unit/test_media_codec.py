"""Both codecs, the same tests."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from tests.media_tone import frames_of, frequency, level, tone
from usher_core.errors import LocalError, RemoteError
from usher_transceiver.media import opus
from usher_transceiver.media.choose_codec import load_codec
from usher_transceiver.media.codec import MAX_PACKET, Codec, EncoderSettings
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_SAMPLES, SILENCE
from usher_transceiver.media.opus import LibOpus
from usher_transceiver.media.opus_packet import dtx_packet, packet_duration
from usher_transceiver.media.opus_pyav import PyAvOpus

LIBOPUS = pytest.param(LibOpus, id="libopus", marks=pytest.mark.needs("libopus"))
PYAV = pytest.param(PyAvOpus, id="pyav")
both = pytest.mark.parametrize("make", [LIBOPUS, PYAV])
Make = Callable[[], Codec]


def samples(pcm: bytes) -> NDArray[np.int16]:
    return np.frombuffer(pcm, np.int16)


@both
@pytest.mark.parametrize("hertz", [220, 440, 1000, 3000])
def test_a_tone_comes_back_with_its_frequency_and_level(make: Make, hertz: int) -> None:
    codec = make()
    encoder, decoder = codec.encoder(EncoderSettings()), codec.decoder()
    sent = tone(hertz, seconds=2)
    heard = b"".join(decoder.decode(encoder.encode(frame)) for frame in frames_of(sent))
    assert len(heard) == len(sent)
    settled = heard[10 * FRAME_BYTES :]
    assert frequency(settled) == pytest.approx(hertz, abs=2)
    assert level(settled) == pytest.approx(level(sent), abs=1)


@both
def test_every_packet_is_20_ms_and_fits_a_datagram(make: Make) -> None:
    encoder = make().encoder(EncoderSettings(bitrate=128_000))
    noise = np.random.default_rng(1).integers(-32768, 32767, 50 * FRAME_SAMPLES, np.int16).tobytes()
    packets = [encoder.encode(frame) for frame in frames_of(noise)]
    assert {packet_duration(packet) for packet in packets} == {960}
    assert max(map(len, packets)) <= MAX_PACKET


@both
def test_the_bitrate_is_what_was_asked_for(make: Make) -> None:
    encoder = make().encoder(EncoderSettings(bitrate=24_000))
    noise = np.random.default_rng(1).integers(-9000, 9000, 200 * FRAME_SAMPLES, np.int16).tobytes()
    spent = sum(len(encoder.encode(frame)) for frame in frames_of(noise))
    assert spent * 8 / 4 == pytest.approx(24_000, rel=0.2)


@pytest.mark.parametrize("setting", [{"bitrate": 510_000}, {"bitrate": 0}, {"complexity": 11}])
def test_a_setting_that_no_codec_takes_is_our_own_fault(setting: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match="choose"):
        EncoderSettings(**setting)


@both
def test_a_lost_packet_is_concealed_with_something_like_what_was_before(make: Make) -> None:
    codec = make()
    encoder, decoder = codec.encoder(EncoderSettings()), codec.decoder()
    packets = [encoder.encode(frame) for frame in frames_of(tone(440, seconds=1))]
    before = b"".join(map(decoder.decode, packets[:25]))[-FRAME_BYTES:]
    made_up = decoder.conceal(FRAME_SAMPLES)
    assert len(made_up) == FRAME_BYTES
    assert level(made_up) == pytest.approx(level(before), abs=6)
    assert frequency(made_up) == pytest.approx(440, abs=60)
    after = b"".join(map(decoder.decode, packets[26:]))
    assert frequency(after[FRAME_BYTES:]) == pytest.approx(440, abs=3)


@both
def test_concealment_fades_out(make: Make) -> None:
    codec = make()
    encoder, decoder = codec.encoder(EncoderSettings()), codec.decoder()
    for frame in frames_of(tone(440, seconds=1)):
        heard = decoder.decode(encoder.encode(frame))
    made_up = [decoder.conceal(FRAME_SAMPLES) for _ in range(50)]
    assert level(made_up[-1]) < level(heard) - 12


@both
@pytest.mark.parametrize("milliseconds", [10, 20, 40, 60])
def test_concealment_has_the_length_asked_for(make: Make, milliseconds: int) -> None:
    decoder = make().decoder()
    decoder.decode(bytes.fromhex("d8fffe"))
    assert len(decoder.conceal(24 * milliseconds)) == 48 * milliseconds
    assert len(decoder.recover(bytes.fromhex("d8fffe"), 480)) == FRAME_BYTES


@pytest.mark.needs("libopus")
def test_redundancy_brings_a_lost_packet_back_when_loss_was_expected() -> None:
    codec = LibOpus()
    sweep = np.concatenate([samples(tone(hertz, seconds=0.2)) for hertz in (300, 500, 700, 900, 1100)]).tobytes()

    def error(*, percent: int) -> float:
        """Of the packet at the jump from one tone to the next, which nobody can guess."""
        encoder, lossless, lossy = codec.encoder(EncoderSettings()), codec.decoder(), codec.decoder()
        encoder.expect_loss(percent)
        packets = [encoder.encode(frame) for frame in frames_of(sweep)]
        truth = list(map(lossless.decode, packets))
        for packet in packets[:31]:
            lossy.decode(packet)
        made_up = lossy.recover(packets[32], FRAME_SAMPLES)
        difference = samples(made_up).astype(float) - samples(truth[31])
        return float(np.sqrt(np.mean(difference**2)))

    assert error(percent=20) < error(percent=0) / 2


@both
def test_one_byte_of_dtx_is_decoded_to_20_ms(make: Make) -> None:
    codec = make()
    encoder, decoder = codec.encoder(EncoderSettings()), codec.decoder()
    packet = b""
    for frame in frames_of(tone(440, seconds=0.2) + SILENCE * 3):
        packet = encoder.encode(frame)
        decoder.decode(packet)
    quiet = decoder.decode(dtx_packet(packet))
    assert len(quiet) == FRAME_BYTES
    assert level(quiet) < -60


@both
def test_what_is_not_opus_is_the_peers_fault_and_the_decoder_goes_on(make: Make) -> None:
    codec = make()
    encoder, decoder = codec.encoder(EncoderSettings()), codec.decoder()
    with pytest.raises(RemoteError) as caught:
        decoder.decode(b"\xff\xff\xff")
    assert caught.value.reason == "opus_packet"
    assert len(decoder.decode(encoder.encode(SILENCE))) == FRAME_BYTES


@both
def test_wideband_has_nothing_above_8_khz(make: Make) -> None:
    codec = make()
    encoder, decoder = codec.encoder(EncoderSettings(wideband=True)), codec.decoder()
    noise = np.random.default_rng(1).integers(-9000, 9000, 100 * FRAME_SAMPLES, np.int16).tobytes()
    heard = samples(b"".join(decoder.decode(encoder.encode(frame)) for frame in frames_of(noise)))
    power = np.abs(np.fft.rfft(heard)) ** 2
    above = power[int(len(power) * 9000 / 12_000) :].sum() / power.sum()
    assert 10 * math.log10(above) < -15


@both
def test_codecs_read_each_other(make: Make) -> None:
    encoder, decoder = make().encoder(EncoderSettings()), PyAvOpus().decoder()
    heard = b"".join(decoder.decode(encoder.encode(frame)) for frame in frames_of(tone(440, seconds=1)))
    assert frequency(heard[5 * FRAME_BYTES :]) == pytest.approx(440, abs=2)


def test_without_libopus_the_log_says_once_which_codec_is_used_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opus, "_NAMES", ("libopus-that-is-not-there.so",))
    monkeypatch.setattr(opus, "find_library", lambda name: None)
    with capture_logs() as logs:
        codec = load_codec()
    assert isinstance(codec, PyAvOpus)
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "install" in logs[0]["fix"]
    with pytest.raises(LocalError, match="install it"):
        load_codec("libopus")


@pytest.mark.needs("libopus")
def test_libopus_is_preferred_and_named_in_the_log() -> None:
    with capture_logs() as logs:
        codec = load_codec()
    assert codec.name.startswith("libopus 1.")
    assert [entry["codec"] for entry in logs] == [codec.name]
