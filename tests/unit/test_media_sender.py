"""From the play queues to RTP packets."""

from random import Random

import pytest

from tests.media_network import NumberCodec, number_packet
from usher_transceiver.media.codec import MAX_PACKET, EncoderSettings
from usher_transceiver.media.feed import OpusFeed, PcmFeed
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_SECONDS, SILENCE
from usher_transceiver.media.rtp import RtpPacket, extensions, parse_rtp
from usher_transceiver.media.sender import RtpSender

LOUD = bytes((1, 64)) * 480


class Rig:
    def __init__(self, *, clock_rate: int = 48_000, max_ms: int = 1000, opus: bool = False) -> None:
        self.pcm = PcmFeed(NumberCodec().encoder(EncoderSettings()), max_ms)
        self.opus = OpusFeed(max_ms)
        feed = self.opus if opus else self.pcm
        self.sender = RtpSender(7, 111, clock_rate, feed, 0.0, Random(3), mid=(4, "audio"), level_extension_id=1)
        self.ticks = 0

    def tick(self, count: int = 1) -> list[RtpPacket]:
        packets = []
        for _ in range(count):
            packets += self.sender.tick(self.ticks * FRAME_SECONDS)
            self.ticks += 1
        return [parse_rtp(packet) for packet in packets]


def test_nothing_is_sent_before_the_first_speech() -> None:
    assert Rig().tick(100) == []


def test_the_first_packet_of_each_run_of_speech_has_the_marker() -> None:
    rig = Rig()
    rig.pcm.play(LOUD * 3)
    first = rig.tick(50)
    rig.pcm.play(LOUD * 3)
    second = rig.tick(50)
    for run in (first, second):
        assert [packet.marker for packet in run] == [True, *[False] * (len(run) - 1)]


@pytest.mark.parametrize(("clock_rate", "step"), [(48_000, 960), (16_000, 320)])
def test_sequence_counts_packets_and_time_goes_on_through_silence(clock_rate: int, step: int) -> None:
    rig = Rig(clock_rate=clock_rate)
    rig.pcm.play(LOUD * 10)
    packets = rig.tick(200)
    rig.pcm.play(LOUD * 10)
    packets += rig.tick(20)
    first = packets[0]
    assert [packet.sequence - first.sequence & 0xFFFF for packet in packets] == list(range(len(packets)))
    assert {packet.ssrc for packet in packets} == {7}
    again = next(packet for packet in packets[1:] if packet.marker)
    assert again.timestamp - first.timestamp & 0xFFFFFFFF == 200 * step
    assert packets[1].timestamp - first.timestamp & 0xFFFFFFFF == step


def test_silence_is_a_short_tail_then_one_byte_every_400_ms() -> None:
    rig = Rig()
    rig.pcm.play(LOUD * 5)
    packets = rig.tick(5 + 100)
    assert [len(packet.payload) for packet in packets] == [3] * (5 + 3) + [1] * (3 + 4)
    assert packets[-1].payload == bytes((0xD8,))
    gaps = [(b.timestamp - a.timestamp & 0xFFFFFFFF) / 960 for a, b in zip(packets[-4:], packets[-3:], strict=False)]
    assert gaps == [20, 20, 20]


def test_digital_silence_in_the_queue_is_not_encoded() -> None:
    rig = Rig(max_ms=10_000)
    rig.pcm.play(LOUD + SILENCE * 100)
    assert sum(len(packet.payload) > 1 for packet in rig.tick(120)) == 1 + 3
    assert rig.pcm.played_ms == 2020


