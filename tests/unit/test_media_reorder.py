"""The rules at the top of reorder.py, one after the other. Packets carry their number; the network is instant."""

from random import Random

import pytest

from tests.media_network import number_packet
from usher_core.errors import RemoteError
from usher_transceiver.media.reorder import Action, JitterBuffer, Step

FRAME = 0.02


class Rig:
    """A buffer in virtual time: packet n is due to arrive at n * 20 ms, and a pull follows 7 ms after that."""

    def __init__(self, clock_rate: int = 48_000, sequence: int = 65_530, timestamp: int = (1 << 32) - 3000) -> None:
        self.buffer = JitterBuffer(clock_rate)
        self.step = clock_rate // 50
        self.sequence = sequence
        self.timestamp = timestamp

    def put(self, number: int, at: float | None = None, payload: bytes | None = None) -> None:
        self.buffer.put(
            number * FRAME if at is None else at,
            self.sequence + number & 0xFFFF,
            self.timestamp + number * self.step & 0xFFFFFFFF,
            number_packet(number) if payload is None else payload,
        )

    def pull(self, tick: int, *, quiet: bool = False) -> Step:
        return self.buffer.pull(tick * FRAME + 0.007, quiet=quiet)

    def hear(self, tick: int) -> int | Action:
        step = self.pull(tick)
        while step.action is Action.SKIP:
            step = self.pull(tick)
        return int.from_bytes(step.payload[1:3], "little") if step.action is Action.PLAY else step.action

    def settle(self, ticks: int = 10) -> None:
        """Play until `ticks` packets have come, in order; packet n is then heard at tick n + 1."""
        for tick in range(ticks):
            self.put(tick)
            self.hear(tick)


def test_nothing_is_made_up_before_the_first_packet_may_play() -> None:
    rig = Rig()
    rig.put(0)
    assert [rig.hear(0), rig.hear(1)] == [Action.SILENCE, 0]


def test_packets_that_change_places_are_heard_in_order_across_the_wrap() -> None:
    rig = Rig()
    heard = []
    for pair in range(0, 40, 2):
        for number in (pair + 1, pair):
            rig.put(number, at=(pair + 1) * FRAME)
        heard += [rig.hear(pair + 1), rig.hear(pair + 2)]
    assert [number for number in heard if number is not Action.SILENCE] == list(range(40))


def test_a_lost_packet_costs_its_own_20_ms_and_no_delay() -> None:
    rig = Rig()
    rig.settle()
    heard = []
    for tick in range(10, 30):
        if tick != 15:
            rig.put(tick)
        heard.append(rig.hear(tick))
    assert heard == [*range(9, 15), Action.RECOVER, *range(16, 29)]
    assert rig.buffer.counts.lost == 1


def test_of_several_lost_packets_the_last_is_recovered_and_the_others_concealed() -> None:
    rig = Rig()
    rig.buffer.delay.target = 0.06
    heard = []
    for tick in range(30):
        if tick not in (20, 21, 22):
            rig.put(tick)
        heard.append(rig.hear(tick))
    made_up = [Action.CONCEAL, Action.CONCEAL, Action.RECOVER]
    assert heard == [*[Action.SILENCE] * 3, *range(20), *made_up, 23, 24, 25, 26]


def test_a_late_packet_that_was_not_replaced_is_still_heard() -> None:
    rig = Rig()
    rig.settle()
    assert rig.hear(10) == 9
    assert rig.hear(11) is Action.CONCEAL
    for number in (10, 11, 12):
        rig.put(number, at=12 * FRAME)
    assert [rig.hear(tick) for tick in (12, 13, 14)] == [10, 11, 12]


def test_a_packet_whose_place_was_filled_is_late_and_not_heard() -> None:
    rig = Rig()
    rig.settle()
    rig.put(11, at=10 * FRAME)
    assert [rig.hear(10), rig.hear(11), rig.hear(12)] == [9, Action.RECOVER, 11]
    rig.put(10, at=12.5 * FRAME)
    assert rig.buffer.counts.late == 1
    rig.put(12, at=12.6 * FRAME)
    assert rig.hear(13) == 12


def test_a_duplicate_is_heard_once() -> None:
    rig = Rig()
    for number in range(5):
        rig.put(number)
        rig.put(number)
    assert [rig.hear(tick) for tick in (5, 6, 7)] == [0, 1, 2]
    assert rig.buffer.counts.late == 5


def test_when_nothing_comes_concealment_becomes_silence_after_100_ms() -> None:
    rig = Rig()
    rig.settle()
    heard = [rig.hear(tick) for tick in range(10, 20)]
    assert heard == [9, *[Action.CONCEAL] * 5, *[Action.SILENCE] * 4]


def test_a_burst_after_a_stall_of_the_network_is_heard_whole_and_its_delay_worn_off() -> None:
    rig = Rig()
    rig.settle(50)
    for tick in range(50, 60):
        rig.hear(tick)
    for number in range(50, 60):
        rig.put(number, at=60 * FRAME)
    heard = []
    delays = []
    for tick in range(60, 400):
        rig.put(tick)
        heard.append(rig.hear(tick))
        delays.append(rig.buffer.lag(tick * FRAME + 0.007))
    assert heard[:10] == list(range(50, 60))
    assert delays[0] > 0.18
    assert delays[-1] < 0.06
    assert rig.buffer.counts.lost == 0


