import pytest
from aiortc import rtp as aiortc_rtp

from usher_core.errors import RemoteError
from usher_transceiver.media.reports import Reception, compact, ntp, round_trip
from usher_transceiver.media.rtcp import (
    Bye,
    Report,
    ReportBlock,
    build_bye,
    build_cname,
    build_report,
    parse_rtcp,
)

BLOCK = ReportBlock(
    ssrc=7,
    fraction_lost=12,
    cumulative_lost=-3,
    highest_sequence=0x1FFFF,
    jitter=99,
    last_sr=1234,
    delay_since_last_sr=5,
)


def test_an_independent_parser_reads_our_compound() -> None:
    report = Report(1, (BLOCK,), ntp=0x0123456789ABCDEF, rtp_timestamp=5, packets=6, octets=7)
    sender, description, bye = aiortc_rtp.RtcpPacket.parse(
        build_report(report) + build_cname(1, "usher") + build_bye((1,))
    )
    assert isinstance(sender, aiortc_rtp.RtcpSrPacket)
    assert sender.sender_info.ntp_timestamp == 0x0123456789ABCDEF
    assert sender.sender_info.octet_count == 7
    assert (sender.reports[0].packets_lost, sender.reports[0].highest_sequence) == (-3, 0x1FFFF)
    assert isinstance(description, aiortc_rtp.RtcpSdesPacket)
    assert description.chunks[0].items == [(1, b"usher")]
    assert isinstance(bye, aiortc_rtp.RtcpByePacket)
    assert bye.sources == [1]


@pytest.mark.parametrize("length", range(1, 9))
def test_a_description_is_whole_words_and_ends_with_a_null(length: int) -> None:
    packet = build_cname(1, "n" * length)
    assert len(packet) % 4 == 0
    assert packet[-1] == 0
    assert aiortc_rtp.RtcpPacket.parse(packet)


def test_what_we_build_we_read() -> None:
    reports = [Report(1, (BLOCK, BLOCK)), Report(2, (), 1 << 32, 3, 4, 5)]
    compound = b"".join(map(build_report, reports)) + build_bye((1, 2))
    assert parse_rtcp(compound) == [*reports, Bye((1, 2))]


def test_feedback_and_unknown_types_are_passed_over() -> None:
    picture_loss = bytes.fromhex("81ce0002 00000001 00000002".replace(" ", ""))
    unknown = bytes.fromhex("80df0000")
    assert parse_rtcp(picture_loss + unknown + build_bye((1,))) == [Bye((1,))]


@pytest.mark.parametrize(
    ("compound", "reason"),
    [
        (b"\x80\xc9", "rtcp_length"),
        (b"\x80\xc9\0\1", "rtcp_length"),
        (b"\x40\xc9\0\0", "rtcp_version"),
        (b"\x81\xc9\0\1" + bytes(4), "rtcp_length"),
        (b"\x80\xc8\0\1" + bytes(4), "rtcp_length"),
        (b"\x82\xcb\0\1" + bytes(4), "rtcp_length"),
        (b"\x80\xc9\0\0", "rtcp_length"),
    ],
)
def test_a_broken_compound_is_refused_with_a_reason(compound: bytes, reason: str) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_rtcp(compound)
    assert caught.value.reason == reason


def test_round_trip_is_what_remains_when_the_far_ends_wait_is_taken_off() -> None:
    sent, waited, rtt = 10.0, 0.5, 0.125
    block = ReportBlock(1, 0, 0, 0, 0, compact(ntp(sent)), int(waited * 65536))
    assert round_trip(block, ntp(sent + waited + rtt)) == pytest.approx(rtt, abs=1e-4)


def test_round_trip_is_unknown_without_a_sender_report_and_never_negative() -> None:
    assert round_trip(ReportBlock(1, 0, 0, 0, 0, 0, 0), ntp(5)) is None
    assert round_trip(ReportBlock(1, 0, 0, 0, 0, compact(ntp(5)), 9), ntp(5)) == 0.0
    assert round_trip(ReportBlock(1, 0, 0, 0, 0, compact(ntp(5)), 0), ntp(50)) is None


def test_loss_is_counted_in_total_and_since_the_last_report() -> None:
    reception = Reception(7, 48_000, 65_530)
    for index in range(100):
        if index % 10 != 3:
            reception.on_packet(index / 50, 65_530 + index & 0xFFFF, index * 960)
    block = reception.block(2.0)
    assert (block.cumulative_lost, block.fraction_lost) == (10, 25)
    assert block.highest_sequence == 65_530 + 99
    for index in range(100, 150):
        reception.on_packet(index / 50, 65_530 + index & 0xFFFF, index * 960)
    block = reception.block(3.0)
    assert (block.cumulative_lost, block.fraction_lost) == (10, 0)


def test_jitter_is_that_of_appendix_a8() -> None:
    reception = Reception(7, 48_000, 0)
    for index in range(500):
        reception.on_packet(index / 50 + (0.005 if index % 2 else 0), index, index * 960)
    # Every two packets in a row differ by 5 ms, which is 240 units.
    assert reception.jitter == pytest.approx(240, abs=2)


def test_a_report_tells_the_last_sender_report_and_its_age() -> None:
    reception = Reception(7, 48_000, 0)
    assert (reception.block(1.0).last_sr, reception.block(1.0).delay_since_last_sr) == (0, 0)
    reception.on_sender_report(1.0, 0xAAAA_BBBB_CCCC_DDDD)
    block = reception.block(1.5)
    assert (block.last_sr, block.delay_since_last_sr) == (0xBBBB_CCCC, 32768)


@pytest.mark.parametrize("earlier", [0.0, 0.0009, 5.0])
def test_a_sender_report_newer_than_the_report_about_it_has_age_0_and_breaks_nothing(earlier: float) -> None:
    reception = Reception(1, 48_000, 1)
    reception.on_packet(10.0, 1, 0)
    reception.on_sender_report(10.0, 123 << 32)
    block = reception.block(10.0 - earlier)
    assert block.delay_since_last_sr == 0
    assert parse_rtcp(build_report(Report(2, (block,))))
