"""Analysis and judgement of a call, on packets made here."""

import dataclasses
import random
from collections.abc import Callable

import numpy as np
import pytest

from usher_cli.call import opus, source
from usher_cli.call.analysis import Findings, analyse, strongest_frequency
from usher_cli.call.client import CallRecord, redirect
from usher_cli.call.opus import FRAME_S, FRAME_SAMPLES, RATE
from usher_cli.call.reception import RtpArrival, receive
from usher_cli.call.result import as_json, failed, faults, judge, summarise
from usher_cli.call.source import Source

TONE = source.tone(440)
START = 1000.0
SECONDS = 10.0
SENT_S = SECONDS


def arrivals(
    heard: Source = TONE,
    delay: Callable[[int], float] = lambda _: 0.1,
    lost: Callable[[int], bool] = lambda _: False,
    count: int = round(SECONDS / FRAME_S),
) -> list[RtpArrival]:
    """What comes back of `heard`, whose counters wrap early: packet by packet late by `delay`, some lost."""
    packets = [
        RtpArrival(
            START + index * FRAME_S + delay(index),
            (65_530 + index) % 65_536,
            (2**32 - 4000 + index * FRAME_SAMPLES) % 2**32,
            heard.payload(index),
        )
        for index in range(count)
        if not lost(index)
    ]
    return sorted(packets, key=lambda packet: packet.at)


def findings(packets: list[RtpArrival], sent: Source = TONE, ended_after: float = SECONDS + 0.1) -> Findings:
    return analyse(receive(packets).frames, sent, START, START + ended_after)


def test_a_clean_echo_is_right() -> None:
    found = findings(arrivals())
    assert faults(found, TONE, SENT_S) == []
    assert found.tone_hz == pytest.approx(440, abs=0.5)
    assert found.level_dbfs == pytest.approx(-16.4, abs=0.5)
    assert found.tone_share == pytest.approx(1.0, abs=0.01)
    assert found.first_sound_at == pytest.approx(START + 0.1)
    assert found.longest_arrival_gap_s == pytest.approx(0.0, abs=0.001)
    assert found.longest_content_gap_s == pytest.approx(0.0, abs=0.001)
    assert found.gaps == ()


@pytest.mark.parametrize("late", [0.0, 0.06, 0.25, 1.3])
def test_the_delay_of_the_echo_is_found(late: float) -> None:
    delay = findings(arrivals(delay=lambda _: late), ended_after=SECONDS + late).delay
    assert delay is not None
    assert delay.median_s == pytest.approx(late, abs=0.02)
    assert delay.growth_s == pytest.approx(0.0, abs=0.01)


def test_a_delay_that_grows_is_found() -> None:
    def later_in_the_second_half(index: int) -> float:
        return 0.1 if index < 250 else 0.3

    delay = findings(arrivals(delay=later_in_the_second_half)).delay
    assert delay is not None
    assert delay.growth_s == pytest.approx(0.2, abs=0.02)


def test_a_gap_is_measured_by_arrival_and_by_content() -> None:
    found = findings(arrivals(lost=lambda index: 200 <= index < 230))
    assert found.longest_arrival_gap_s == pytest.approx(0.6, abs=0.001)
    assert found.longest_content_gap_s == pytest.approx(0.6, abs=0.001)
    assert [(round(gap.at_s, 2), round(gap.length_s, 2)) for gap in found.gaps] == [(3.98, 0.6)]


def test_a_stall_that_is_caught_up_is_a_gap_by_arrival_only() -> None:
    def stalled(index: int) -> float:
        return 0.1 + (0.5 - (index - 200) * FRAME_S if 200 <= index < 225 else 0.0)

    found = findings(arrivals(delay=stalled))
    assert found.longest_arrival_gap_s == pytest.approx(0.5, abs=0.001)
    assert found.longest_content_gap_s == pytest.approx(0.0, abs=0.001)


