"""The seam that a session uses."""

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.media_network import OURS, THEIRS, Ear, NumberCodec, number_packet, run, talk
from usher_core.errors import LocalError
from usher_core.rtp import is_rtcp
from usher_transceiver.media.frame import FRAME_SECONDS, AudioFrame, Origin
from usher_transceiver.media.reports import compact, ntp
from usher_transceiver.media.rtcp import Bye, Report, ReportBlock, build_bye, build_report, parse_rtcp
from usher_transceiver.media.rtp import RtpPacket, build_rtp, parse_rtp
from usher_transceiver.media.stream import AudioStream, StreamParameters

LOUD = bytes((1, 64)) * 480


def make(ear: Ear | None = None, **changes: Any) -> AudioStream:
    given: dict[str, Any] = {"ssrc": OURS.ssrc, "cname": "usher", "payload_type": 111} | changes
    return AudioStream(StreamParameters(**given), NumberCodec(), ear or Ear(), 0.0, Random(1))


def reports(sent: list[tuple[float, bytes]]) -> list[tuple[float, Report]]:
    found = [(at, parse_rtcp(packet)[0]) for at, packet in sent if is_rtcp(packet)]
    return [(at, item) for at, item in found if isinstance(item, Report)]


def test_what_the_sink_plays_leaves_in_the_same_tick() -> None:
    def echo(frame: AudioFrame) -> None:
        if frame.origin is not Origin.SILENCE:
            stream.play(frame.data)

    stream = AudioStream(OURS, NumberCodec(), echo, 0.0, Random(1))
    ear = Ear()
    sent = run(stream, ear, talk(map(number_packet, range(1, 101))), 2)
    payloads = [packet[12:] for _, packet in sent if not is_rtcp(packet)]
    arrived = 0.0
    assert payloads[0] == number_packet(1)
    assert sent[0][0] - arrived <= 0.03
    assert payloads[:90] == [number_packet(number) for number in range(1, 91)]


def test_the_backend_gets_one_frame_every_20_ms_from_the_first_packet_on_with_its_position() -> None:
    ear = Ear()
    run(make(ear), ear, talk(map(number_packet, range(50))), 3)
    assert [frame.position_ms for _, frame in ear.frames] == [20 * index for index in range(150)]
    assert {len(frame.data) for _, frame in ear.frames} == {960}
    assert {frame.origin for _, frame in ear.frames[-90:]} == {Origin.SILENCE}


def test_a_goodbye_a_picture_loss_and_garbage_do_not_end_a_live_stream() -> None:
    ear = Ear()
    stream = make(ear)
    arrivals = talk(map(number_packet, range(100)))
    run(stream, ear, arrivals[:50], 1)
    picture_loss = bytes.fromhex("81ce0002") + THEIRS.to_bytes(4) + OURS.ssrc.to_bytes(4)
    full_intra = bytes.fromhex("84ce0004") + THEIRS.to_bytes(4) + bytes(12)
    for packet in (
        build_bye((THEIRS,)),
        build_bye((THEIRS, OURS.ssrc)),
        picture_loss,
        full_intra,
        b"",
        b"\x80",
        bytes(99),
    ):
        stream.on_rtcp(1.0, packet)
    stream.play(LOUD * 50)
    for index, arrival in enumerate(arrivals[50:]):
        stream.on_rtp(arrival.at, arrival.packet)
        assert stream.tick(arrival.at + 0.007), index
    assert ear.numbers[-1] == 98
    assert stream.stats(2.0).dropped["rtcp_bye"] == 2


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", "rtp_length"),
        (b"\0" * 40, "rtp_version"),
        (build_rtp(RtpPacket(0, 1, 2, THEIRS, b"pcmu")), "payload_type"),
        (build_rtp(RtpPacket(111, 1, 2, THEIRS, b"")), "opus_packet"),
    ],
)
def test_a_packet_that_is_refused_is_counted_by_reason(packet: bytes, reason: str) -> None:
    ear = Ear()
    stream = make(ear)
    stream.on_rtp(0.0, packet)
    stream.tick(0.01)
    assert stream.stats(0.01).dropped == {reason: 1}
    assert ear.frames == []


def test_a_sender_report_comes_when_something_was_sent_and_a_receiver_report_otherwise() -> None:
    ear = Ear()
    stream = make(ear)
    stream.play(LOUD * 50)
    sent = run(stream, ear, [], 30)
    times = [at for at, _ in reports(sent)]
    assert times[0] <= 0.8
    assert all(1.0 <= b - a <= 3.1 for a, b in pairwise(times))
    at, first = reports(sent)[0]
    packets = [(t, parse_rtp(packet)) for t, packet in sent if not is_rtcp(packet)]
    before = [packet for t, packet in packets if t <= at]
    assert first.ntp is not None
    assert (first.packets, first.octets) == (len(before), sum(len(packet.payload) for packet in before))
    # The report's two times are of one moment: the packet of that tick has the media time of 20 ms before.
    assert first.rtp_timestamp - before[-1].timestamp & 0xFFFFFFFF == 960


def test_without_anything_sent_the_report_is_a_receiver_report_with_loss_and_jitter() -> None:
    ear = Ear()
    stream = make(ear)
    arrivals = [arrival for index, arrival in enumerate(talk(map(number_packet, range(500)))) if index % 10]
    found = reports(run(stream, ear, arrivals, 10))
    assert all(report.ntp is None for _, report in found)
    block = found[-1][1].blocks[0]
    assert block.ssrc == THEIRS
    assert block.fraction_lost == pytest.approx(25.6, abs=3)
    assert block.cumulative_lost >= 40
    assert stream.stats(10).lost == 49


