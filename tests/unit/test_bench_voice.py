"""The bench of voices on a short call: it measures what it says, and usher's goals hold."""

import numpy as np
import pytest

from benches.voice.call import Weather, run
from benches.voice.ends import STOCK_BITRATE, End, HeardFrame, StockEnd, UsherEnd
from benches.voice.goals import goals
from benches.voice.rows import Row, rows
from benches.voice.score import longest_stall, score
from benches.voice.speech import browser_packets, speech
from tests.media_tone import frames_of
from usher_transceiver.media.codec import EncoderSettings
from usher_transceiver.media.frame import FRAME_BYTES, SAMPLE_RATE, SILENCE, Origin
from usher_transceiver.media.opus import LibOpus

SENTENCES = speech()[: 9 * 2 * SAMPLE_RATE]


def heard(pcm: bytes) -> list[HeardFrame]:
    return [HeardFrame(frame, Origin.RECEIVED) for frame in frames_of(pcm)]


def test_a_voice_that_only_came_late_is_fully_understood_and_its_delay_known() -> None:
    late = score(SENTENCES, 0.0, heard(bytes(13 * FRAME_BYTES) + SENTENCES), 0.04)
    assert late.stoi == pytest.approx(1, abs=0.001)
    assert late.delay == pytest.approx(0.3, abs=0.001)
    assert late.growth == pytest.approx(0, abs=0.001)


def test_a_delay_that_grows_is_seen() -> None:
    third = len(SENTENCES) // 3 // FRAME_BYTES * FRAME_BYTES
    growing = SENTENCES[:third] + SILENCE * 5 + SENTENCES[third : 2 * third] + SILENCE * 5 + SENTENCES[2 * third :]
    assert score(SENTENCES, 0.0, heard(growing), 0.0).growth == pytest.approx(0.1, abs=0.03)


def test_noise_and_holes_take_from_what_is_understood() -> None:
    noise = np.random.default_rng(1).normal(0, 2500, len(SENTENCES) // 2)
    noisy = np.clip(np.frombuffer(SENTENCES, np.int16) + noise, -32768, 32767).astype(np.int16).tobytes()
    holes = b"".join(SILENCE if n % 10 < 2 else frame for n, frame in enumerate(frames_of(SENTENCES)))
    assert score(SENTENCES, 0.0, heard(noisy), 0.0).stoi < 0.9
    assert score(SENTENCES, 0.0, heard(holes), 0.0).stoi < 0.9


def test_a_stall_is_what_was_made_up_and_no_pause_of_the_speaker() -> None:
    received, made_up, pause = (HeardFrame(SILENCE, origin) for origin in Origin)
    assert longest_stall([pause, made_up, received, received, pause, pause, received, pause]) == 0
    assert longest_stall([received, made_up, made_up, received, made_up, received]) == 0.04
    # Beyond 100 ms a decoder gives up and is silent; it is the same stall.
    assert longest_stall([received, *[made_up] * 5, pause, pause, received]) == pytest.approx(0.14)


@pytest.mark.needs("libopus")
def test_with_stocks_bitrate_a_client_without_loss_hears_as_much_so_the_rest_of_the_path_takes_nothing() -> None:
    def understood(far: End) -> float:
        ear = UsherEnd(LibOpus())
        packets = browser_packets(SENTENCES, loss_percent=0, fec=False, red=False)
        run(packets, ear, far, Weather(0.0, 0.0), len(SENTENCES) / 48_000 + 1, 0)
        return score(SENTENCES, 0.0, ear.heard, ear.heard_from).stoi

    stock, ours = (
        understood(StockEnd(SENTENCES)),
        understood(UsherEnd(LibOpus(), SENTENCES, encoder=EncoderSettings(bitrate=STOCK_BITRATE))),
    )
    assert stock == pytest.approx(0.998, abs=0.002)
    assert ours >= stock - 0.0005


@pytest.mark.needs("libopus")
def test_usher_reaches_its_goals_at_5_percent_loss_and_30_ms_of_jitter() -> None:
    found = list(rows(LibOpus(), SENTENCES, range(1), losses=(0.05,), jitters=(0.03,)))
    assert {goal.name: goal.value for goal in goals(found) if not goal.met} == {}
    heard_by_backend: dict[str, Row] = {row.far_end: row for row in found if row.heard_by == "backend"}
    usher, fec, plain, stock = (heard_by_backend[end] for end in ("usher", "usher-fec", "usher-plain", "aiortc"))
    assert usher.stoi > plain.stoi > stock.stoi + 0.1
    assert fec.stoi > plain.stoi
    assert usher.stoi > 0.97
    assert usher.delay_ms < 100 < stock.delay_ms