def test_silence_sent_in_packets_is_a_gap_by_content() -> None:
    silent = dataclasses.replace(TONE, packets=TONE.packets[:100] + (TONE.silence,) * 50 + TONE.packets[150:])
    found = findings(arrivals(silent))
    assert found.longest_content_gap_s == pytest.approx(1.0, abs=0.1)
    assert "the tone was there for" in faults(found, TONE, SENT_S)[0]


def test_a_tone_that_stops_before_the_end_is_a_gap_until_the_end() -> None:
    found = findings(arrivals(count=250))
    assert found.longest_arrival_gap_s == pytest.approx(5.0, abs=0.02)
    assert faults(found, TONE, SENT_S) != []


def test_loss_and_jitter_make_small_gaps_and_are_counted() -> None:
    draw = random.Random(5)
    gone = {index for index in range(1, 499) if draw.random() < 0.05}
    packets = arrivals(delay=lambda _: 0.1 + draw.uniform(0, 0.03), lost=gone.__contains__)
    reception = receive(packets)
    assert reception.lost == len(gone)
    found = analyse(reception.frames, TONE, START, START + SECONDS + 0.1)
    assert found.longest_arrival_gap_s is not None
    assert found.longest_arrival_gap_s < 0.1
    assert found.delay is not None
    assert abs(found.delay.growth_s) < 0.02


def test_duplicates_and_disorder_do_not_count_as_loss() -> None:
    packets = arrivals()
    packets[40], packets[42] = packets[42], packets[40]
    reception = receive([*packets[:100], packets[99], *packets[100:]])
    assert (len(reception.frames), reception.lost) == (500, 0)
    assert [frame.media_s for frame in reception.frames] == sorted(frame.media_s for frame in reception.frames)


def test_another_tone_is_wrong() -> None:
    assert faults(findings(arrivals(source.tone(550))), TONE, SENT_S)[0] == (
        "heard 550 Hz, sent 440 Hz; a backend with words of its own needs --any-reply"
    )


def test_silence_is_wrong() -> None:
    silence = dataclasses.replace(TONE, packets=(TONE.silence,))
    found = findings(arrivals(silence))
    assert faults(found, TONE, SENT_S) == [
        "nothing was heard; a backend that waits for a pause needs --talk, one with words of its own --any-reply"
    ]
    for source_, any_reply in ((source.tone(440, 2.0), False), (TONE, True)):
        assert faults(found, source_, SENT_S, any_reply=any_reply) == ["nothing was heard"]


def test_noise_is_no_tone() -> None:
    noise = np.random.default_rng(3).integers(-8000, 8000, 5 * RATE).astype(np.int16)
    packets = opus.encode(noise)
    found = findings(arrivals(dataclasses.replace(TONE, packets=tuple(packets))))
    assert found.tone_share is not None
    assert found.tone_share < 0.1


def test_a_much_quieter_tone_is_wrong() -> None:
    samples = (1000 * np.sin(2 * np.pi * 440 * np.arange(5 * RATE) / RATE)).astype(np.int16)
    quiet = dataclasses.replace(TONE, packets=tuple(opus.encode(samples)))
    assert any("dBFS" in fault for fault in faults(findings(arrivals(quiet)), TONE, SENT_S))


def test_a_parrot_may_answer_later() -> None:
    said = source.tone(440, talk_s=1.5)
    found = findings(arrivals(said, delay=lambda _: 2.1), said, ended_after=SECONDS)
    assert faults(found, said, SENT_S) == []
    assert found.delay is not None
    assert found.delay.median_s == pytest.approx(2.1, abs=0.03)


