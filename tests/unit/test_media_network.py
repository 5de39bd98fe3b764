"""What a call sounds like over a bad network: the numbers of the design, in virtual time."""

from random import Random
from statistics import mean

import pytest

from tests.media_network import OURS, Ear, NumberCodec, network, number_packet, run, talk
from tests.media_tone import frames_of, frequency, level, tone
from usher_transceiver.media.codec import EncoderSettings
from usher_transceiver.media.frame import FRAME_BYTES, AudioFrame, Origin
from usher_transceiver.media.opus import LibOpus
from usher_transceiver.media.opus_pyav import PyAvOpus
from usher_transceiver.media.rtp import parse_rtp
from usher_transceiver.media.stream import AudioStream, StreamStats

MINUTE = 3000  # packets
BEST = 0.02  # seconds: the network's delay without jitter


def call(seed: int, *, loss: float, jitter: float, packets: int = MINUTE) -> tuple[Ear, StreamStats]:
    ear = Ear()
    stream = AudioStream(OURS, NumberCodec(), ear, 0.0, Random(1))
    arrivals = network(talk(map(number_packet, range(packets))), Random(seed), loss=loss, jitter=jitter, delay=BEST)
    run(stream, ear, arrivals, packets * 0.02 + 0.2, phase=0.001 + seed % 4 * 0.005)
    return ear, stream.stats(packets * 0.02)


def thirds(values: list[float]) -> list[float]:
    third = len(values) // 3
    return [mean(values[at : at + third]) for at in (0, third, 2 * third)]


@pytest.mark.parametrize("seed", range(8))
def test_5_percent_loss_and_30_ms_jitter_stall_no_longer_than_60_ms_and_delay_does_not_grow(seed: int) -> None:
    ear, stats = call(seed, loss=0.05, jitter=0.03)
    first, _, last = thirds([delay - BEST for delay in ear.delays()])
    print(f"longest stall {ear.longest_stall() * 1000:.0f} ms, added delay {first * 1000:.0f} -> {last * 1000:.0f} ms")
    assert ear.longest_stall() <= 0.06
    assert last - first <= 0.01
    assert max(ear.delays()) - BEST <= 0.08
    heard = sum(frame.origin is Origin.RECEIVED for _, frame in ear.frames)
    assert heard >= 0.94 * MINUTE
    assert 0.04 * MINUTE < stats.lost < 0.06 * MINUTE


@pytest.mark.parametrize("seed", range(4))
def test_a_clean_network_adds_little_delay_and_conceals_nothing(seed: int) -> None:
    ear, _ = call(seed, loss=0, jitter=0)
    assert ear.longest_stall() == 0
    assert len(ear.delays()) >= MINUTE - 1  # one may be skipped, once the network has shown how good it is
    assert thirds([delay - BEST for delay in ear.delays()])[2] <= 0.03


@pytest.mark.parametrize("seed", range(4))
def test_each_lost_packet_is_one_frame_of_concealment(seed: int) -> None:
    ear, stats = call(seed, loss=0.05, jitter=0)
    concealed = sum(frame.origin is Origin.CONCEALED for _, frame in ear.frames)
    assert abs(concealed - stats.lost) <= 8  # those of the end, where nothing comes any more
    assert stats.late == 0


@pytest.mark.parametrize("seed", range(4))
def test_100_ms_of_jitter_are_learnt_and_not_waited_for_without_bound(seed: int) -> None:
    ear, _ = call(seed, loss=0.05, jitter=0.1)
    assert ear.longest_stall() <= 0.1
    assert thirds([delay - BEST for delay in ear.delays()])[2] <= 0.13


def test_delay_learnt_in_bad_times_is_given_back_in_good_ones() -> None:
    ear = Ear()
    stream = AudioStream(OURS, NumberCodec(), ear, 0.0, Random(1))
    sent = talk(map(number_packet, range(2 * MINUTE)))
    arrivals = network(sent[:MINUTE], Random(1), jitter=0.06) + network(sent[MINUTE:], Random(2))
    run(stream, ear, arrivals, 2 * MINUTE * 0.02)
    delays = [delay - BEST for delay in ear.delays()]
    assert mean(delays[MINUTE - 500 : MINUTE]) > 0.05
    assert mean(delays[-500:]) < 0.035
    assert ear.longest_stall() <= 0.06


@pytest.mark.parametrize("parts_per_million", [-300, 300])
def test_a_client_whose_clock_is_wrong_does_not_build_up_delay_or_gaps(parts_per_million: int) -> None:
    ear = Ear()
    stream = AudioStream(OURS, NumberCodec(), ear, 0.0, Random(1))
    sent = talk(map(number_packet, range(5 * MINUTE)))
    drifted = [type(arrival)(arrival.at * (1 + parts_per_million / 1e6), arrival.packet) for arrival in sent]
    run(stream, ear, network(drifted, Random(1), jitter=0.01), 299)
    assert stream.stats(299).delay_ms < 50
    assert stream.stats(299).lost == 0
    assert ear.longest_stall() <= 0.02


@pytest.mark.parametrize(
    "codec",
    [pytest.param(LibOpus, id="libopus", marks=pytest.mark.needs("libopus")), pytest.param(PyAvOpus, id="pyav")],
)
@pytest.mark.parametrize("clock_rate", [48_000, 16_000])
def test_a_tone_survives_loss_and_jitter_there_and_back(codec: type[LibOpus | PyAvOpus], clock_rate: int) -> None:
    """As a client hears it: its own voice through the echo, over a network that loses 5 % each way."""
    made = codec()
    encoder = made.encoder(EncoderSettings())
    voice = tone(440, seconds=10)
    parameters = type(OURS)(ssrc=1, cname="usher", payload_type=111, clock_rate=clock_rate)
    ears = Ear(), Ear()

    def echo(frame: AudioFrame) -> None:
        ears[0](frame)
        far.play(frame.data)

    far = AudioStream(parameters, made, echo, 0.0, Random(1))
    sent = talk(map(encoder.encode, frames_of(voice)), clock_rate=clock_rate)
    back = run(far, ears[0], network(sent, Random(2), loss=0.05, jitter=0.03), 10)
    near = AudioStream(parameters, made, ears[1], 0.0, Random(1))
    answers = [type(sent[0])(at, packet) for at, packet in back if packet[1] & 0x7F == 111]
    run(near, ears[1], network(answers, Random(3), loss=0.05, jitter=0.03), 10)
    heard = b"".join(frame.data for _, frame in ears[1].frames)[25 * FRAME_BYTES : -10 * FRAME_BYTES]
    assert ears[1].longest_stall() <= 0.06
    assert frequency(heard) == pytest.approx(440, abs=2)
    assert level(heard) == pytest.approx(level(voice), abs=2)
    assert {parse_rtp(packet).ssrc for _, packet in back if packet[1] & 0x7F == 111} == {1}
