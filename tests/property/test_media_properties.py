from contextlib import suppress
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.media_network import OURS, THEIRS, Ear, NumberCodec, number_packet
from usher_core.errors import RemoteError
from usher_transceiver.media.opus_packet import packet_duration
from usher_transceiver.media.reorder import Action, JitterBuffer
from usher_transceiver.media.rtcp import Bye, Report, ReportBlock, build_bye, build_report, parse_rtcp
from usher_transceiver.media.rtp import (
    ONE_BYTE_PROFILE,
    RtpPacket,
    build_rtp,
    extensions,
    one_byte_extension,
    parse_rtp,
)
from usher_transceiver.media.sequence import Unwrapper
from usher_transceiver.media.stream import AudioStream

FRAME = 0.02
u16, u32 = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)
elements = st.dictionaries(st.integers(1, 14), st.binary(min_size=1, max_size=16), max_size=6)


@st.composite
def rtp_packets(draw: st.DrawFn) -> RtpPacket:
    block = one_byte_extension(draw(elements))
    return RtpPacket(
        draw(st.integers(0, 127)), draw(u16), draw(u32), draw(u32), draw(st.binary(max_size=60)), draw(st.booleans()),
        ONE_BYTE_PROFILE if block else 0, block,
    )  # fmt: skip


@given(rtp_packets())
def test_an_rtp_packet_is_read_as_it_was_built(packet: RtpPacket) -> None:
    assert parse_rtp(build_rtp(packet)) == packet


@given(elements)
def test_header_extensions_are_read_as_they_were_built(given_elements: dict[int, bytes]) -> None:
    packet = RtpPacket(0, 0, 0, 0, b"", False, ONE_BYTE_PROFILE, one_byte_extension(given_elements))
    assert extensions(packet) == given_elements


blocks = st.builds(ReportBlock, u32, st.integers(0, 255), st.integers(-(1 << 23), (1 << 23) - 1), u32, u32, u32, u32)
reports = st.builds(Report, u32, st.lists(blocks, max_size=31).map(tuple)) | st.builds(
    Report, u32, st.lists(blocks, max_size=31).map(tuple), st.integers(0, (1 << 64) - 1), u32, u32, u32
)
byes = st.builds(Bye, st.lists(u32, max_size=31).map(tuple))


@given(st.lists(reports | byes, max_size=4))
def test_a_compound_is_read_as_it_was_built(items: list[Report | Bye]) -> None:
    compound = b"".join(build_bye(item.ssrcs) if isinstance(item, Bye) else build_report(item) for item in items)
    assert parse_rtcp(compound) == items


@given(st.binary(max_size=80))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for parse in (parse_rtp, parse_rtcp, packet_duration):
        with suppress(RemoteError):
            parse(data)
    with suppress(RemoteError):
        extensions(parse_rtp(b"\x90" + data))


@given(st.integers(0, 1 << 40), st.lists(st.integers(-100, 30_000), max_size=40))
def test_a_counter_is_unwrapped_whatever_its_steps(first: int, steps: list[int]) -> None:
    counter, value = Unwrapper(16, first), first
    for step in steps:
        value += step
        assert counter.unwrap(value & 0xFFFF) == value


class Listener:
    """Pulls every 20 ms of virtual time what a buffer gives."""

    def __init__(self) -> None:
        self.buffer = JitterBuffer(48_000)
        self.played: list[int] = []
        self.skipped: list[int] = []

    def tick(self, now: float) -> None:
        step = self.buffer.pull(now)
        while step.action is Action.SKIP:
            self.skipped.append(int.from_bytes(step.payload[1:3]))
            step = self.buffer.pull(now)
        if step.action is Action.PLAY:
            self.played.append(int.from_bytes(step.payload[1:3]))


def packet(number: int) -> bytes:
    return b"\xd8" + number.to_bytes(2)