def speech() -> Source:
    """A file: bursts of noise of different lengths and pauses between them."""
    draw = np.random.default_rng(7)
    parts: list[opus.Samples] = []
    for length in (0.4, 0.2, 0.7, 0.3, 1.1, 0.5, 0.9):
        parts.append((draw.standard_normal(round(length * RATE)) * 3000).astype(np.int16))
        parts.append(np.zeros(round(0.2 * RATE), np.int16))
    samples = np.resize(np.concatenate(parts), round(SECONDS * RATE) // FRAME_SAMPLES * FRAME_SAMPLES)
    levels = [source.level_dbfs(part) for part in np.split(samples, len(samples) // FRAME_SAMPLES)]
    silence = opus.encode(np.zeros(10 * FRAME_SAMPLES, np.int16))[-1]
    return Source(tuple(opus.encode(samples)), tuple(levels), loop=False, frequency=None, silence=silence)


def test_a_file_that_comes_back_is_right_and_half_of_it_is_not() -> None:
    said = speech()
    assert faults(findings(arrivals(said), said), said, SENT_S) == []
    half = arrivals(said, lost=lambda index: index >= 250)
    assert "expected at least" in faults(findings(half, said), said, SENT_S)[0]


def test_a_tone_in_place_of_a_file_is_wrong_unless_any_reply_is_right() -> None:
    said = speech()
    found = findings(arrivals(source.tone(550)), said)
    assert "does not follow what was sent" in faults(found, said, SENT_S)[-1]
    assert faults(found, said, SENT_S, any_reply=True) == []


@pytest.mark.parametrize("frequency", [200.0, 440.0, 1000.4, 3000.0])
def test_frequencies_are_found_to_a_fraction_of_a_hertz(frequency: float) -> None:
    samples = (9000 * np.sin(2 * np.pi * frequency * np.arange(RATE) / RATE)).astype(np.int16)
    assert strongest_frequency(samples) == pytest.approx(frequency, abs=0.3)


def record(packets: list[RtpArrival]) -> CallRecord:
    return CallRecord(
        offered_at=START - 0.1,
        answered_at=START - 0.09,
        ice_at=START - 0.03,
        dtls_at=START - 0.01,
        sent_from=START,
        ended_at=START + SECONDS + 0.1,
        rtt_s=0.0005,
        description={"path": {"relay": "127.0.0.1:3478", "transceiver": "1/17/0"}},
        events=["session.created"],
        arrivals=packets,
    )


def test_a_call_becomes_numbers_with_their_units() -> None:
    result = judge(record(arrivals()), TONE)
    assert result.ok
    assert (result.offer_answer_ms, result.ice_ms, result.dtls_ms) == (10.0, 60.0, 20.0)
    assert result.first_audio_ms == pytest.approx(200.0)
    assert (result.rtt_ms, result.lost, result.received) == (0.5, 0, 500)
    assert result.transceiver == "1/17/0"
    assert result.longest_gap_ms == pytest.approx(0.0, abs=1)


def test_a_call_that_broke_is_not_ok_whatever_it_sounded_like() -> None:
    broken = record(arrivals())
    broken.broke = "the connection ended by itself"
    assert judge(broken, TONE).wrong == ("the connection ended by itself",)


def test_the_summary_counts_and_spreads() -> None:
    results = [judge(record(arrivals()), TONE), failed("nobody answers")]
    summary = summarise(results, elapsed_s=2.0, cpu_s=0.5)
    assert (summary["calls"], summary["ok"], summary["failed"]) == (2, 1, 1)
    assert summary["offer_answer_ms"] == {"p50": 10.0, "p95": 10.0, "p99": 10.0, "max": 10.0}
    assert summary["transceivers"] == {"1/17/0": 1}
    assert summary["wrong"] == {"nobody answers": 1}
    assert summary["client_cpu_share"] == 0.25
    assert set(as_json(results, summary)) == {"calls", "summary"}


def test_an_answer_is_redirected_section_by_section() -> None:
    candidate = "a=candidate:1 1 udp 2130706431 {} 3478 typ host"
    section = ["m=audio 9 UDP/TLS/RTP/SAVPF 96", candidate.format("10.0.0.1"), candidate.format("127.0.0.1"), "a=mid:0"]
    answer = "\r\n".join(["v=0", *section, *section]) + "\r\n"
    changed = redirect(answer, "127.0.0.1", 5555).splitlines()
    assert [line for line in changed if "candidate" in line] == [
        "a=candidate:1 1 udp 2130706431 127.0.0.1 5555 typ host"
    ] * 2
    assert [line for line in changed if "candidate" not in line] == [
        line for line in answer.splitlines() if "candidate" not in line
    ]
