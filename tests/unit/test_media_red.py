"""Packets that carry copies of those before them (RFC 2198): read, and worth what they cost."""

from dataclasses import replace
from random import Random

import pytest

from tests.media_network import OURS, THEIRS, Arrival, Ear, NumberCodec, network, number_packet, run
from usher_core.errors import RemoteError
from usher_core.rtp import is_rtcp
from usher_transceiver.media.frame import Origin
from usher_transceiver.media.red import Copy, build_red, split_red
from usher_transceiver.media.rtcp import Report, ReportBlock, build_report
from usher_transceiver.media.rtp import RtpPacket, build_rtp, parse_rtp
from usher_transceiver.media.stream import AudioStream, StreamStats

RED, OPUS = 63, 111


def red(own: bytes, *copies: tuple[int, bytes], payload_type: int = OPUS) -> bytes:
    """`copies`: RTP time behind and payload, oldest first."""
    headers = b"".join((0x80000000 | payload_type << 24 | time << 10 | len(data)).to_bytes(4) for time, data in copies)
    return headers + bytes((payload_type,)) + b"".join(data for _, data in copies) + own


@pytest.mark.parametrize(
    ("payload", "copies"),
    [
        (red(b"own"), []),
        (red(b"own", (960, b"before")), [Copy(1, 960, b"before")]),
        (red(b"own", (1920, b"older"), (960, b"before")), [Copy(2, 1920, b"older"), Copy(1, 960, b"before")]),
        (red(b"own", (1920, b"older"), (960, b"")), [Copy(2, 1920, b"older")]),
        (bytes((0x80 | 13, 0x0F, 0x00, 1, OPUS, 7)) + b"own", []),  # comfort noise is no copy of ours
    ],
)
def test_a_packet_is_split_into_its_own_payload_and_the_copies(payload: bytes, copies: list[Copy]) -> None:
    assert split_red(payload, OPUS) == (b"own", copies)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xef",
        b"\xef\x0f\x00",
        b"\xef\x0f\x00\x01",
        red(b"own", payload_type=0),
        b"\xef\x0f\x03\xff\x6fshort",
        b"\xef\x0f\x00\x01" * 9 + b"\x6f",
    ],
)
def test_what_is_malformed_is_the_clients_fault(payload: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        split_red(payload, OPUS)
    assert caught.value.reason == "red_packet"


def talk_red(count: int, *, copies: int = 1) -> list[Arrival]:
    sent = []
    for number in range(count):
        before = [(960 * back, number_packet(number - back)) for back in range(copies, 0, -1) if number >= back]
        payload = red(number_packet(number), *before)
        packet = RtpPacket(RED, 65_500 + number & 0xFFFF, (1 << 32) - 9600 + 960 * number & 0xFFFFFFFF, THEIRS, payload)
        sent.append(Arrival(number * 0.02, build_rtp(packet)))
    return sent


def call(seed: int, *, loss: float, jitter: float, copies: int = 1, count: int = 3000) -> tuple[Ear, StreamStats]:
    ear = Ear()
    stream = AudioStream(replace(OURS, red_payload_type=RED), NumberCodec(), ear, 0.0, Random(1))
    run(
        stream, ear, network(talk_red(count, copies=copies), Random(seed), loss=loss, jitter=jitter), count * 0.02 + 0.2
    )
    return ear, stream.stats(count * 0.02)


def received(ear: Ear) -> int:
    return sum(frame.origin is Origin.RECEIVED for _, frame in ear.frames)


@pytest.mark.parametrize("jitter", [0.0, 0.03, 0.06])
@pytest.mark.parametrize("seed", range(3))
def test_of_packets_lost_at_5_percent_nearly_all_are_heard_in_order_without_a_longer_delay(
    seed: int, jitter: float
) -> None:
    ear, stats = call(seed, loss=0.05, jitter=jitter)
    numbers = [number for number in ear.numbers if number >= 0]
    assert numbers == sorted(set(numbers))
    assert received(ear) >= 0.98 * 3000
    assert stats.recovered >= 0.6 * stats.lost > 0
    assert ear.longest_stall() <= 0.06
    delays = [delay - 0.02 for delay in ear.delays()]
    assert sum(delays[-1000:]) / 1000 <= 0.06 + jitter / 2


def test_two_copies_repair_bursts_of_two() -> None:
    ear = Ear()
    stream = AudioStream(replace(OURS, red_payload_type=RED), NumberCodec(), ear, 0.0, Random(1))
    sent = [arrival for number, arrival in enumerate(talk_red(3000, copies=2)) if number % 20 not in (7, 8)]
    run(stream, ear, network(sent, Random(1), jitter=0.03), 60)
    assert received(ear) >= 0.94 * 3000  # of 90 % that come


def test_a_clean_network_is_as_fast_with_copies_as_without() -> None:
    ear, stats = call(1, loss=0.0, jitter=0.0)
    assert stats.recovered == 0
    assert max(ear.delays()[100:]) <= 0.05


def test_packets_without_red_are_taken_beside_those_with_it() -> None:
    ear = Ear()
    stream = AudioStream(replace(OURS, red_payload_type=RED), NumberCodec(), ear, 0.0, Random(1))
    for number in range(100):
        payload = number_packet(number) if number % 2 else red(number_packet(number))
        kind = OPUS if number % 2 else RED
        stream.on_rtp(number * 0.02, build_rtp(RtpPacket(kind, number, 960 * number, THEIRS, payload)))
        ear.now = number * 0.02 + 0.007
        stream.tick(ear.now)
    assert ear.numbers == list(range(ear.numbers[-1] + 1))
    assert len(ear.numbers) >= 97


def test_red_that_was_not_agreed_or_is_malformed_is_counted_and_not_heard() -> None:
    ear = Ear()
    packet = build_rtp(RtpPacket(RED, 1, 0, THEIRS, red(number_packet(1))))
    plain = AudioStream(OURS, NumberCodec(), ear, 0.0, Random(1))
    plain.on_rtp(0.0, packet)
    assert plain.stats(0.0).dropped == {"payload_type": 1}
    agreed = AudioStream(replace(OURS, red_payload_type=RED), NumberCodec(), ear, 0.0, Random(1))
    agreed.on_rtp(0.0, build_rtp(RtpPacket(RED, 1, 0, THEIRS, b"\xef")))
    agreed.on_rtp(0.0, build_rtp(RtpPacket(RED, 2, 0, THEIRS, red(number_packet(1), (960, b"\x03")))))
    assert agreed.stats(0.0).dropped == {"red_packet": 1, "opus_packet": 1}
    assert agreed.stats(0.0).packets_received == 1


def reported(stream: AudioStream, *, percent: float) -> None:
    block = ReportBlock(OURS.ssrc, round(percent * 2.56), 0, 0, 0, 0, 0)
    stream.on_rtcp(1.0, build_report(Report(THEIRS, (block,))))


def spoken(stream: AudioStream, ticks: range) -> list[RtpPacket]:
    stream.play(b"".join((tick + 257).to_bytes(2, "little") * 480 for tick in ticks))
    sent = [packet for tick in ticks for packet in stream.tick(tick * 0.02)]
    return [parse_rtp(packet) for packet in sent if not is_rtcp(packet)]


def test_we_send_copies_from_2_percent_loss_on_and_no_longer_when_it_is_over() -> None:
    stream = AudioStream(replace(OURS, red_payload_type=RED), NumberCodec(), Ear(), 0.0, Random(1))
    assert {packet.payload_type for packet in spoken(stream, range(10))} == {OPUS}
    reported(stream, percent=5)
    copied = spoken(stream, range(10, 20))
    assert {packet.payload_type for packet in copied} == {RED}
    for number, packet in enumerate(copied, 10):
        assert split_red(packet.payload, OPUS) == (
            number_packet(number + 257),
            [Copy(1, 960, number_packet(number + 256))],
        )
    reported(stream, percent=0)
    assert {packet.payload_type for packet in spoken(stream, range(20, 30))} == {RED}
    for _ in range(3):
        reported(stream, percent=0)
    assert {packet.payload_type for packet in spoken(stream, range(30, 40))} == {OPUS}


def test_no_copies_go_to_a_client_that_did_not_offer_them_nor_of_what_is_too_long_ago() -> None:
    plain = AudioStream(OURS, NumberCodec(), Ear(), 0.0, Random(1))
    reported(plain, percent=50)
    assert {packet.payload_type for packet in spoken(plain, range(10))} == {OPUS}
    stream = AudioStream(replace(OURS, red_payload_type=RED), NumberCodec(), Ear(), 0.0, Random(1))
    reported(stream, percent=50)
    spoken(stream, range(10))
    pause = [parse_rtp(packet) for tick in range(10, 60) for packet in stream.tick(tick * 0.02) if not is_rtcp(packet)]
    assert pause[-1].payload_type == OPUS  # 400 ms after the one before: more than a header can name


def test_copies_do_not_make_an_encoder_work_for_redundancy_as_well() -> None:
    class Codec(NumberCodec):
        def expect_loss(self, percent: int) -> None:
            raise AssertionError

    stream = AudioStream(replace(OURS, red_payload_type=RED), Codec(), Ear(), 0.0, Random(1))
    for _ in range(5):
        reported(stream, percent=30)


@pytest.mark.parametrize("copy", [Copy(1, 0, b"x"), Copy(1, 1 << 14, b"x"), Copy(1, 960, bytes(1024))])
def test_what_no_header_can_name_is_not_copied(copy: Copy) -> None:
    assert build_red(b"own", OPUS, copy) is None


def test_what_we_write_we_read() -> None:
    payload = build_red(b"own", OPUS, Copy(1, 960, b"before"))
    assert payload == red(b"own", (960, b"before"))