@given(
    start=st.tuples(u16, u32),
    delays=st.lists(st.none() | st.floats(0, 0.3), min_size=1, max_size=120),
    phase=st.floats(0, 0.0199),
    copies=st.integers(1, 3),
)
def test_what_is_played_is_in_order_once_and_was_received(
    start: tuple[int, int], delays: list[float | None], phase: float, copies: int
) -> None:
    arrivals = sorted(
        (number * FRAME + delay, number)
        for number, delay in enumerate(delays)
        if delay is not None
        for _ in range(copies)
    )
    listener = Listener()
    for tick in range(len(delays) + 60):
        now = tick * FRAME + phase
        while arrivals and arrivals[0][0] <= now:
            at, number = arrivals.pop(0)
            sequence, timestamp = start[0] + number & 0xFFFF, start[1] + number * 960 & 0xFFFFFFFF
            listener.buffer.put(at, sequence, timestamp, packet(number))
        listener.tick(now)
    heard = sorted(listener.played + listener.skipped)
    assert listener.played == sorted(set(listener.played))
    assert len(heard) == len(set(heard))
    assert all(delays[number] is not None for number in heard)
    # Nothing that came is left behind in the end.
    counts = listener.buffer.counts
    received = sum(delay is not None for delay in delays) * copies
    assert len(heard) + counts.late + counts.overflow + counts.jumps >= received


@given(order=st.permutations(range(5)), start=u16)
def test_packets_that_come_together_in_any_order_are_all_played(order: list[int], start: int) -> None:
    listener = Listener()
    for number in order:
        listener.buffer.put(0.0, start + number & 0xFFFF, number * 960, packet(number))
    for tick in range(20):
        listener.tick(0.001 + tick * FRAME)
    assert listener.played + listener.skipped == sorted(listener.played + listener.skipped)
    assert sorted(listener.played + listener.skipped) == list(range(5))


@given(lost=st.sets(st.integers(10, 190), max_size=60))
def test_loss_alone_never_adds_delay(lost: set[int]) -> None:
    listener = Listener()
    lags = []
    for tick in range(200):
        if tick not in lost:
            listener.buffer.put(tick * FRAME, tick, tick * 960, packet(tick))
        listener.tick(tick * FRAME + 0.007)
        lags.append(listener.buffer.lag(tick * FRAME + 0.007))
    assert listener.played == [number for number in range(max(listener.played) + 1) if number not in lost]
    arrived = [lag for tick, lag in enumerate(lags) if tick > 10 and tick not in lost and tick - 1 not in lost]
    assert all(lag <= lags[9] + 0.001 for lag in arrived)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 0.2),
            st.one_of(
                st.binary(max_size=60),
                st.builds(lambda s, t, p: build_rtp(RtpPacket(111, s, t, THEIRS, p)), u16, u32, st.binary(max_size=8)),
            ),
        ),
        max_size=60,
    ),
    st.sampled_from(["pcm", "opus"]),
)
def test_a_stream_survives_whatever_a_client_sends(packets: list[tuple[float, bytes]], kind: str) -> None:
    ear = Ear()
    parameters = type(OURS)(ssrc=1, cname="usher", payload_type=111, kind="opus" if kind == "opus" else "pcm")
    stream = AudioStream(parameters, NumberCodec(), ear, 0.0, Random(1))
    now = 0.0
    for wait, data in packets:
        now += wait
        stream.on_rtp(now, data)
        stream.on_rtcp(now, data)
        stream.tick(now)
    good = build_rtp(RtpPacket(111, 1, 1, 0x7777, number_packet(7)))
    again = build_rtp(RtpPacket(111, 2, 961, 0x7777, number_packet(8)))
    stream.on_rtp(now + 1.1, good)
    stream.on_rtp(now + 1.12, again)
    heard = len(ear.frames)
    for tick in range(10):
        stream.tick(now + 1.13 + tick * FRAME)
    assert any(frame.data[-2:] in (b"\x07\x00", b"\x08\x00") for _, frame in ear.frames[heard:]) or kind == "opus"
