from pathlib import Path

import numpy as np
import pytest

from usher_cli.call import opus, source
from usher_cli.call.api import calls_url
from usher_cli.call.opus import FRAME_S, FRAME_SAMPLES, RATE
from usher_core.errors import LocalError


def heard(packets: list[bytes]) -> opus.Samples:
    return np.concatenate(list(opus.decode(packets)))


def test_the_tone_goes_round_without_a_click() -> None:
    tone = source.tone(440)
    samples = heard([tone.payload(index) for index in range(3 * len(tone.packets))])
    assert len(samples) == 3 * len(tone.packets) * FRAME_SAMPLES
    levels = [source.level_dbfs(samples[start : start + 480]) for start in range(RATE, len(samples), 480)]
    assert -21 < min(levels) <= max(levels) < -13


def test_each_packet_is_one_frame_and_has_its_level() -> None:
    tone = source.tone(440)
    assert len(tone.packets) == len(tone.levels) == round(source.PATTERN_S / FRAME_S)
    assert tone.seconds is None
    levels = tone.levels_at(np.array([-1, 0, len(tone.levels)]))
    assert list(levels) == [source.SILENCE_DBFS, tone.levels[0], tone.levels[0]]


def test_a_tone_with_an_end_is_followed_by_silence() -> None:
    tone = source.tone(440, talk_s=1.0)
    assert tone.seconds == 1.0
    samples = heard([tone.payload(index) for index in range(100)])
    assert source.level_dbfs(samples[:RATE]) > -20
    assert source.level_dbfs(samples[RATE + 4800 :]) < -60
    assert tone.levels_at(np.array([0, 50]))[1] == source.SILENCE_DBFS


def test_a_sound_file_of_any_rate_is_sent_as_it_sounds(tmp_path: Path) -> None:
    import wave

    path = tmp_path / "speech.wav"
    with wave.open(str(path), "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(16_000)
        sine = (8000 * np.sin(2 * np.pi * 300 * np.arange(16_000) / 16_000)).astype("<i2")
        out.writeframes(np.repeat(sine, 2).tobytes())
    found = source.file(path)
    assert found.seconds == pytest.approx(1.0, abs=0.03)
    assert source.level_dbfs(heard(list(found.packets))[4800:-4800]) == pytest.approx(-15.3, abs=0.7)


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    samples = (9000 * np.sin(np.arange(RATE) / 20)).astype(np.int16)
    source.write_wav(tmp_path / "out.wav", samples)
    assert np.array_equal(source.read_audio(tmp_path / "out.wav"), samples)


def test_a_file_that_is_no_sound_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("hello")
    with pytest.raises(LocalError, match="can't read sound from"):
        source.file(tmp_path / "text.wav")


def test_a_damaged_packet_decodes_to_nothing() -> None:
    assert [len(samples) for samples in opus.decode([b"", b"\xff\xff\xff"])] == [0, 0]


@pytest.mark.parametrize(
    "given, wanted",
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1/realtime/calls"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/v1/realtime/calls"),
        ("https://example.org/", "https://example.org/v1/realtime/calls"),
        ("http://127.0.0.1:8080?model=parrot", "http://127.0.0.1:8080/v1/realtime/calls?model=parrot"),
        ("https://example.org/api/calls", "https://example.org/api/calls"),
    ],
)
def test_the_base_url_leads_to_the_calls_api(given: str, wanted: str) -> None:
    assert calls_url(given) == wanted
