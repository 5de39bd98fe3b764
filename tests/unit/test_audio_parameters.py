"""What an offer says of its audio, and what the stream then does."""

import pytest

from tests.sdp_samples import audio, offer
from usher_core.errors import RemoteError
from usher_transceiver.audio_parameters import stream_parameters
from usher_transceiver.media.codec import EncoderSettings
from usher_transceiver.media.stream import StreamParameters
from usher_transceiver.sdp import AudioSection, parse_offer

ENCODER = EncoderSettings(bitrate=32_000)
TELEPHONE = {"media": "m=audio 9 RTP/SAVPF 8", "codec": ()}


def section(**changes) -> AudioSection:
    return parse_offer(offer(audio(**changes), session=())).audio


def of(fmtp: str) -> StreamParameters:
    opus = section(codec=("a=rtpmap:111 opus/48000/2", f"a=fmtp:111 {fmtp}"))
    return stream_parameters(opus, "pcm", ENCODER)


@pytest.mark.parametrize(
    ("fmtp", "bitrate"),
    [
        ("maxaveragebitrate=20000", 20_000),
        ("useinbandfec=1;maxaveragebitrate=64000", 32_000),
        ("maxaveragebitrate=1", 6_000),
        ("minptime=10", 32_000),
    ],
)
def test_no_more_is_sent_than_the_client_wants_nor_less_than_opus_can(fmtp: str, bitrate: int) -> None:
    assert of(fmtp).encoder.bitrate == bitrate


@pytest.mark.parametrize(
    ("fmtp", "wideband"), [("maxplaybackrate=16000", True), ("maxplaybackrate=48000", False), ("", False)]
)
def test_nothing_is_encoded_that_the_client_does_not_render(fmtp: str, wideband: bool) -> None:
    assert of(fmtp).encoder.wideband is wideband


@pytest.mark.parametrize(
    ("fmtp", "used"), [("minptime=10; useinbandfec=1", True), ("useinbandfec=0", False), ("", False)]
)
def test_redundancy_is_for_clients_that_make_something_of_it(fmtp: str, used: bool) -> None:
    assert of(fmtp).uses_inband_fec is used


def test_copies_and_asking_again_are_what_was_agreed() -> None:
    lines = ("a=rtpmap:111 opus/48000/2", "a=rtpmap:63 red/48000/2", "a=fmtp:63 111/111", "a=rtcp-fb:111 nack")
    agreed = stream_parameters(section(media="m=audio 9 UDP/TLS/RTP/SAVPF 111 63", codec=lines), "pcm", ENCODER)
    assert (agreed.red_payload_type, agreed.answers_nack) == (63, True)
    plain = stream_parameters(section(), "pcm", ENCODER)
    assert (plain.red_payload_type, plain.answers_nack) == (None, False)


def test_a_telephone_gets_its_codec_and_clock() -> None:
    parameters = stream_parameters(section(**TELEPHONE), "pcm", ENCODER)
    assert (parameters.encoding, parameters.payload_type, parameters.clock_rate) == ("pcma", 8, 8000)


def test_a_backend_of_opus_packets_refuses_a_telephone_and_says_why() -> None:
    with pytest.raises(RemoteError, match="no Opus, but this backend") as caught:
        stream_parameters(section(**TELEPHONE), "opus", ENCODER)
    assert caught.value.reason == "bad_sdp"


def test_every_stream_has_an_ssrc_and_a_name_of_its_own() -> None:
    one, two = (stream_parameters(section(), "pcm", ENCODER) for _ in range(2))
    assert (one.ssrc, one.cname) != (two.ssrc, two.cname)