def test_a_rest_shorter_than_a_frame_waits_one_tick_for_more_and_is_then_filled_up() -> None:
    rig = Rig()
    for _ in range(10):
        rig.pcm.play(LOUD[: FRAME_BYTES // 2])
        first = rig.tick()
        rig.pcm.play(LOUD[: FRAME_BYTES // 2])
        second = rig.tick()
    assert (len(first), len(second)) == (1, 1)  # the tail of the pair before fills the tick between
    rig.pcm.play(LOUD[:100])
    rig.tick(2)
    assert rig.pcm.queued_ms == 0


def test_every_packet_says_its_mid_and_its_level() -> None:
    rig = Rig()
    rig.pcm.play(LOUD)
    packets = rig.tick(2)
    said = [extensions(packet) for packet in packets]
    assert [element[4] for element in said] == [b"audio", b"audio"]
    assert said[0][1] == bytes((0x80 | 6,))  # half of full scale, with the voice bit
    assert said[1][1] == bytes((127,))


def test_without_extensions_there_is_no_extension_block() -> None:
    feed = PcmFeed(NumberCodec(), 1000)
    sender = RtpSender(7, 111, 48_000, feed, 0.0, Random(1))
    feed.play(LOUD)
    assert sender.tick(0.0)[0][0] == 0x80


def test_the_queue_is_bounded_and_what_is_dropped_is_the_newest_and_counted() -> None:
    rig = Rig(max_ms=100)
    first = (1).to_bytes(2, "little") * 480
    assert rig.pcm.play(first * 4) == 80
    assert rig.pcm.play(LOUD * 4) == 20
    assert (rig.pcm.queued_ms, rig.pcm.dropped_ms) == (100, 60)
    assert [packet.payload for packet in rig.tick(4)] == [number_packet(1)] * 4


def test_pieces_of_odd_length_do_not_turn_what_follows_into_noise() -> None:
    rig = Rig()
    pcm = b"".join(number.to_bytes(2, "little") * 480 for number in range(0x101, 0x105))
    for at in range(0, len(pcm), 333):
        rig.pcm.play(pcm[at : at + 333])
    assert [packet.payload for packet in rig.tick(4)] == [number_packet(number) for number in range(0x101, 0x105)]


def test_clear_drops_the_queue_and_tells_how_much() -> None:
    rig = Rig()
    rig.pcm.play(LOUD * 10)
    rig.tick(4)
    assert rig.pcm.clear() == 120
    assert (rig.pcm.queued_ms, rig.pcm.played_ms, rig.pcm.dropped_ms) == (0, 80, 120)
    assert sum(len(packet.payload) > 1 for packet in rig.tick(20)) == 3


def test_packets_pass_through_unchanged_at_the_pace_of_their_durations() -> None:
    rig = Rig(opus=True)
    ten, sixty = bytes((0xD0, 1)), bytes((0xDB, 3, 2))
    assert [rig.opus.play_opus(packet) for packet in (ten, ten, sixty, ten, ten)] == [10, 10, 60, 10, 10]
    by_tick = [rig.tick() for _ in range(6)]
    assert [[packet.payload for packet in packets] for packets in by_tick[:5]] == [
        [ten, ten],
        [sixty],
        [],
        [],
        [ten, ten],
    ]
    times = [packet.timestamp for packets in by_tick[:5] for packet in packets]
    assert [(time - times[0] & 0xFFFFFFFF) // 480 for time in times] == [0, 1, 2, 8, 9]
    assert [packet.payload for packet in by_tick[5]] == [bytes((0xD0,))]
    assert 1 not in extensions(by_tick[0][0])  # nobody decoded it, so nobody knows its level


def test_what_is_not_opus_and_what_does_not_fit_is_not_queued() -> None:
    feed = OpusFeed(40)
    assert feed.play_opus(number_packet(1) + bytes(MAX_PACKET)) == 0
    assert feed.dropped_ms == 20
    feed.dropped_ms = 0
    assert [
        feed.play_opus(packet) for packet in (b"", b"\x03", number_packet(1), number_packet(1), number_packet(1))
    ] == [
        0,
        0,
        20,
        20,
        0,
    ]
    assert (feed.queued_ms, feed.dropped_ms) == (40, 20)
    assert feed.clear() == 40
    assert feed.tick() == []


def test_speech_after_missed_ticks_takes_the_time_of_the_clock_again() -> None:
    rig = Rig()
    rig.pcm.play(LOUD)
    before = rig.tick()[0]
    rig.ticks += 100  # a stall of two seconds, given up by the ticker
    rig.tick()
    rig.tick(10)
    rig.pcm.play(LOUD)
    after = rig.tick()[0]
    assert (after.timestamp - before.timestamp & 0xFFFFFFFF) / 960 == 112


def test_start_values_are_random() -> None:
    starts = set()
    for seed in range(5):
        feed = PcmFeed(NumberCodec(), 1000)
        feed.play(LOUD)
        packet = parse_rtp(RtpSender(7, 111, 48_000, feed, 0.0, Random(seed)).tick(0.0)[0])
        starts.add((packet.sequence, packet.timestamp))
    assert len(starts) == 5
