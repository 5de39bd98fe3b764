import pytest

from usher_transceiver.media.frame import FRAME_MS
from usher_transceiver.media.vad import SpeechChange, Vad, VadSettings

QUIET = -127.0


def changes(vad: Vad, levels: list[float], begin_ms: int = 0) -> list[tuple[SpeechChange, int]]:
    found = []
    for index, level in enumerate(levels):
        change = vad.on_frame(level, begin_ms + index * FRAME_MS)
        if change is not None:
            found.append((change, vad.changed_ms))
    return found


def ms(milliseconds: int, level: float) -> list[float]:
    return [level] * (milliseconds // FRAME_MS)


@pytest.mark.parametrize("level", [-12.0, -20.0, -30.0])
def test_a_tone_of_a_minute_is_one_utterance(level: float) -> None:
    found = changes(Vad(), ms(1000, QUIET) + ms(60_000, level) + ms(1000, QUIET))
    assert found == [(SpeechChange.STARTED, 1000), (SpeechChange.STOPPED, 61_000)]


@pytest.mark.parametrize("noise", [-127.0, -70.0, -55.0, -45.0])
def test_speech_over_background_noise_is_found_with_its_times(noise: float) -> None:
    vad = Vad()
    found = changes(vad, ms(30_000, noise) + ms(800, -25.0) + ms(1000, noise))
    assert found == [(SpeechChange.STARTED, 30_000), (SpeechChange.STOPPED, 30_800)]


def test_the_pauses_between_words_are_no_end() -> None:
    words = (ms(200, -25.0) + ms(300, -60.0)) * 6
    assert [change for change, _ in changes(Vad(), words + ms(600, -60.0))] == [
        SpeechChange.STARTED,
        SpeechChange.STOPPED,
    ]


def test_a_click_of_one_frame_is_no_speech() -> None:
    assert changes(Vad(), (ms(20, -10.0) + ms(500, QUIET)) * 10) == []


def test_a_beep_that_spans_two_frames_is_speech() -> None:
    found = changes(Vad(), ms(100, QUIET) + ms(40, -20.0) + ms(1000, QUIET))
    assert found == [(SpeechChange.STARTED, 100), (SpeechChange.STOPPED, 140)]


def test_a_level_around_the_threshold_does_not_flutter() -> None:
    vad = Vad()
    limit = VadSettings().quietest_threshold_dbov
    changes(vad, ms(1000, -80.0))
    assert len(changes(vad, [limit + (1 if index % 3 else -3) for index in range(500)])) == 1


def test_breath_and_hum_are_no_speech() -> None:
    assert changes(Vad(), ms(5000, -53.0)) == []