def test_too_much_delay_is_cut_in_quiet_places_at_once_but_not_twice_in_one_tick() -> None:
    rig = Rig()
    rig.settle(50)
    for number in range(50, 60):
        rig.put(number, at=59 * FRAME)
    for tick in range(60, 63):
        rig.put(tick)
    rig.pull(60, quiet=True)
    assert rig.pull(61, quiet=True).action is Action.SKIP
    assert rig.pull(61, quiet=True).action is Action.PLAY
    assert rig.pull(62, quiet=True).action is Action.SKIP


def test_a_pause_in_the_media_time_without_lost_packets_is_a_pause() -> None:
    rig = Rig()
    rig.settle()
    assert rig.hear(10) == 9
    rig.sequence -= 20  # the next packet is in sequence, but 20 frames later in time
    for tick in range(11, 30):
        assert rig.hear(tick) in (Action.CONCEAL, Action.SILENCE)
    rig.put(30)
    heard = [rig.hear(tick) for tick in (30, 31, 32)]
    assert 30 in heard
    assert rig.buffer.counts.lost == 0


def test_the_delay_that_is_shown_does_not_grow_while_nothing_comes() -> None:
    rig = Rig()
    rig.settle()
    for tick in range(10, 500):
        rig.hear(tick)
    assert rig.buffer.lag(499 * FRAME + 0.007) < 0.06


def test_after_a_dtx_packet_nothing_is_made_up() -> None:
    rig = Rig()
    rig.settle()
    rig.put(10, payload=b"\xd8")
    assert [rig.hear(10), rig.pull(11).action] == [9, Action.PLAY]
    assert [rig.hear(12), rig.hear(13)] == [Action.SILENCE] * 2


def test_a_single_wild_sequence_number_is_an_accident_and_two_in_a_row_a_new_beginning() -> None:
    rig = Rig()
    rig.settle()
    rig.buffer.put(0.2, 20_000, 1, number_packet(1))
    rig.put(10)
    assert [rig.hear(10), rig.hear(11)] == [9, 10]
    rig.buffer.put(0.24, 30_000, 500, number_packet(1))
    rig.buffer.put(0.26, 30_001, 1460, number_packet(2))
    assert 2 in [rig.hear(tick) for tick in (13, 14, 15)]
    assert rig.buffer.counts.jumps == 2


def test_a_media_time_that_jumps_is_a_new_beginning() -> None:
    rig = Rig()
    rig.settle()
    rig.timestamp += 1 << 30
    for tick in range(10, 15):
        rig.put(tick)
        heard = rig.hear(tick)
    assert heard == 13
    assert rig.buffer.counts.jumps == 1


def test_a_device_that_stops_its_clock_while_mute_is_heard_at_once_without_added_delay() -> None:
    rig = Rig()
    rig.settle()
    for tick in range(10, 70):
        rig.hear(tick)
    rig.timestamp -= 60 * rig.step
    rig.sequence -= 60
    for tick in range(70, 80):
        rig.put(tick)
        heard = rig.hear(tick)
    assert heard == 78
    assert rig.buffer.lag(79 * FRAME) < 0.05


@pytest.mark.parametrize(("negotiated", "real"), [(16_000, 48_000), (48_000, 16_000)])
def test_a_device_that_counts_with_another_clock_than_it_offered_is_understood(negotiated: int, real: int) -> None:
    rig = Rig(negotiated)
    rig.step = real // 50
    heard = []
    for tick in range(200):
        rig.put(tick)
        heard.append(rig.hear(tick))
    assert heard[20:] == list(range(19, 199))


@pytest.mark.parametrize("clock_rate", [16_000, 48_000])
def test_packets_of_60_ms_follow_each_other(clock_rate: int) -> None:
    buffer = JitterBuffer(clock_rate)
    heard = []
    for tick in range(30):
        now = tick * 0.06
        buffer.put(now, tick, tick * clock_rate * 60 // 1000, bytes((0xDB, 3, tick)))
        step = buffer.pull(now + 0.021)
        heard.append((step.payload[2:], step.samples))
    assert heard == [(bytes((tick,)), 2880) for tick in range(30)]


def test_the_buffer_is_bounded_whatever_comes() -> None:
    rig = Rig()
    random = Random(1)
    for index in range(2000):
        rig.put(random.randrange(index + 1), at=0.001 * index)
        assert len(rig.buffer._packets) <= 64
    assert rig.buffer.counts.overflow


def test_after_a_stall_of_our_own_the_old_audio_is_cut() -> None:
    rig = Rig()
    rig.settle()
    for number in range(10, 50):
        rig.put(number)
    assert rig.hear(50) in range(22, 28)
    assert rig.buffer.lag(50 * FRAME) <= 0.5


def test_what_cannot_be_opus_is_refused_and_leaves_no_trace() -> None:
    rig = Rig()
    with pytest.raises(RemoteError):
        rig.put(0, payload=b"")
    assert not rig.buffer.started