def test_the_round_trip_is_known_from_the_clients_report() -> None:
    ear = Ear()
    stream = make(ear)
    stream.play(LOUD * 100)
    at, report = reports(run(stream, ear, [], 2))[0]
    assert stream.stats(2).rtt_ms is None
    assert report.ntp is not None
    block = ReportBlock(OURS.ssrc, 64, 0, 0, 0, compact(report.ntp), 65536)
    stream.on_rtcp(at + 1.08, build_report(Report(THEIRS, (block,))))
    assert stream.stats(2).rtt_ms == pytest.approx(80, abs=0.1)
    assert stream.stats(2).remote_lost_percent == 25


def test_our_report_answers_the_clients_sender_report() -> None:
    ear = Ear()
    stream = make(ear)
    arrivals = talk(map(number_packet, range(100)))
    stream.on_rtp(0.0, arrivals[0].packet)
    stream.on_rtcp(0.0, build_report(Report(THEIRS, (), ntp(77.5))))
    stream.on_rtcp(0.0, build_report(Report(THEIRS + 1, (), ntp(99.5))))
    at, report = reports(run(stream, ear, arrivals[1:], 2))[0]
    assert report.blocks[0].last_sr == compact(ntp(77.5))
    assert report.blocks[0].delay_since_last_sr == pytest.approx(at * 65536, abs=2)


def test_loss_at_the_client_turns_on_redundancy_and_its_end_turns_it_off() -> None:
    heard: list[int] = []

    class Codec(NumberCodec):
        def expect_loss(self, percent: int) -> None:
            heard.append(percent)

    stream = AudioStream(OURS, Codec(), Ear(), 0.0, Random(1))
    for fraction in (0, 26, 26, 26, 255, 0, 0, 0, 0, 0):
        stream.on_rtcp(1.0, build_report(Report(THEIRS, (ReportBlock(OURS.ssrc, fraction, 0, 0, 0, 0, 0),))))
    assert heard[0] == 5
    assert max(heard) == 30
    assert heard[-1] == 0
    assert len(heard) < 8


def test_another_ssrc_takes_over_at_once_and_the_old_one_does_not_come_back() -> None:
    ear = Ear()
    stream = make(ear)
    old = talk(map(number_packet, range(200)))
    for arrival in old[:50]:
        stream.on_rtp(arrival.at, arrival.packet)
        stream.tick(arrival.at + 0.007)
    ear.frames.clear()
    for index, arrival in enumerate(old[50:150]):
        new = build_rtp(RtpPacket(111, 9000 + index, 77 + index * 960, 0x3333, number_packet(1000 + index)))
        stream.on_rtp(arrival.at, new)
        stream.on_rtp(arrival.at + 0.001, arrival.packet)
        ear.now = arrival.at
        stream.tick(arrival.at + 0.007)
    assert ear.numbers[-1] == 1098
    assert len([number for number in ear.numbers if number < 1000]) <= 1
    assert stream.stats(3).dropped["old_ssrc"] == 100


def test_goodbye_is_a_compound_with_report_name_and_bye() -> None:
    items = parse_rtcp(make().goodbye(1.0))
    assert isinstance(items[0], Report)
    assert items[-1] == Bye((OURS.ssrc,))


def test_a_backend_of_kind_opus_gets_the_packets_themselves_and_may_send_its_own() -> None:
    ear = Ear()
    stream = make(ear, kind="opus")
    arrivals = talk(map(number_packet, range(100)))
    del arrivals[50]
    run(stream, ear, arrivals, 2)
    received = [frame.data for _, frame in ear.frames if frame.origin is Origin.RECEIVED]
    assert received == [number_packet(number) for number in range(99) if number != 50]
    assert {frame.data for _, frame in ear.frames if frame.origin is not Origin.RECEIVED} == {b""}
    assert stream.play_opus(number_packet(5)) == 20
    assert [packet[12:] for packet in stream.tick(2.0) if not is_rtcp(packet)] == [number_packet(5)]
    with pytest.raises(LocalError, match="call play_opus"):
        stream.play(LOUD)
    with pytest.raises(LocalError, match="call play"):
        make().play_opus(b"")


def test_parameters_that_cannot_be_are_our_own_fault() -> None:
    with pytest.raises(LocalError):
        make(clock_rate=44_100)
    with pytest.raises(LocalError):
        make(payload_type=128)
    with pytest.raises(LocalError):
        make(mid="a mid of more than sixteen bytes", mid_extension_id=3)


def test_a_device_with_a_16_khz_clock_gets_wideband_audio_and_its_own_timestamps() -> None:
    asked = []

    class Codec(NumberCodec):
        def encoder(self, settings):
            asked.append(settings.wideband)
            return self

    for clock_rate in (16_000, 48_000):
        stream = AudioStream(StreamParameters(1, "usher", 96, clock_rate=clock_rate), Codec(), Ear(), 0.0, Random(1))
        stream.play(LOUD * 2)
        first, second = (parse_rtp(stream.tick(tick * FRAME_SECONDS)[0]) for tick in (0, 1))
        assert second.timestamp - first.timestamp == clock_rate // 50
    assert asked == [True, False]


def test_a_client_that_makes_nothing_of_redundancy_gets_none() -> None:
    class Codec(NumberCodec):
        def expect_loss(self, percent: int) -> None:
            raise AssertionError

    parameters = StreamParameters(OURS.ssrc, "usher", 111, uses_inband_fec=False)
    stream = AudioStream(parameters, Codec(), Ear(), 0.0, Random(1))
    stream.on_rtcp(1.0, build_report(Report(THEIRS, (ReportBlock(OURS.ssrc, 128, 0, 0, 0, 0, 0),))))
    assert stream.stats(1.0).remote_lost_percent == 50
