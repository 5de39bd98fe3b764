import pytest
from aiortc import rtp as aiortc_rtp
from aiortc.rtcrtpparameters import RTCRtpHeaderExtensionParameters, RTCRtpParameters

from usher_core.errors import LocalError, RemoteError
from usher_transceiver.media.rtp import (
    ONE_BYTE_PROFILE,
    TWO_BYTE_PROFILE,
    RtpPacket,
    build_rtp,
    extensions,
    one_byte_extension,
    parse_rtp,
)


def test_an_independent_parser_reads_what_we_build() -> None:
    extension = one_byte_extension({1: b"\x85", 4: b"audio"})
    packet = RtpPacket(111, 65535, 0xFFFFFFFF, 0x12345678, b"payload", True, ONE_BYTE_PROFILE, extension)
    agreed = aiortc_rtp.HeaderExtensionsMap()
    agreed.configure(
        RTCRtpParameters(
            headerExtensions=[
                RTCRtpHeaderExtensionParameters(id=1, uri="urn:ietf:params:rtp-hdrext:ssrc-audio-level"),
                RTCRtpHeaderExtensionParameters(id=4, uri="urn:ietf:params:rtp-hdrext:sdes:mid"),
            ]
        )
    )
    read = aiortc_rtp.RtpPacket.parse(build_rtp(packet), agreed)
    assert (read.payload_type, read.marker, read.sequence_number) == (111, 1, 65535)
    assert (read.timestamp, read.ssrc, read.payload) == (0xFFFFFFFF, 0x12345678, b"payload")
    assert read.extensions.mid == "audio"
    assert read.extensions.audio_level == (True, 5)


def test_padding_and_contributing_sources_are_left_out_of_the_payload() -> None:
    packet = bytes.fromhex("a26f0001 00000002 00000003 0000000a 0000000b".replace(" ", "")) + b"opus\0\0\3"
    assert parse_rtp(packet).payload == b"opus"


def test_two_byte_extensions_are_read() -> None:
    block = bytes((4, 5)) + b"audio" + bytes((0, 7, 0)) + bytes(2)
    packet = RtpPacket(111, 1, 2, 3, b"x", extension_profile=TWO_BYTE_PROFILE, extension=block)
    assert extensions(parse_rtp(build_rtp(packet))) == {4: b"audio", 7: b""}


def test_extension_id_15_ends_the_one_byte_block() -> None:
    block = bytes((0x10, 9, 0xF0, 1, 0x20, 9, 0, 0))
    assert extensions(RtpPacket(111, 1, 2, 3, b"", False, ONE_BYTE_PROFILE, block)) == {1: b"\x09"}


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", "rtp_length"),
        (bytes(11), "rtp_length"),
        (b"\x40" + bytes(11), "rtp_version"),
        (b"\x8f" + bytes(11), "rtp_length"),
        (b"\x90" + bytes(11), "rtp_length"),
        (b"\x90" + bytes(13) + b"\xff\xff", "rtp_length"),
        (b"\xa0" + bytes(11) + b"a\0", "rtp_padding"),
        (b"\xa0" + bytes(11) + b"a\x03", "rtp_padding"),
    ],
)
def test_a_broken_packet_is_refused_with_a_reason(packet: bytes, reason: str) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_rtp(packet)
    assert caught.value.reason == reason


@pytest.mark.parametrize("block", [b"\x1f", b"\x11\0"])
def test_an_extension_that_is_cut_off_is_refused(block: bytes) -> None:
    with pytest.raises(RemoteError, match="cut off"):
        extensions(RtpPacket(111, 1, 2, 3, b"", False, ONE_BYTE_PROFILE, block))


@pytest.mark.parametrize("elements", [{0: b"a"}, {15: b"a"}, {1: b""}, {1: bytes(17)}])
def test_an_extension_that_does_not_fit_is_our_own_fault(elements: dict[int, bytes]) -> None:
    with pytest.raises(LocalError, match="negotiate"):
        one_byte_extension(elements)
